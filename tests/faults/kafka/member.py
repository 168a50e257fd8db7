"""`python -m tests.faults.kafka.member`: a member of a group of Kafka's classic protocol.

As `tests.faults.member`, with librdkafka, and with the same lines in its file. Kafka's clients do
not say how long their session lives: here it lives at least its time from before a commit that went
well. A member that stood still hands out what it had fetched, and hears of the others later: that
is no promise of Kafka's clients. So it commits only what it has not given up. A consumer that asked
a broker for the positions that is no coordinator any more never asks again (librdkafka 5586), so it
leaves the group, and another one follows.
"""

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from tests.checkers.history import INFO, INVOKE, OK
from tests.faults.kafka import clients
from tests.faults.load import Places, value_of

_POLL_SECONDS: Final = 0.3
_PAUSE_SECONDS: Final = 0.05
_RECORDS_MAX: Final = 500


class Member:
    """The consumer of this process, and its file."""

    def __init__(
        self, bootstrap: str, group: str, session_ms: int, places: Places, file: TextIO
    ) -> None:
        self.is_over = threading.Event()
        self._places = places
        self._bootstrap = bootstrap
        self._group = group
        self._session_ms = session_ms
        self._file = file
        self._owned: dict[int, None] = {}
        self._found: dict[int, list[tuple[int, int]]] = {}
        self._consumer = self._joining()

    def _joining(self) -> Consumer:
        """Return another consumer, which joins the group by its next poll."""
        consumer = clients.consumer(
            self._bootstrap,
            group_id=self._group,
            session_timeout_ms=self._session_ms,
            heartbeat_interval_ms=self._session_ms // 4,
            auto_offset_reset="earliest",
            partition_assignment_strategy="roundrobin",  # So each of three has some.
        )
        consumer.subscribe(
            list(self._places.topics),
            on_assign=self._on_assigned,
            on_revoke=self._on_given_up,
            on_lost=self._on_given_up,
        )
        return consumer

    def run(self) -> None:
        self._say(INFO, "group", ["alive", 0])
        while not self.is_over.is_set():
            self._poll()
            self.is_over.wait(_PAUSE_SECONDS)
        self._leave()
        self._say(INFO, "group", ["gone", []])

    def _leave(self) -> None:
        self._begin_poll()  # It is told of what it gives up, within its last call.
        self._consumer.close()
        self._end_poll()

    def _poll(self) -> None:
        self._begin_poll()
        errors = []
        for number in range(_RECORDS_MAX):
            message = self._consumer.poll(0 if number else _POLL_SECONDS)
            if message is None:
                break
            if message.error() is not None:
                errors.append(message.error())
                continue
            key = self._places.key_of(message.topic(), message.partition())
            self._found.setdefault(key, []).append((message.offset(), value_of(message.value())))
        found = self._end_poll()
        for error in errors:
            self._say(INFO, "error", clients.said(error))
        if any(error.code() == KafkaError.NOT_COORDINATOR for error in errors):
            self._leave()
            self._consumer = self._joining()
            return
        positions = {key: read[-1][0] + 1 for key, read in found.items() if key in self._owned}
        if positions:
            self._commit(positions)

    def _begin_poll(self) -> None:
        self._found = {}
        self._say(INVOKE, "poll", None)

    def _end_poll(self) -> dict[int, list[tuple[int, int]]]:
        self._say(OK, "poll", self._found)
        return self._found

    def _commit(self, positions: dict[int, int]) -> None:
        self._say(INVOKE, "commit", positions)
        began_ns = time.monotonic_ns()
        offsets = [TopicPartition(*self._places.place_of(key), at) for key, at in positions.items()]
        try:
            done: Any = self._consumer.commit(offsets=offsets, asynchronous=False)
            refused = [place.error for place in done if place.error is not None]
        except KafkaException as error:
            refused = [error.args[0]]
        if refused:
            self._say(INFO, "commit", clients.said(refused[0]))
        else:
            self._say(OK, "commit", positions)
            self._say(INFO, "group", ["alive", began_ns + self._session_ms * 10**6])

    def _on_assigned(self, _: object, places: Sequence[TopicPartition]) -> None:
        self._end_poll()
        keys = self._keys(places)
        self._say(OK, "subscribe", [key for key in self._owned if key not in keys])
        self._say(INFO, "group", ["assigned", keys])
        self._owned.update(dict.fromkeys(keys))
        self._begin_poll()

    def _on_given_up(self, _: object, places: Sequence[TopicPartition]) -> None:
        self._end_poll()
        keys = self._keys(places)
        self._say(INFO, "group", ["given-up", keys])
        for key in keys:
            self._owned.pop(key, None)
        self._begin_poll()

    def _keys(self, places: Sequence[TopicPartition]) -> list[int]:
        return [self._places.key_of(place.topic, place.partition) for place in places]

    def _say(self, type: str, f: str, content: object) -> None:
        print(json.dumps([time.monotonic_ns(), type, f, content]), file=self._file, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.kafka.member", description=__doc__
    )
    parser.add_argument("bootstrap", help="addresses of brokers")
    parser.add_argument("group", help="its name")
    parser.add_argument("topics", help="names, with commas between them")
    parser.add_argument("partitions", type=int, help="of each topic")
    parser.add_argument("file", type=Path, help="gets a line for each event")
    parser.add_argument("--session-ms", type=int, required=True, help="of the member")
    arguments = parser.parse_args()
    places = Places(topics=tuple(arguments.topics.split(",")), partitions=arguments.partitions)
    with arguments.file.open("w") as file:
        member = Member(arguments.bootstrap, arguments.group, arguments.session_ms, places, file)
        signal.signal(signal.SIGTERM, lambda *_: member.is_over.set())
        member.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
