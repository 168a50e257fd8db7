"""`python -m tests.faults.copier`: a member that copies a topic exactly once, until it is killed.

Each record goes to the partition of its number. After a session or a transaction that ended, it
begins anew; an error that no member may be told ends the process with its traceback.
"""

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from tests.faults.transactor import TIMEOUT_MS

from millrace.client import Consumer, FetchedRecords, OutputRecords, Producer
from millrace.core.errors import (
    AbortedError,
    ConnectionFailedError,
    DeliveryTimedOutError,
    FencedMemberEpochError,
    MillraceError,
    RetriableError,
    StaleMemberEpochError,
    StorageError,
    TransactionInDoubtError,
    UnknownMemberIdError,
)

_EXPECTED: Final = (
    RetriableError,
    ConnectionFailedError,
    DeliveryTimedOutError,
    StorageError,
    AbortedError,
    TransactionInDoubtError,
    FencedMemberEpochError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
"""What a member may be told while brokers fail, or when it was away."""


async def _copy(bootstrap: str, group: str, source: str, target: str, name: str) -> None:
    def copied(read: FetchedRecords) -> Iterator[OutputRecords]:
        yield OutputRecords(target, read.records.column("value"), partition=read.partition)

    while True:
        consumer = Consumer(
            bootstrap,
            group=group,
            client_id=name,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            request_timeout_ms=5_000,
        )
        producer = Producer(
            bootstrap,
            transactional_id=name,
            transaction_timeout_ms=TIMEOUT_MS,
            linger_ms=1,
            request_timeout_ms=5_000,
        )
        try:
            await consumer.subscribe([source])
            await consumer.process_exactly_once(copied, producer, interval_ms=100)
        except _EXPECTED as error:
            logging.warning("it begins anew: %r", error)
        finally:
            for client in (producer, consumer):
                with suppress(MillraceError):
                    await client.close()
        await asyncio.sleep(0.2)


async def _run(*arguments: str) -> None:
    copying = asyncio.create_task(_copy(*arguments))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, copying.cancel)
    with suppress(asyncio.CancelledError):
        await copying


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.copier", description=__doc__)
    parser.add_argument("bootstrap", help="addresses of brokers")
    parser.add_argument("group", help="its name")
    parser.add_argument("source", help="the topic that is copied")
    parser.add_argument("target", help="the topic of the copies")
    parser.add_argument("name", help="the transactional id")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    asyncio.run(
        _run(
            arguments.bootstrap,
            arguments.group,
            arguments.source,
            arguments.target,
            arguments.name,
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
