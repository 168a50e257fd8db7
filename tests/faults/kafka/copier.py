"""`python -m tests.faults.kafka.copier`: copies a topic exactly once by librdkafka, until SIGTERM.

It is a member of a group of Kafka's classic protocol. Each record goes to the partition of its
number; a transaction has the records and the group's positions. After an abort or a fatal error,
a new consumer and a new producer go on from what the group has committed.

librdkafka's call for the positions may hang for ever, whatever its time-out, when the coordinator
of the group went away (librdkafka 5511 and 5456). Then the process replaces itself by a new one. A
consumer that asked a broker for the positions that is no coordinator any more never asks again
(librdkafka 5586), so another one follows.
"""

import argparse
import logging
import os
import signal
import sys
import threading
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from tests.faults.kafka import clients
from tests.faults.kafka.transactor import (
    CALL_SECONDS,
    FatalError,
    persistently,
    transactional_producer,
)

_POLL_SECONDS: Final = 0.2
_RECORDS_MAX: Final = 200
_PAUSE_SECONDS: Final = 0.2
_HANGS_SECONDS: Final = 2 * CALL_SECONDS
_REJOIN_MS: Final = 20_000
"""How long a group waits for a member that lives and does not join again."""
_DESCRIPTORS_MAX: Final = 4096


class Copier:
    """One life of the member: from its consumer and producer to an error, or the end.

    Raises:
        KafkaException: its transaction was aborted.
        FatalError: it can do nothing more.
    """

    def __init__(self, consumer: Consumer, producer: Producer, source: str, target: str) -> None:
        self._consumer = consumer
        self._producer = producer
        self._source = source
        self._target = target
        self._batch: list[Message] = []

    def run(self, is_over: threading.Event) -> None:
        persistently(self._producer.init_transactions)
        self._consumer.subscribe(
            [self._source],
            on_assign=self._on_rebalance,
            on_revoke=self._on_rebalance,
            on_lost=self._on_rebalance,
        )
        while not is_over.is_set():
            self._poll()
            if self._batch:
                self._copy()

    def _poll(self) -> None:
        self._batch = []
        for number in range(_RECORDS_MAX):
            message = self._consumer.poll(0 if number else _POLL_SECONDS)
            if message is None:
                return
            error = message.error()
            if error is not None and error.code() == KafkaError.NOT_COORDINATOR:
                raise KafkaException(error)
            if error is not None:
                logging.warning("%s", error)
            else:
                self._batch.append(message)

    def _on_rebalance(self, *_: object) -> None:
        self._batch = []  # Their next owner reads them again, from the committed positions.

    def _copy(self) -> None:
        self._producer.begin_transaction()
        try:
            for message in self._batch:
                self._producer.produce(self._target, message.value(), partition=message.partition())
            ends = {message.partition(): message.offset() + 1 for message in self._batch}
            positions = [TopicPartition(self._source, *end) for end in ends.items()]
            group = self._consumer.consumer_group_metadata()
            persistently(lambda seconds: self._send_offsets(positions, group, seconds))
            persistently(self._producer.commit_transaction)
        except KafkaException:
            persistently(self._producer.abort_transaction)
            raise

    def _send_offsets(self, positions: list[TopicPartition], group: object, seconds: float) -> None:
        hanging = threading.Timer(_HANGS_SECONDS, _replace_process)
        hanging.daemon = True
        hanging.start()
        try:
            self._producer.send_offsets_to_transaction(positions, group, seconds)
        finally:
            hanging.cancel()


def _replace_process() -> None:
    """Become a new process, without the connections of this one."""
    logging.warning("the call for positions hangs: the process replaces itself")
    os.closerange(3, _DESCRIPTORS_MAX)
    os.execv(sys.executable, [sys.executable, "-m", "tests.faults.kafka.copier", *sys.argv[1:]])


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.kafka.copier", description=__doc__
    )
    parser.add_argument("bootstrap", help="addresses of brokers")
    parser.add_argument("group", help="its name")
    parser.add_argument("source", help="the topic that is copied")
    parser.add_argument("target", help="the topic of the copies")
    parser.add_argument("name", help="the transactional id")
    parser.add_argument("--session-ms", type=int, required=True, help="of the member")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    is_over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: is_over.set())
    while not is_over.is_set():
        consumer = clients.consumer(
            arguments.bootstrap,
            group_id=arguments.group,
            session_timeout_ms=arguments.session_ms,
            heartbeat_interval_ms=arguments.session_ms // 4,
            max_poll_interval_ms=_REJOIN_MS,
            auto_offset_reset="earliest",
        )
        producer = transactional_producer(arguments.bootstrap, arguments.name)
        try:
            with clients.damage_is_a_crash():
                Copier(consumer, producer, arguments.source, arguments.target).run(is_over)
        except (KafkaException, FatalError) as error:
            logging.warning("a new consumer and producer follow: %s", error)
        finally:
            consumer.close()
        is_over.wait(_PAUSE_SECONDS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
