"""`python -m tests.faults.member`: one member of a consumer group, as a process that can be killed.

It polls, and commits what it was handed out, until SIGTERM. Each line of its file is one event:
`[monotonic ns, type, f, content]`, in the terms of `tests.checkers.groups`; offsets and values of a
poll are pairs by key. The clock is the same in all processes of a machine.
"""

import argparse
import asyncio
import json
import logging
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

from tests.checkers.history import INFO, INVOKE, OK
from tests.faults.load import Places, value_of

from millrace.client import Consumer
from millrace.core.errors import (
    ConnectionFailedError,
    FencedMemberEpochError,
    MillraceError,
    RetriableError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from millrace.core.topics import PartitionName

POLL_MS: Final = 300
PAUSE_SECONDS: Final = 0.05
_EXPECTED: Final = (
    RetriableError,
    ConnectionFailedError,
    FencedMemberEpochError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
"""What a member may be told while brokers fail, or when it was away."""


class Member:
    """The consumer of this process, and its file."""

    def __init__(self, bootstrap: str, group: str, places: Places, file: TextIO) -> None:
        self._bootstrap = bootstrap
        self._group = group
        self._places = places
        self._file = file
        self._owned: dict[int, None] = {}
        self._is_over = asyncio.Event()

    async def run(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._is_over.set)
        consumer = Consumer(
            self._bootstrap,
            group=self._group,
            client_id="member",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            request_timeout_ms=10_000,
        )
        await consumer.subscribe(
            self._places.topics,
            on_assigned=self._on_assigned,
            on_revoked=self._on_given_up,
            on_lost=self._on_given_up,
        )
        while not self._is_over.is_set():
            self._say_alive(consumer)
            try:
                await self._poll(consumer)
            except _EXPECTED as error:
                self._say(INFO, "error", repr(error))
            await asyncio.sleep(PAUSE_SECONDS)
        try:
            await consumer.close()
        except MillraceError as error:
            self._say(INFO, "error", repr(error))
        self._say(INFO, "group", ["gone", []])

    async def _poll(self, consumer: Consumer) -> None:
        self._say(INVOKE, "poll", None)
        found: dict[int, list[tuple[int, int]]] = {}
        for record in await consumer.poll(POLL_MS):
            key = self._places.key_of(record.topic, record.partition)
            found.setdefault(key, []).append((record.offset, value_of(record.value)))
        self._say(OK, "poll", found)
        if found:
            positions = {key: read[-1][0] + 1 for key, read in found.items()}
            self._say(INVOKE, "commit", positions)
            try:
                await consumer.commit(
                    {self._places.place_of(key): at for key, at in positions.items()}
                )
            except _EXPECTED as error:
                self._say(INFO, "commit", repr(error))
            else:
                self._say(OK, "commit", positions)

    def _on_assigned(self, places: list[PartitionName]) -> None:
        keys = self._keys(places)
        self._say(OK, "subscribe", [key for key in self._owned if key not in keys])
        self._say(INFO, "group", ["assigned", keys])
        self._owned.update(dict.fromkeys(keys))

    def _on_given_up(self, places: list[PartitionName]) -> None:
        keys = self._keys(places)
        self._say(INFO, "group", ["given-up", keys])
        for key in keys:
            self._owned.pop(key, None)

    def _say_alive(self, consumer: Consumer) -> None:
        membership = consumer._core.membership
        assert membership is not None
        until_s = (
            0.0
            if membership.heartbeats.is_lost
            else membership.heartbeats.heard_at + membership.heartbeats.session_s
        )
        self._say(INFO, "group", ["alive", int(until_s * 1e9)])

    def _keys(self, places: Sequence[PartitionName]) -> list[int]:
        return [self._places.key_of(*place) for place in places]

    def _say(self, type: str, f: str, content: object) -> None:
        line = json.dumps([time.monotonic_ns(), type, f, content], separators=(",", ":"))
        print(line, file=self._file, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.member", description=__doc__)
    parser.add_argument("bootstrap", help="addresses of brokers")
    parser.add_argument("group", help="its name")
    parser.add_argument("topics", help="their names, with commas")
    parser.add_argument("partitions", type=int, help="of each topic")
    parser.add_argument("file", type=Path, help="gets a line for each event")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    places = Places(topics=tuple(arguments.topics.split(",")), partitions=arguments.partitions)
    with arguments.file.open("w") as file:
        member = Member(arguments.bootstrap, arguments.group, places, file)
        asyncio.run(member.run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
