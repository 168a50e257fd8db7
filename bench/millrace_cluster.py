"""Three Millrace brokers as `millrace up --brokers 3` runs them: one process each, which it
restarts when it ends.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from bench.processes import (
    LoadFailedError,
    announced,
    by_protocol,
    children,
    start,
    stop,
    until,
)

from millrace.client import PartitionDescription, RetriableError, SyncAdmin

BROKERS = 3
REPLICATION = 3
START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 90
SETTLE_TIMEOUT_S = 120
ADMIN_TIMEOUT_MS = 300_000
POLL_S = 0.05

SETTINGS = {
    "MILLRACE_BROKER__CLUSTER__DELETED_TOPIC_RETENTION_MS": "0",
    "MILLRACE_BROKER__STORAGE__TRASH_DELAY_MS": "1000",
    "MILLRACE_BROKER__STORAGE__RETENTION_CHECK_INTERVAL_MS": "1000",
}
"""All else is default; files of deleted topics disappear as quickly as Kafka's do here."""


@dataclass(frozen=True, kw_only=True)
class MillraceCluster:
    """A running cluster.

    Attributes:
        address: of all brokers, with commas, as of the start: a restarted broker has another one,
            which the others know.
        kafka_address: where Kafka's clients reach them; empty: nowhere.
        metrics_addresses: of the metrics pages of all brokers, likewise.
        admin: a client of the cluster.
        supervisor: the process that started the brokers.
        replication: of the topics that `create_topic` makes.
        names: of the brokers, by their id.
    """

    address: str
    metrics_addresses: tuple[str, ...]
    admin: SyncAdmin
    supervisor: int
    replication: int
    names: Mapping[int, str]
    kafka_address: str = ""

    @property
    def pids(self) -> tuple[int, ...]:
        """The brokers' processes, as they are now."""
        return tuple(pid for pid, _ in children(self.supervisor))

    def pid_of(self, broker_id: int) -> int:
        """Return the process of a broker, as it is now.

        Raises:
            LoadFailedError: it has none.
        """
        configuration = f"/{self.names[broker_id]}.toml"
        for pid, command in children(self.supervisor):
            if any(part.endswith(configuration) for part in command):
                return pid
        raise LoadFailedError(f"{self.names[broker_id]} is not running")

    def address_of(self, broker_id: int) -> str:
        """Return where clients connect to a broker, as it is now."""
        brokers = self.admin.describe_cluster().brokers
        return next(broker.address for broker in brokers if broker.broker_id == broker_id)

    def kill(self, broker_id: int) -> float:
        """Kill a broker with -9; return the monotonic time of the kill."""
        pid = self.pid_of(broker_id)
        os.kill(pid, signal.SIGKILL)
        return time.monotonic()

    @contextmanager
    def without_restarts(self) -> Iterator[None]:
        """Let a broker that is killed in the block stay dead until the block ends."""
        os.kill(self.supervisor, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.supervisor, signal.SIGCONT)

    def by_protocol(self, connections: Mapping[str, float]) -> Mapping[str, float]:
        """Return a client's connections, which are given by port, by protocol."""
        return by_protocol(connections, self.address)

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic; all its replicas are in sync when this returns."""
        self.admin.create_topic(name, partitions, self.replication, config)
        self.wait_until_in_sync([name])

    def leaders(self, topic: str) -> dict[int, int]:
        """Return the leader of each partition of a topic."""
        return {number: found.leader for (_, number), found in self.partitions([topic]).items()}

    def delete_topic(self, name: str) -> None:
        """Delete a topic; its files disappear a second later."""
        self.admin.delete_topic(name)

    def controller(self) -> int:
        """Return the id of the controller.

        Raises:
            LoadFailedError: there is none.
        """

        def found() -> int | None:
            with suppress(RetriableError):
                controller_id = self.admin.describe_cluster().controller_id
                return controller_id if controller_id >= 0 else None
            return None

        return until(found, "a controller", SETTLE_TIMEOUT_S)

    def partitions(self, topics: Sequence[str]) -> dict[tuple[str, int], PartitionDescription]:
        """Return all partitions of some topics, as any broker knows them."""
        described = self.admin.describe_topics(topics)
        return {
            (name, partition.partition): partition
            for name, topic in described.items()
            for partition in topic.partitions
        }

    def wait_until_in_sync(
        self, topics: Sequence[str], timeout_s: float = SETTLE_TIMEOUT_S
    ) -> None:
        """Return once all partitions are led and have all their replicas in sync.

        Raises:
            LoadFailedError: not in time.
        """

        def settled() -> bool | None:
            try:
                partitions = self.partitions(topics).values()
            except RetriableError:
                return None
            return (
                all(
                    partition.leader >= 0 and len(partition.isr) == len(partition.replicas)
                    for partition in partitions
                )
                or None
            )

        until(settled, "all replicas in sync", timeout_s, POLL_S)


@contextmanager
def running_millrace_cluster(
    directory: Path,
    settings: Mapping[str, str] = MappingProxyType({}),
    *,
    kafka_listener: bool = False,
) -> Iterator[MillraceCluster]:
    """Start a cluster with its data below `directory`, and stop it at the end of the block.

    Args:
        settings: of the brokers' environment, besides our own.
        kafka_listener: whether Kafka's clients reach them, too.

    Raises:
        LoadFailedError: it did not start; the message has the end of its log.
    """
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "up.log"
    log.unlink(missing_ok=True)
    command = [
        sys.executable, "-m", "millrace.cli", "up", "--brokers", str(BROKERS),
        "--data-dir", str(directory / "data"), "--port", "0", "--metrics-port", "0",
        "--output", "json", *(["--kafka", "0"] if kafka_listener else []),
    ]  # fmt: skip
    # It ends its brokers on SIGTERM, and would leave them behind on SIGKILL.
    process = start(command, log, ends_by="TERM", settings={**SETTINGS, **settings})
    try:
        brokers = announced(process, log, "brokers", START_TIMEOUT_S)["brokers"]
        address = ",".join(broker["address"] for broker in brokers)
        with SyncAdmin(address, request_timeout_ms=ADMIN_TIMEOUT_MS) as admin:
            yield MillraceCluster(
                address=address,
                metrics_addresses=tuple(broker["metrics_address"] for broker in brokers),
                admin=admin,
                supervisor=process.pid,
                kafka_address=(
                    ",".join(broker["kafka_address"] for broker in brokers)
                    if kafka_listener
                    else ""
                ),
                replication=REPLICATION,
                names={
                    broker.broker_id: broker.name for broker in admin.describe_cluster().brokers
                },
            )
    finally:
        stop(process, STOP_TIMEOUT_S)
