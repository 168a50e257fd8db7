"""A cluster of real brokers on hosts, disks and clocks that can fail, and how to heal it."""

import os
import signal
import time
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Self

from tests.faults import latest
from tests.faults.catalogue import Seeing
from tests.faults.history import History
from tests.faults.machine import Need
from tests.faults.metadata import PLACES, View, Watcher
from tests.faults.network import BridgeHost, Host, NamespacedHost
from tests.faults.preload import Control
from tests.faults.volume import Folder, Volume
from tests.integration.running_broker import START_SECONDS_MAX, RunningBroker
from tests.releases.last import Release

from millrace.client import SyncAdmin
from millrace.core.errors import MillraceError

BROKERS: Final = 3
SESSION_MS: Final = 4_000
"""Of the members of consumer groups."""
HEAL_SECONDS_MAX: Final = 90.0
SETTINGS: Final[dict[str, object]] = {
    "insecure": "true",  # Hosts of their own, in plain text.
    # Settings as for one machine, and short times, so that many faults fit into a minute.
    "cluster.broker_session_timeout_ms": 2000,
    "replication.replica_lag_time_max_ms": 2000,
    "replication.isr_rejoin_pause_ms": 200,
    "storage.recovery_point_interval_ms": 1000,
    "storage.recovery_point_bytes": 1 << 20,
    "storage.scrub_bytes_per_second": 256 << 20,
    "cluster.deleted_topic_retention_ms": 0,
    "storage.trash_delay_ms": 0,
    # Logs are compacted all the time, and slowly enough to be met by a fault.
    "storage.cleaner_backoff_ms": 200,
    "storage.cleaner_io_max_bytes_per_second": 512 << 10,
    "storage.retention_check_interval_ms": 1000,
    "coordination.shared": "true",
    "cluster.transactions_partitions": 4,
    "groups.session_timeout_ms": SESSION_MS,
    "groups.heartbeat_interval_ms": SESSION_MS // 4,
    "groups.classic_session_timeout_ms_min": SESSION_MS,
    "groups.classic_rebalance_delay_ms": 100,
    "listeners.clients_kafka.port": 0,
    "logging.format": "json",
    "shutdown.grace_ms": 2000,
}
_VOLUME_MEBIBYTES: Final = 1024
"""A round of all faults leaves about 400: a disk is full only when a fault fills it."""
_STORE_MEBIBYTES: Final = 32


def zone_of(number: int) -> str:
    """The zone of a broker: each has its own."""
    return f"zone-{number}"


class NotWholeError(AssertionError):
    """The cluster did not become whole in time after its faults had ended."""


class Node(RunningBroker):
    """One broker with its host, its disk and its clocks.

    Attributes:
        is_spoilt: whether its disk must be replaced to heal the cluster.
    """

    def __init__(
        self,
        number: int,
        folder: Path,
        *,
        host: Host,
        disk: Folder,
        control: Control,
        store: Path,
        release: Release | None,
    ) -> None:
        self.name = f"broker-{number}"
        super().__init__(
            folder,
            SETTINGS
            | {
                "node.name": self.name,
                "node.rack": zone_of(number),
                "coordination.path": store,
                "listeners.clients.host": host.address,
                "listeners.replicas.host": host.address,
                "metrics.host": host.address,
            },
            log_dirs=[disk.path / "log"],
            wrapper=[*host.enter, "env", *control.environment],
        )
        self.release = release
        self.host = host
        self.disk = disk
        self.control = control
        self.is_spoilt = False
        self._is_paused = False
        self._starting: Future[RunningBroker] | None = None

    @property
    def volume(self) -> Volume:
        """Its disk, if that can fail."""
        assert isinstance(self.disk, Volume)
        return self.disk

    def pause(self) -> None:
        """Pause the process (SIGSTOP)."""
        os.kill(self.pid, signal.SIGSTOP)
        self._is_paused = True

    def resume(self) -> None:
        """Resume the process (SIGCONT)."""
        if self._is_paused and self.is_running:
            os.kill(self.pid, signal.SIGCONT)
        self._is_paused = False

    def kill(self) -> None:
        """Kill it as a crash would, if it runs."""
        self._is_paused = False
        if self.is_running:
            super().kill()

    def start_in_background(self) -> None:
        """Start it; `wait_until_started` shows whether it gets ready."""
        self._starting = ThreadPoolExecutor(1).submit(self.start)

    def wait_until_started(self) -> None:
        """Return once the broker that was started in the background is ready."""
        starting, self._starting = self._starting, None
        if starting is not None:
            starting.result(START_SECONDS_MAX)

    @contextmanager
    def twin(self, log_directory: Path) -> Iterator[RunningBroker]:
        """Run another broker of the same name on the same host, with a given log directory."""
        settings = {**self.settings, "metrics.port": -1}
        twin = RunningBroker(
            self.folder / "twin", settings, log_dirs=[log_directory], wrapper=self.host.enter
        )
        yield twin
        twin.log_path.unlink()

    def log_size(self) -> int:
        """The present end of its own log, for `logged_since`."""
        return self.log_path.stat().st_size

    def logged_since(self, size: int) -> str:
        """Return what it logged after a position."""
        with self.log_path.open("rb") as log:
            log.seek(size)
            return log.read().decode(errors="replace")


class Cluster(Seeing):
    """Brokers, their hosts and their disks. Enter it to start it.

    Args:
        folder: for all files.
        able: what the machine can do.
        library: to be preloaded, if it can be.
        history: gets the states of the metadata.
        release: that the brokers begin with; None: this checkout.
    """

    def __init__(
        self,
        folder: Path,
        able: Collection[Need],
        library: Path | None,
        history: History,
        release: Release | None = None,
    ) -> None:
        self.folder = folder
        self.release = release
        self._able = able
        self._library = library
        self._history = history
        self._opened = ExitStack()
        self.nodes: list[Node] = []
        self.clients_host = Host("127.0.0.1")

    def __enter__(self) -> Self:
        with self._opened:
            self._make()
            self._opened = self._opened.pop_all()
        return self

    def _make(self) -> None:
        has_hosts = Need.NAMESPACES in self._able
        if has_hosts:
            self.clients_host = BridgeHost()
            self._opened.callback(self.clients_host.close)
        self.store = self._disk("store", _STORE_MEBIBYTES)
        for number in range(BROKERS):
            host = NamespacedHost(number) if has_hosts else Host(f"127.0.0.{number + 1}")
            self._opened.callback(host.close)
            disk = self._disk(f"disk-{number}", _VOLUME_MEBIBYTES)
            control = Control(self.folder / f"control-{number}", self._library)
            folder = self.folder / f"node-{number}"
            node = Node(
                number,
                folder,
                host=host,
                disk=disk,
                control=control,
                store=self.store_file,
                release=self.release,
            )
            self._opened.callback(node.abandon)
            self.nodes.append(node)
        self.start(self.nodes)
        self.watcher = Watcher(self.store_file, self._history)
        self._opened.callback(self.watcher.stop)
        with SyncAdmin(self.bootstrap) as admin:
            for topic in PLACES.topics:
                # Records of t1 have the broker's time, which shows its clock.
                stamps = {"message.timestamp.type": "LogAppendTime"} if topic == "t1" else {}
                admin.create_topic(
                    topic,
                    partitions=2,
                    replication_factor=BROKERS,
                    config={"segment.bytes": str(1 << 20), **stamps},
                )
            admin.create_topic(
                latest.TOPIC,
                partitions=latest.PARTITIONS,
                replication_factor=BROKERS,
                config=latest.CONFIG,
            )
        self.watcher.start()
        self.wait_until_whole()

    def _disk(self, name: str, mebibytes: int) -> Folder:
        path = self.folder / name
        disk = Volume(path, mebibytes) if Need.VOLUMES in self._able else Folder(path)
        self._opened.callback(disk.close)
        return disk

    @property
    def store_file(self) -> Path:
        """The database of the metadata."""
        return self.store.path / "coordination.sqlite"

    @property
    def store_volume(self) -> Volume:
        """The disk under it, if that can fail."""
        assert isinstance(self.store, Volume)
        return self.store

    @property
    def bootstrap(self) -> str:
        return ",".join(node.address for node in self.nodes)

    @property
    def kafka_bootstrap(self) -> str:
        """Where clients of Kafka begin; a broker of the last release has nothing for them."""
        return ",".join(node.kafka_address for node in self.nodes if node.kafka_address)

    @property
    def view(self) -> View:
        """The latest view of the store."""
        found = self.watcher.view
        assert found is not None
        return found

    def look(self) -> View:
        """A view of the store at this moment, if it can be read."""
        self.watcher.look()
        return self.view

    def node(self, broker_id: int) -> Node:
        """The node of a broker id."""
        name = self.view.cluster.brokers[broker_id].name  # type: ignore[index]
        return self.named(name)

    def named(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def id_of(self, node: Node) -> int:
        return self.view.broker(node.name).broker_id

    @property
    def controller(self) -> Node:
        """The node of the active controller, by the lease."""
        return self.named(self.look().controller)

    def others(self, *nodes: Node) -> list[Node]:
        return [node for node in self.nodes if node not in nodes]

    def start(self, nodes: Iterable[Node]) -> None:
        """Start brokers in parallel; return when clients can connect to each."""
        found = list(nodes)
        if found:
            with ThreadPoolExecutor(len(found)) as pool:
                for started in [pool.submit(node.start) for node in found]:
                    started.result()

    def cut(self, one: Host, other: Host, *, ways: int = 2) -> None:
        """Drop packets from the other host; with two ways, in both directions."""
        one.drop_from(other.address)
        if ways == 2:
            other.drop_from(one.address)

    def heal(self) -> None:
        """End every fault, start dead brokers, and wait until the cluster is whole."""
        self.clients_host.heal()
        for node in self.nodes:
            node.host.heal()
            node.control.heal()
            node.resume()
            node.wait_until_started()
            if node.is_spoilt or not node.is_running:
                node.abandon()
            if node.is_spoilt:
                node.disk.empty()
                node.is_spoilt = False
            else:
                node.disk.heal()
        self.store.heal()
        self.start(node for node in self.nodes if not node.is_running)
        self.wait_until_whole()

    def wait_until_whole(self, seconds: float = HEAL_SECONDS_MAX) -> None:
        """Return once every replica is in sync, twice in a row.

        Raises:
            NotWholeError: says what is missing.
        """
        deadline = time.monotonic() + seconds
        times = 0
        while times < 2:
            self.watcher.look()
            view = self.watcher.view
            missing = "no metadata" if view is None else view.what_is_missing()
            times = 0 if missing else times + 1
            if time.monotonic() > deadline:
                raise NotWholeError(f"not whole within {seconds} s: {missing}; {self.replicas()}")
            time.sleep(0.1)

    def replicas(self) -> str:
        """Describe every replica's state, for messages."""
        try:
            with SyncAdmin(self.bootstrap, request_timeout_ms=5000) as admin:
                logs = [log for topic in PLACES.topics for log in admin.describe_logs(topic)]
        except MillraceError as error:
            return repr(error)
        return "\n".join(
            f"{log.topic}/{log.partition} on {log.broker_id}: end {log.log_end_offset}, "
            f"committed {log.high_watermark}, flushed {log.flushed_offset}"
            for log in sorted(logs, key=lambda log: (log.topic, log.partition, log.broker_id))
        )

    def __exit__(self, *_: object) -> None:
        self._opened.close()
