"""Configuration of one broker: a TOML file, overridden by the environment.

Nothing else in the broker reads a file of settings or the environment. The names below are the
file's: `[storage]` with `file_handles_max = 2000`, and in the environment
`MILLRACE_BROKER__STORAGE__FILE_HANDLES_MAX=2000`. Relative paths start at the working directory.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, cast

from millrace.broker.storage.log_config import LogConfig
from millrace.core import settings
from millrace.core.addresses import host_port
from millrace.core.errors import InvalidConfigError
from millrace.core.media import DEFAULT_MEDIA, Media
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.lease import LeaseTimes
from millrace.core.metadata.topic_config import TopicConfig
from millrace.core.positions.position import PositionsConfig
from millrace.core.replication.rules import ReplicationConfig
from millrace.core.settings import NO_LIMIT, Unit, Visibility, section, setting

ENVIRONMENT_PREFIX: Final = "MILLRACE_BROKER__"

DEFAULT_PORT: Final = 7092
DEFAULT_METRICS_PORT: Final = 7093
DEFAULT_REPLICA_PORT: Final = 7094
PORT_MAX: Final = 65_535

_REQUIRED: Final = cast(Any, MISSING)


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    """Who this broker is."""

    name: str = setting(
        "broker-0",
        "The broker's stable name. The cluster gives each name its number at the first start; "
        "a broker that comes back under its name finds its partitions again.",
    )
    rack: str = setting("", "The failure zone that the broker stands in, such as a cloud zone.")

    def validate(self) -> Iterator[str]:
        """Yield what is wrong."""
        if not self.name.strip():
            yield "name: must not be empty"


class CoordinationKind(StrEnum):
    """What keeps the cluster's metadata."""

    SQLITE = "sqlite"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True, kw_only=True)
class KubernetesConfig:
    """The API server that keeps the metadata, with `kind = "kubernetes"`."""

    cluster_name: str = setting(
        "millrace",
        "Name of this Millrace cluster: its ClusterState, StateShards and Lease are called after "
        "it. Clusters of different names can share a namespace.",
    )
    namespace: str = setting(
        "",
        "Namespace of these resources. Empty: the pod's own, or the one of the kubeconfig's "
        "context.",
    )
    kubeconfig: str = setting(
        "",
        "File that says how to reach the API server. Empty: as a pod does, by its service "
        "account, which needs the Role of [clusters.md](clusters.md).",
    )
    context: str = setting("", "Which context of the kubeconfig to use. Empty: its current one.")
    request_timeout_ms: int = setting(
        1500,
        "A request that is not answered for this long counts as lost, and is looked into before "
        "it is made again.",
        unit=Unit.MILLISECONDS,
        minimum=50,
        visibility=Visibility.TUNING,
    )
    requests_in_flight_max: int = setting(
        8,
        "How many objects are written, or read, side by side; the metadata is 33 of them.",
        minimum=1,
        maximum=64,
        visibility=Visibility.TUNING,
    )
    object_bytes_max: int = setting(
        1_500_000,
        "The largest object that is sent; a larger one is refused here. etcd takes 1.5 MiB, and "
        "the definitions in `crds/` as much of a state, unless they are told otherwise.",
        unit=Unit.BYTES,
        minimum=64 << 10,
        maximum=1 << 30,
        visibility=Visibility.TUNING,
    )

    def validate(self) -> Iterator[str]:
        """Yield what is wrong."""
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?", self.cluster_name, re.ASCII):
            yield (
                f"cluster_name = {self.cluster_name!r}: must be at most 40 of a-z, 0-9 and -, and "
                "begin and end with a letter or a digit"
            )
        if self.context and not self.kubeconfig:
            yield "context: is of a kubeconfig, and kubeconfig is not set"


_LEASE_MS: Final = {
    CoordinationKind.SQLITE: (1500, 1000, 250),
    CoordinationKind.KUBERNETES: (6000, 4000, 500),
}
"""How long a lease lasts, when its holder gives up, and how often it tries to renew it."""


@dataclass(frozen=True, kw_only=True)
class CoordinationConfig:
    """Where the cluster's metadata lives, and how its controller is elected."""

    kind: CoordinationKind = setting(
        CoordinationKind.SQLITE,
        "`sqlite`: a file of one machine, whose brokers open it. `kubernetes`: "
        "resources of the API server.",
    )
    path: str = setting(
        "",
        "File of the SQLite database that holds the cluster's metadata, needed with "
        '`kind = "sqlite"`. Keep it as safe as the logs: without it they cannot be told apart.',
    )
    shared: bool = setting(
        False,
        "Whether several brokers of this machine use the file, which makes them one cluster. All "
        "of them must say so.",
    )
    lease_duration_ms: int = setting(
        -1,
        "How long a controller may be silent before another broker takes over.",
        unit=Unit.MILLISECONDS,
        minimum=100,
        minus_one="1500 with SQLite, 6000 with Kubernetes",
        visibility=Visibility.TUNING,
    )
    lease_renew_deadline_ms: int = setting(
        -1,
        "A controller that could not renew its lease for this long stops acting as one.",
        unit=Unit.MILLISECONDS,
        minimum=50,
        minus_one="1000 with SQLite, 4000 with Kubernetes",
        visibility=Visibility.TUNING,
    )
    lease_retry_ms: int = setting(
        -1,
        "Pause between two attempts to renew the lease.",
        unit=Unit.MILLISECONDS,
        minimum=10,
        minus_one="250 with SQLite, 500 with Kubernetes",
        visibility=Visibility.TUNING,
    )
    lease_watch_ms: int = setting(
        -1,
        "Longest pause between two looks of a broker at another's lease. It watches it, and looks "
        "at once when it changes; this is for what a watch does not tell.",
        unit=Unit.MILLISECONDS,
        minimum=10,
        minus_one="as lease_retry_ms",
        visibility=Visibility.TUNING,
    )
    kubernetes: KubernetesConfig = section(KubernetesConfig)

    @property
    def lease_times(self) -> LeaseTimes:
        """How the controller's lease is held."""
        duration_ms, renew_deadline_ms, retry_ms = _LEASE_MS[self.kind]

        def chosen(value: int, default: int) -> int:
            return default if value == -1 else value

        retry_ms = chosen(self.lease_retry_ms, retry_ms)
        return LeaseTimes(
            duration_ms=chosen(self.lease_duration_ms, duration_ms),
            renew_deadline_ms=chosen(self.lease_renew_deadline_ms, renew_deadline_ms),
            retry_ms=retry_ms,
            watch_ms=chosen(self.lease_watch_ms, retry_ms),
        )

    def validate(self) -> Iterator[str]:
        """Yield what is wrong between the settings."""
        if self.kind is CoordinationKind.SQLITE and not self.path:
            yield "path: is required with kind = 'sqlite': a file for the cluster's metadata"
        times = self.lease_times
        if times.watch_ms > times.retry_ms:
            yield (
                f"lease_watch_ms = {times.watch_ms}: must not be more than lease_retry_ms = "
                f"{times.retry_ms}"
            )
        if not times.retry_ms < times.renew_deadline_ms < times.duration_ms:
            yield (
                "lease_retry_ms < lease_renew_deadline_ms < lease_duration_ms must hold: a "
                "controller stops before another may start, and has tried more than once by then"
            )
        if (
            self.kind is CoordinationKind.KUBERNETES
            and 2 * self.kubernetes.request_timeout_ms > times.renew_deadline_ms
        ):
            yield (
                "kubernetes.request_timeout_ms: must be at most half of lease_renew_deadline_ms, "
                "so that a renewal that hangs is not the last one"
            )


@dataclass(frozen=True, kw_only=True)
class ListenerConfig:
    """Where clients connect."""

    host: str = setting(
        "127.0.0.1",
        "Address to listen on. There is no access control yet: only hosts that you trust should "
        "reach it.",
    )
    port: int = setting(DEFAULT_PORT, "Port to listen on; 0: one that is free.", maximum=PORT_MAX)
    advertised_host: str = setting(
        "",
        "Host name that clients are told to connect to. Empty: `host`, or this machine's name "
        "when that is a wildcard.",
    )
    advertised_port: int = setting(
        0,
        "Port that clients are told to connect to. 0: the one that is listened on.",
        maximum=PORT_MAX,
    )


@dataclass(frozen=True, kw_only=True)
class OutsideListenerConfig:
    """Where clients connect that reach brokers by other addresses, as from outside of Kubernetes.

    They are told these addresses of all brokers; who connects to `[listener]` is told that one's.
    The limits of connections count for each of the two.
    """

    host: str = setting(
        "127.0.0.1",
        "Address to listen on. There is no access control yet: only hosts that you trust should "
        "reach it.",
    )
    port: int = setting(
        -1,
        "Port to listen on; 0: one that is free.",
        maximum=PORT_MAX,
        minus_one="no such listener",
    )
    advertised_host: str = setting(
        "",
        "Host name that these clients are told to connect to. Empty: `host`, or this machine's "
        "name when that is a wildcard.",
    )
    advertised_port: int = setting(
        0,
        "Port that these clients are told to connect to. 0: the one that is listened on.",
        maximum=PORT_MAX,
    )
    address_file: str = setting(
        "",
        "File of one line, `host:port`, that says instead what these clients are told; without a "
        "host, `:port`, the host is as above. It is read again every second, so that the address "
        "may be given to a broker that runs; while there is no such file, or it is empty, clients "
        "are told none. The operator for Kubernetes writes it.",
    )


@dataclass(frozen=True, kw_only=True)
class ReplicaListenerConfig:
    """Where the cluster's other brokers connect: followers, and everybody to the controller."""

    host: str = setting(
        "127.0.0.1",
        "Address to listen on. There is no access control yet: whoever reaches it can change "
        "everything. Only the cluster's brokers should.",
    )
    port: int = setting(
        DEFAULT_REPLICA_PORT, "Port to listen on; 0: one that is free.", maximum=PORT_MAX
    )
    advertised_host: str = setting(
        "",
        "Host name that brokers are told to connect to. Empty: `host`, or this machine's name "
        "when that is a wildcard.",
    )
    advertised_port: int = setting(
        0,
        "Port that brokers are told to connect to. 0: the one that is listened on.",
        maximum=PORT_MAX,
    )


@dataclass(frozen=True, kw_only=True)
class MetricsConfig:
    """The page `/metrics` for Prometheus."""

    host: str = setting(
        "127.0.0.1", "Address to listen on. Prometheus is to reach it: in a pod, `0.0.0.0`."
    )
    port: int = setting(
        DEFAULT_METRICS_PORT,
        "Port to listen on; 0: one that is free.",
        maximum=PORT_MAX,
        minus_one="no metrics page",
    )


class LogFormat(StrEnum):
    """How the broker's own log lines look."""

    AUTO = "auto"
    HUMAN = "human"
    JSON = "json"


class LogLevel(StrEnum):
    """From which weight on an event of the broker is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True)
class LoggingConfig:
    """The broker's own log, on standard error."""

    level: LogLevel = setting(LogLevel.INFO, "The least level that is logged.")
    format: LogFormat = setting(LogFormat.AUTO, "`auto`: for people on a terminal, JSON elsewhere.")


@dataclass(frozen=True, kw_only=True)
class StorageConfig:
    """Files of the log, for all log directories."""

    recovery_point_bytes: int = setting(
        64 << 20,
        "A partition is flushed after this many bytes at the latest, in both durability modes; "
        "what lies behind is checked whole after a crash.",
        unit=Unit.BYTES,
        minimum=1 << 20,
        visibility=Visibility.TUNING,
    )
    recovery_point_interval_ms: int = setting(
        10_000,
        "And after this time at the latest.",
        unit=Unit.MILLISECONDS,
        minimum=100,
        visibility=Visibility.TUNING,
    )
    file_handles_max: int = setting(
        1000,
        "Most segment files that are open at a time, the ones in use excepted; the least recently "
        "used is closed.",
        minimum=16,
        maximum=1_000_000,
        visibility=Visibility.TUNING,
    )
    ballast_bytes: int = setting(
        64 << 20,
        "Space that each log directory takes in advance, so that recovery points can still be "
        "written, and a broker be started, when the disk is full; 0 takes none. Records are "
        "refused until it could be taken. A broker whose disk was full leads again when as much "
        "is free.",
        unit=Unit.BYTES,
        maximum=1 << 40,
        visibility=Visibility.TUNING,
    )
    slow_flush_ms: int = setting(
        2000,
        "A flush of a `durability=fsync` topic that takes this long is slow. A broker of whose "
        "last ten three were slow, or that hangs in one, lets other in-sync replicas lead until "
        "its disk has been well for a while. Disks that work do not come near it.",
        unit=Unit.MILLISECONDS,
        minimum=10,
        minus_one="no flush is slow",
        visibility=Visibility.TUNING,
    )
    index_cache_bytes: int = setting(
        32 << 20,
        "Memory for index entries of each log directory, over all its partitions.",
        unit=Unit.BYTES,
        minimum=64 << 10,
        maximum=1 << 40,
        visibility=Visibility.TUNING,
    )
    retention_check_interval_ms: int = setting(
        300_000,
        "Pause between two looks for segments to delete. "
        "Kafka's `log.retention.check.interval.ms`.",
        unit=Unit.MILLISECONDS,
        minimum=10,
    )
    trash_delay_ms: int = setting(
        86_400_000,
        "How long files of a deleted topic, or of a replica that was moved away, stay in the log "
        "directory, under names that end in `.deleted`, and take space. Who removes them has the "
        "space at once. The topic does not come back; its records can be read there until then. "
        "Kafka's `file.delete.delay.ms`, which is a minute there.",
        unit=Unit.MILLISECONDS,
    )
    damaged_logs_max: int = setting(
        16,
        "Damaged logs that each log directory keeps, under names that end in `.damaged`, after the "
        "replica was fetched anew from another broker. With as many, the next damaged replica "
        "stays offline: a disk that damages so many should be replaced.",
        minimum=1,
    )
    scrub_bytes_per_second: int = setting(
        8 << 20,
        "How fast closed segments are read again in the background, to find bits that rotted. "
        "Choose it so that all of a log directory is read within 7 days.",
        unit=Unit.BYTES,
        minimum=1 << 10,
        minus_one="no scrubbing",
    )
    producer_id_expiration_ms: int = setting(
        86_400_000,
        "A producer that wrote nothing for this long is forgotten; a later retry of its last "
        "batches would not be recognised. So is the one that was silent longest when a partition "
        "has 20000. Kafka's `producer.id.expiration.ms`.",
        unit=Unit.MILLISECONDS,
        minimum=1,
    )

    def log_config(self, topic: TopicConfig) -> LogConfig:
        """Return the settings of a topic's logs: the topic's own, and these."""
        return LogConfig(
            segment_bytes=topic.segment_bytes,
            segment_ms=topic.segment_ms,
            index_interval_bytes=topic.index_interval_bytes,
            retention_ms=topic.retention_ms,
            retention_bytes=topic.retention_bytes,
            checkpoint_bytes=self.recovery_point_bytes,
            checkpoint_ms=self.recovery_point_interval_ms,
        )


@dataclass(frozen=True, kw_only=True)
class LimitsConfig:
    """Bounds on what strangers can make the broker hold. A request beyond one is refused."""

    message_bytes_max: int = setting(
        8 << 20,
        "The largest message on the wire, in either direction; an answer that would be larger "
        "fails its call. What a broker gets of another one, the whole metadata too, may be up to "
        "1 GiB.",
        unit=Unit.BYTES,
        minimum=64 << 10,
        maximum=512 << 20,
    )
    batch_inflated_bytes_max: int = setting(
        8 << 20,
        "The largest record batch once inflated. A decompression bomb ends here.",
        unit=Unit.BYTES,
        minimum=64 << 10,
        maximum=settings.BATCH_INFLATED_BYTES_MAX,
    )
    request_memory_bytes_max: int = setting(
        256 << 20,
        "Most memory for requests that are being handled, over all connections: until their "
        "batches are acknowledged or refused. At the bound, streams are not read until some is "
        "free. What has come of a message that is not whole yet, or waits to be counted, is held "
        "beside it: see `connection_streams_max`.",
        unit=Unit.BYTES,
        minimum=1 << 20,
        maximum=1 << 40,
    )
    connection_request_memory_bytes_max: int = setting(
        32 << 20,
        "The share of it that one connection may take.",
        unit=Unit.BYTES,
        minimum=64 << 10,
        maximum=1 << 40,
    )
    produce_requests_in_flight_max: int = setting(
        256,
        "Most requests of one produce stream that are not answered yet. "
        "At the bound, the stream is not read until one is.",
        minimum=1,
        maximum=100_000,
    )
    request_entries_max: int = setting(
        10_000,
        "Most partitions or topics that one request may name, produced ones too.",
        minimum=1,
        maximum=1_000_000,
    )
    request_timeout_ms_max: int = setting(
        60_000,
        "The longest that a write may wait for its replicas, whatever the client asks for.",
        unit=Unit.MILLISECONDS,
        minimum=100,
    )
    early_request_wait_ms: int = setting(
        500,
        "How long a request waits at a broker that has yet to hear that it leads the partition: "
        "whoever heard first sends clients there. Refused, they would come again after a pause.",
        unit=Unit.MILLISECONDS,
        minimum=0,
        maximum=10_000,
        visibility=Visibility.TUNING,
    )
    fetch_wait_ms_max: int = setting(
        60_000,
        "The longest that a fetch may wait for records, whatever the client asks for.",
        unit=Unit.MILLISECONDS,
        minimum=100,
    )
    fetch_response_bytes_max: int = setting(
        1 << 20,
        "Records in one answer to a fetch, a first batch that is larger excepted. "
        "A slow or dead reader holds one answer at most.",
        unit=Unit.BYTES,
        minimum=1024,
        maximum=512 << 20,
    )
    fetch_session_partitions_max: int = setting(
        10_000,
        "Most partitions that one fetch stream of a client may follow; more are refused. Another "
        "broker follows as many as `cluster.broker_partitions_max` lets it have.",
        minimum=1,
        maximum=1_000_000,
    )
    controller_requests_in_flight_max: int = setting(
        1000,
        "Most requests of one broker that the controller has not answered yet. At the bound, "
        "its stream is not read until one is.",
        minimum=1,
        maximum=100_000,
        visibility=Visibility.TUNING,
    )
    controller_lag_bytes_max: int = setting(
        16 << 20,
        "Metadata that waits for a broker which does not keep up. Beyond that it is dropped, and "
        "the broker gets everything anew.",
        unit=Unit.BYTES,
        minimum=64 << 10,
        visibility=Visibility.TUNING,
    )
    connections_max: int = setting(
        5000,
        "Most connections at a time of each listener, the clients', the outside one and the "
        "brokers'; a further one is refused, and the log and `millrace_connections` say so. "
        "Where more than nine tenths are used, those without a call under way are closed, the "
        "longest quiet first. They are fewer where the process may not open as many files "
        "(`ulimit -Hn`).",
        minimum=1,
        maximum=1_000_000,
    )
    connection_streams_max: int = setting(
        64,
        "Most calls at a time on one connection; a further one waits. Each may hold "
        "`message_bytes_max` of a message that never becomes whole, whatever it calls, or 4 MiB "
        "that nobody has read yet: of a hostile connection the broker holds up to 528 MiB with the "
        "defaults, see [limits.md](limits.md#hostile-clients).",
        minimum=1,
    )
    connection_silence_ms_max: int = setting(
        10_000,
        "A connection that has made no call by then is closed, whatever it has sent: nothing, or a "
        "part of a frame.",
        unit=Unit.MILLISECONDS,
        minimum=1000,
    )
    connection_idle_ms_max: int = setting(
        600_000,
        "A connection without any call is closed after this time. "
        "Kafka's `connections.max.idle.ms`.",
        unit=Unit.MILLISECONDS,
        minimum=1000,
        minus_one=NO_LIMIT,
    )
    handshake_ms_max: int = setting(
        3000,
        "A connection that has not finished its handshake by then is closed.",
        unit=Unit.MILLISECONDS,
        minimum=100,
    )
    keepalive_interval_ms: int = setting(
        30_000,
        "A silent connection is pinged this often, to find peers that are gone.",
        unit=Unit.MILLISECONDS,
        minimum=1000,
    )
    keepalive_timeout_ms: int = setting(
        10_000,
        "A connection is closed when a ping is not answered for this long.",
        unit=Unit.MILLISECONDS,
        minimum=100,
    )
    replica_keepalive_ms: int = setting(
        5_000,
        "The same for connections between brokers, the ping's answer likewise. Of a connection "
        "that only one end knows to be gone a follower hears so late.",
        unit=Unit.MILLISECONDS,
        minimum=100,
        visibility=Visibility.TUNING,
    )
    client_ping_interval_ms_min: int = setting(
        10_000,
        "Clients that ping more often than this, and do so three times, are cut off.",
        unit=Unit.MILLISECONDS,
        minimum=100,
        visibility=Visibility.TUNING,
    )
    call_metadata_bytes_max: int = setting(
        16 << 10,
        "The largest header block of a call.",
        unit=Unit.BYTES,
        minimum=4 << 10,
        maximum=1 << 20,
        visibility=Visibility.TUNING,
    )

    def validate(self) -> Iterator[str]:
        """Yield what is wrong between the settings."""
        if self.connection_request_memory_bytes_max > self.request_memory_bytes_max:
            yield (
                "connection_request_memory_bytes_max: must not be more than "
                "request_memory_bytes_max"
            )
        if self.message_bytes_max > self.connection_request_memory_bytes_max:
            yield ("message_bytes_max: must not be more than connection_request_memory_bytes_max")
        if self.fetch_response_bytes_max >= self.message_bytes_max:
            yield "fetch_response_bytes_max: must be less than message_bytes_max"


@dataclass(frozen=True, kw_only=True)
class ThreadsConfig:
    """Threads beside the event loop; each log directory has two more: one appends, one flushes."""

    check: int = setting(
        2,
        "Threads that check and inflate the batches of producers.",
        minimum=1,
        maximum=256,
        visibility=Visibility.TUNING,
    )
    read: int = setting(
        4,
        "Threads of each log directory for reads that are not in the page cache.",
        minimum=1,
        maximum=256,
        visibility=Visibility.TUNING,
    )


@dataclass(frozen=True, kw_only=True)
class ShutdownConfig:
    """How the broker stops."""

    grace_ms: int = setting(
        10_000,
        "How long calls in flight may take to end after SIGTERM; logs are closed cleanly after "
        "that in any case.",
        unit=Unit.MILLISECONDS,
    )


class LogDirConfig(NamedTuple):
    """One of `log_dirs`."""

    path: str
    media: Media

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `PATH`, `ssd:PATH` or `hdd:PATH`.

        Raises:
            ValueError: the text is nothing of the kind; says what would be.
        """
        media, colon, path = text.partition(":")
        if not colon or "/" in media:  # `./a:b` is a path with a colon in it.
            return cls(text, DEFAULT_MEDIA)
        if media not in list(Media) or not path:
            raise ValueError(
                f"{text!r} must be a path, or {' or '.join(f'{each}:PATH' for each in Media)}; "
                "write a relative path with a colon in it as ./PATH"
            )
        return cls(path, Media(media))


@dataclass(frozen=True, kw_only=True)
class BrokerConfig:
    """Configuration of one broker process."""

    log_dirs: tuple[str, ...] = setting(
        _REQUIRED,
        "Directories that hold the partitions' logs, one per disk, as `ssd:PATH` or `hdd:PATH`; a "
        "mere path counts as `ssd`. New partitions go to the one with the fewest, of those on the "
        "media that the topic asks for; one that fails takes only its own partitions offline.",
    )
    node: NodeConfig = section(NodeConfig)
    coordination: CoordinationConfig = section(CoordinationConfig)
    cluster: ClusterConfig = section(ClusterConfig)
    listener: ListenerConfig = section(ListenerConfig)
    outside_listener: OutsideListenerConfig = section(OutsideListenerConfig)
    replica_listener: ReplicaListenerConfig = section(ReplicaListenerConfig)
    replication: ReplicationConfig = section(ReplicationConfig)
    positions: PositionsConfig = section(PositionsConfig)
    metrics: MetricsConfig = section(MetricsConfig)
    logging: LoggingConfig = section(LoggingConfig)
    storage: StorageConfig = section(StorageConfig)
    limits: LimitsConfig = section(LimitsConfig)
    threads: ThreadsConfig = section(ThreadsConfig)
    shutdown: ShutdownConfig = section(ShutdownConfig)

    @property
    def log_directories(self) -> tuple[LogDirConfig, ...]:
        """The directories of `log_dirs`."""
        return tuple(map(LogDirConfig.parse, self.log_dirs))

    def validate(self) -> Iterator[str]:
        """Yield what is wrong between the settings."""
        try:
            paths = {os.path.realpath(each.path) for each in self.log_directories}
        except ValueError as error:
            yield f"log_dirs = {', '.join(self.log_dirs)}: {error}"
        else:
            if len(paths) < len(self.log_dirs):
                yield f"log_dirs = {', '.join(self.log_dirs)}: names a directory twice"
        coordination = self.coordination
        if (
            coordination.kind is CoordinationKind.KUBERNETES
            and self.cluster.shard_bytes_max > coordination.kubernetes.object_bytes_max
        ):
            yield (
                "cluster.shard_bytes_max: must not be more than "
                "coordination.kubernetes.object_bytes_max, or topics are made that cannot be stored"
            )


def load(path: str | Path, environment: Mapping[str, str] = os.environ) -> BrokerConfig:
    """Read the configuration from a TOML file and `MILLRACE_BROKER__...` variables over it.

    Raises:
        InvalidConfigError: the file cannot be read, or lists every problem of what it says.
    """
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidConfigError(f"{path}: is not TOML: {error}") from error
    variables: dict[str, str] = {}
    problems = _override(values, environment, variables)
    if problems:
        raise InvalidConfigError("\n".join(problems))
    try:
        return settings.parse(BrokerConfig, values)
    except InvalidConfigError as error:
        raise InvalidConfigError(_by_origin(error.message, path, variables)) from error


def check_settings(sections: Mapping[str, object]) -> None:
    """Hold settings by section and name against what a broker would start with.

    Raises:
        InvalidConfigError: lists the problems.
    """
    given: dict[str, object] = {
        "log_dirs": ["log"],
        "coordination": {"kind": CoordinationKind.KUBERNETES.value},
    }
    settings.parse(BrokerConfig, given | dict(sections))


def _by_origin(problems: str, path: str | Path, variables: Mapping[str, str]) -> str:
    """Return problems of settings below the file, or by the variables, that they come from."""
    of_file, of_variables = [], []
    for line in problems.splitlines():
        found = re.match(r"[\w.]+", line)
        variable = variables.get(found[0]) if found else None
        if variable is None:
            of_file.append(line)
        else:
            of_variables.append(f"{variable}: {line}")
    return "\n".join([*([f"{path}:", *of_file] if of_file else []), *of_variables])


def kubernetes_service(environment: Mapping[str, str] = os.environ) -> str:
    """Return the URL of the API server as a pod's environment has it; empty outside of pods."""
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    if not host:
        return ""
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    return f"https://{host_port(host, port)}"


def embedded(
    data_dir: str | Path,
    *,
    log_dirs: Sequence[str] = (),
    port: int = DEFAULT_PORT,
    metrics_port: int = DEFAULT_METRICS_PORT,
) -> BrokerConfig:
    """Return the configuration of `millrace up`: everything in one directory, on loopback.

    Args:
        log_dirs: where the logs are; else in that directory, too.
    """
    return BrokerConfig(
        log_dirs=tuple(log_dirs) or (f"{DEFAULT_MEDIA}:{Path(data_dir, 'log')}",),
        coordination=CoordinationConfig(path=str(Path(data_dir, "coordination.sqlite"))),
        # Processes of one machine hear of each other sooner than machines do.
        cluster=ClusterConfig(broker_session_timeout_ms=2000),
        listener=ListenerConfig(port=port),
        replica_listener=ReplicaListenerConfig(port=0),
        metrics=MetricsConfig(port=metrics_port),
    )


def _override(
    values: dict[str, Any], environment: Mapping[str, str], variables: dict[str, str]
) -> list[str]:
    """Put the environment's settings over the file's; return what cannot be placed.

    Args:
        values: of the file; is changed.
        environment: all variables.
        variables: gets those that were placed, by the name of the setting, or of a section that
            is not in the file.
    """
    problems = []
    for variable, value in sorted(environment.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        *sections, name = variable.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
        place = values
        for depth, each in enumerate(sections, 1):
            if each not in place:
                variables[".".join(sections[:depth])] = variable
            place = place.setdefault(each, {})
            if not isinstance(place, dict):
                problems.append(f"{variable}: {each} is a setting, not a section")
                break
        else:
            place[name] = value
            variables[".".join((*sections, name))] = variable
    return problems
