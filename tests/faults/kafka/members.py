"""A group of Kafka's classic protocol, which reads what the other group reads, beside it.

Two observers ask for its positions: a client of Millrace, and one of Kafka.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException, TopicPartition
from tests.checkers.history import INFO, INVOKE, OK
from tests.faults.cluster import SESSION_MS
from tests.faults.kafka import clients
from tests.faults.load import Places
from tests.faults.members import Members

GROUP: Final = "kafka-members"
_ASK_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 5.0
_STOP_SECONDS_MAX: Final = 30.0


class KafkaMembers(Members):
    """The member processes and their observers. Close it at the end.

    Args:
        folder: for the members' files.
        bootstrap: addresses of the brokers for clients of Millrace.
        kafka_bootstrap: returns those for clients of Kafka, when they begin.
        places: what they read.
    """

    def __init__(
        self, folder: Path, bootstrap: str, kafka_bootstrap: Callable[[], str], places: Places
    ) -> None:
        super().__init__(folder, bootstrap, places, group=GROUP, modes=("classic-group",))
        self._kafka_bootstrap = kafka_bootstrap
        self._asked_enough = threading.Event()
        self._asker = threading.Thread(target=self._ask, name="Kafka's observer", daemon=True)

    def start(self) -> None:
        super().start()
        self._asker.start()

    def words(self) -> list[str]:
        _, _, *others = super().words()
        return [
            "tests.faults.kafka.member",
            *("--session-ms", str(SESSION_MS), self._kafka_bootstrap(), *others),
        ]

    def stop(self) -> None:
        self._asked_enough.set()
        if self._asker.is_alive():
            self._asker.join(_STOP_SECONDS_MAX)
        super().stop()

    def _ask(self) -> None:
        """Ask for the positions as clients of Kafka do."""
        asker = clients.consumer(self._kafka_bootstrap(), group_id=self.group)
        places = [TopicPartition(*self._places.place_of(key)) for key in self._places.keys]
        try:
            while not self._asked_enough.wait(_ASK_SECONDS):
                self.note(INVOKE, None, "Kafka's observer")
                try:
                    found = asker.committed(places, timeout=_ANSWER_SECONDS)
                except KafkaException as error:
                    self.note(INFO, repr(error), "Kafka's observer")
                    continue
                told = {
                    self._places.key_of(place.topic, place.partition): place.offset
                    for place in found
                    if place.error is None and place.offset >= 0
                }
                if any(place.error is not None for place in found):
                    self.note(INFO, repr(found), "Kafka's observer")
                else:
                    self.note(OK, told, "Kafka's observer")
        finally:
            asker.close()
