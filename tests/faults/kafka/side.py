"""All that clients of Kafka do in a round, beside the others and in the same topics.

The last release has no listener for them: then they begin once all brokers are upgraded.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.checkers.copies import check_copy
from tests.faults.cluster import Cluster
from tests.faults.history import History
from tests.faults.kafka.latest import KafkaLatest
from tests.faults.kafka.load import KafkaLoad
from tests.faults.kafka.members import KafkaMembers
from tests.faults.kafka.transactional import KafkaTransactional
from tests.faults.latest import Latest
from tests.faults.metadata import SURE_PLACES
from tests.faults.transactional import KAFKA_COPY, KEYS, Transactional


class KafkaSide:
    """Writers and readers, also of the compacted topic, a group of the classic protocol, and
    transactions. Close it at the end.

    Args:
        folder: for the files of processes.
        cluster: the brokers.
        history: of the load.
        seed: of the load.
        transactional: whose topic has the transactions.
        latest: whose topic is compacted.
    """

    def __init__(
        self,
        folder: Path,
        cluster: Cluster,
        history: History,
        seed: int,
        *,
        transactional: Transactional,
        latest: Latest,
    ) -> None:
        def bootstrap() -> str:
            return cluster.kafka_bootstrap

        ours = cluster.bootstrap
        self.load = KafkaLoad(bootstrap, history, seed, SURE_PLACES)
        self.members = KafkaMembers(folder / "kafka-members", ours, bootstrap, SURE_PLACES)
        self.transactional = KafkaTransactional(
            folder / "kafka-transactions", transactional, ours, bootstrap
        )
        self.latest = KafkaLatest(bootstrap, latest, seed)
        self.is_begun = False
        self._told = transactional

    def begin(self) -> None:
        """Start all clients."""
        self.load.begin()
        self.latest.begin()
        self.members.start()
        self.transactional.begin()
        self.is_begun = True

    @property
    def failure(self) -> BaseException | None:
        """An unexpected error of a client."""
        return self.load.failure or self.latest.failure

    def wait_for_more(self) -> None:
        """Return once all is written, copied and shared on; at once before it began.

        Raises:
            AssertionError: it is not in time, or a process has failed.
        """
        if self.is_begun:
            self.load.wait_for_all()
            self.transactional.wait_for_more()
            self.members.wait_until_shared()

    def stop_writers(self) -> None:
        """Let all that write end in order, but what copies."""
        if self.is_begun:
            self.load.stop_clients()
            self.latest.stop_clients()
            self.transactional.stop_writer()

    def read_all(self, ends: Mapping[int, int]) -> None:
        """Read all topics to their ends, let the group and the copy get there, and stop all.

        Args:
            ends: of the partitions of the load, by key.

        Raises:
            AssertionError: somebody stays behind.
        """
        if self.is_begun:
            self.load.read_all(ends)
            self.latest.read_all()
            self.members.wait_until_caught_up(ends)
            self.members.stop()
            self.transactional.read_all()

    def judge_copy(self, say: Callable[[str], None]) -> list[str]:
        """Hold the copy by clients of Kafka against its original."""
        copies = self._told.history_of(KAFKA_COPY)
        copied = check_copy(self._told.original, copies, KEYS, KEYS)
        say(f"copied by Kafka's clients: {copied.measures['copied']:.0f} records")
        return [] if copied.is_good else [f"of the copy by Kafka's clients: {copied.text()}"]

    def __str__(self) -> str:
        crashes = self.transactional.crashes
        return f"{self.load}; librdkafka crashed {crashes} times" if crashes else str(self.load)

    def close(self) -> None:
        """Leave nothing running."""
        self.load.stop()
        self.latest.stop()
        self.members.close()
        self.transactional.close()
