"""The settings of one broker: what `broker.toml` may say, section by section.

They are in the core because the operator reads them, too: it fills them in, checks them, and makes
the definitions of its resources from them.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self, cast

from millrace.core import settings
from millrace.core.addresses import PORT_MAX, is_loopback
from millrace.core.controller.lease import LeaseTimes
from millrace.core.coordinator.groups.config import GroupsConfig
from millrace.core.coordinator.positions.position import PositionsConfig
from millrace.core.coordinator.transactions.config import TransactionsConfig
from millrace.core.kafka_config import KafkaConfig
from millrace.core.listeners_config import ListenersConfig
from millrace.core.media import DEFAULT_MEDIA, Media
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.requests import parse_accepted_copy
from millrace.core.quotas.config import QuotasConfig
from millrace.core.replica.replication.rules import ReplicationConfig
from millrace.core.settings import (
    INT32_MAX,
    NO_LIMIT,
    Unit,
    Visibility,
    constant,
    section,
    setting,
)

DEFAULT_METRICS_PORT: Final = 7093

_REQUIRED: Final = cast(Any, MISSING)


OLDER_COPY_ANNOTATION: Final = "millrace.dev/accept-older-copy"
"""Annotation of a broker's pod on Kubernetes from which `node.accept_older_copy` is taken."""


def _parse_copy(value: Any) -> str:
    """Return the two broker epochs of an older copy, or an empty text, which accepts no copy.

    Without its annotation, a pod has the variable with an empty text.
    """
    text = value.strip() if isinstance(value, str) else "no text"
    if text:
        parse_accepted_copy(text)
    return text


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    """The broker's identity."""

    name: str = setting(
        "broker-0",
        "The broker's stable name. The cluster gives each name its number at the first start; "
        "a broker that comes back under its name finds its partitions again.",
    )
    rack: str = setting(
        "",
        "The failure zone of the broker, such as a cloud zone. Empty: the one that it had last.",
        kafka="broker.rack",
    )
    initial_brokers_file: str = setting(
        "",
        "File of one number that replaces `cluster.initial_brokers`. The broker reads it again "
        "every second, so that a new cluster can be made smaller while its first brokers start. "
        "The setting counts until the file has a number. The operator for Kubernetes "
        "writes the file.",
    )
    accept_older_copy: str = setting(
        "",
        "Start with an older copy of the log directories, whose newest one is lost: two broker "
        "epochs, as `17/20`, which the refusal of this copy names. The first one is of the copy, "
        "and the second one of the directories that are lost. The copy then counts as a lost disk: "
        "what other replicas have is fetched from them, and what none has is lost. No other copy "
        "is accepted by it, and this one not again later. On Kubernetes it is the annotation "
        "`millrace.dev/accept-older-copy` of the pod.",
        parse=_parse_copy,
        allowed="two broker epochs",
        default_text="none",
    )

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
        "A request without an answer for this long counts as lost; its outcome is checked before a "
        "retry.",
        unit=Unit.MILLISECONDS,
        minimum=50,
        visibility=Visibility.TUNING,
    )
    object_bytes_max: int = setting(
        1_500_000,
        "The largest object that is sent; a larger one is refused here. By default etcd takes 1.5 "
        "MiB, and the definitions in `crds/` allow a state of that size.",
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
"""How long a lease lasts, when its holder gives up, and how often it is renewed and looked at."""


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
        '`kind = "sqlite"`. Keep it as safe as the logs: without it they cannot be told apart. It '
        "keeps 8 MiB beside it, so that brokers can be started when its disk is full.",
    )
    shared: bool = setting(
        False,
        "Whether several brokers of this machine share the file, which makes them one cluster. All "
        "of them must set it.",
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
    kubernetes: KubernetesConfig = section(KubernetesConfig)

    @property
    def lease_times(self) -> LeaseTimes:
        """How the controller's lease is held."""
        duration_ms, renew_deadline_ms, retry_ms = _LEASE_MS[self.kind]

        def chosen(value: int, default: int) -> int:
            return default if value == -1 else value

        return LeaseTimes(
            duration_ms=chosen(self.lease_duration_ms, duration_ms),
            renew_deadline_ms=chosen(self.lease_renew_deadline_ms, renew_deadline_ms),
            retry_ms=retry_ms,
            watch_ms=retry_ms,
        )

    def validate(self) -> Iterator[str]:
        """Yield what is wrong between the settings."""
        if self.kind is CoordinationKind.SQLITE and not self.path:
            yield "path: is required with kind = 'sqlite': a file for the cluster's metadata"
        times = self.lease_times
        if not times.retry_ms < times.renew_deadline_ms < times.duration_ms:
            yield (
                f"lease_renew_deadline_ms = {times.renew_deadline_ms}: must be less than "
                f"lease_duration_ms = {times.duration_ms}, and more than the {times.retry_ms} ms "
                "between two renewals: a controller stops before another may start, and has tried "
                "more than once by then"
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
class AccessConfig:
    """Who may do what: [security](security.md). All brokers of a cluster need the same."""

    tokens_file: str = setting(
        "",
        "File of tokens, and of whom each one proves: `millrace token new` writes it. A broker "
        "reads it again when it changes. Empty: this broker knows no tokens.",
    )
    rules_file: str = setting(
        "",
        "File of rules that say who may do what; nobody may do anything else. A broker reads it "
        "again when it changes; one with a mistake leaves the rules as they were, and keeps a "
        "broker from starting. Empty: every client may do everything.",
    )
    kubernetes: bool = setting(
        False,
        "Kubernetes knows the callers, by tokens of ServiceAccounts for this cluster, and its "
        "roles say who may do what. It goes with `coordination.kind`, and without the two files.",
    )
    enforced: bool = setting(
        True,
        "`false`: what would be refused is done all the same, and is in the audit log "
        "(`access_would_be_refused`) and in the metrics: for a running cluster whose clients have "
        "yet to get tokens and rights.",
    )

    @property
    def has_rules(self) -> bool:
        """Whether anything says who may do what; else every client may do everything."""
        return self.kubernetes or bool(self.rules_file)

    def validate(self) -> Iterator[str]:
        """Yield what is wrong between the settings."""
        if self.kubernetes and (self.tokens_file or self.rules_file):
            yield "kubernetes: it goes without tokens_file and rules_file"
        if self.tokens_file and not self.rules_file:
            yield "rules_file: must be set, too: tokens say who calls, and rules what they may do"


@dataclass(frozen=True, kw_only=True)
class MetricsConfig:
    """The page `/metrics` for Prometheus."""

    host: str = setting(
        "127.0.0.1", "Address to listen on. Prometheus must reach it: in a pod, `0.0.0.0`."
    )
    port: int = setting(
        DEFAULT_METRICS_PORT,
        "Port to listen on; 0: one that is free.",
        maximum=PORT_MAX,
        minus_one="no metrics page",
    )
    names: str = setting(
        "",
        "Names under which the page is asked for, with commas, besides this machine's name and "
        "those of the listeners. IP addresses, names without a dot, and names in `svc`, `local` "
        "and `internal` need none. Others are refused: a web site could read the page in the name "
        "of its visitors (DNS rebinding).",
    )
    tls_certificate_file: str = setting(
        "",
        "PEM file of the page's certificate, with those between it and its authority. It is read "
        "again when it changes. Empty: the page is in plain text.",
    )
    tls_key_file: str = setting("", "PEM file of the certificate's key, without a password.")
    token_file: str = setting(
        "",
        "File with the token that `/metrics` asks for, as Prometheus sends it by "
        "`authorization.credentials_file`; `/ready` needs none. It is read again when it changes, "
        "and goes with TLS, or with an address of this machine. Empty: everybody who reaches the "
        "page may read it. See [security](security.md#the-metrics-page).",
    )
    topics_max: int = setting(
        1000,
        "Topics that [metrics](metrics.md) name, those that a broker meets first; all others are "
        "counted together as `(others)`. Each one takes five series on every broker that has a "
        "replica.",
        minimum=0,
        maximum=1_000_000,
    )

    def validate(self) -> Iterator[str]:
        """Yield what is wrong between the settings."""
        certificate, key = self.tls_certificate_file, self.tls_key_file
        if bool(certificate) != bool(key):
            given, missing = ("certificate", "key") if certificate else ("key", "certificate")
            yield f"tls_{missing}_file: it must be set, as tls_{given}_file is"
        if self.token_file and not certificate and not is_loopback(self.host):
            yield (
                "token_file: it needs tls_certificate_file and tls_key_file, as others could read "
                f"the token on its way to {self.host}"
            )


class LogFormat(StrEnum):
    """How the broker's own log lines look."""

    AUTO = "auto"
    HUMAN = "human"
    JSON = "json"


class LogLevel(StrEnum):
    """The severities of log events."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class AuditScope(StrEnum):
    """What the audit log has."""

    ALL = "all"
    REFUSALS = "refusals"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class LoggingConfig:
    """The broker's own log, on standard error: [its events](events.md)."""

    level: LogLevel = setting(
        LogLevel.INFO, "The least level that is logged; the audit log has `audit` instead."
    )
    format: LogFormat = setting(LogFormat.AUTO, "`auto`: for people on a terminal, JSON elsewhere.")
    repeats_max: int = setting(
        1000,
        "Most lines of one event in a minute. Further ones are left out, and the next line of that "
        "event says how many: `left_out`. Acts in the audit log are bounded by `audit_lines_max`.",
        minimum=1,
    )
    audit: AuditScope = setting(
        AuditScope.ALL,
        "What [the audit log](clusters.md#the-audit-log) has: administrative acts and refusals, "
        "only what was refused as a whole, or nothing.",
    )
    audit_lines_max: int = setting(
        1000,
        "Most different acts in the audit log within ten seconds, and a tenth as many refusals. "
        "Equal ones are summed up. An event says how many others were left out.",
        minimum=10,
    )


@dataclass(frozen=True, kw_only=True)
class StorageConfig:
    """Files of the log, for all log directories."""

    recovery_point_bytes: int = setting(
        64 << 20,
        "A partition is flushed after this many bytes at the latest, in both durability modes; the "
        "records after the last flush are checked completely after a crash.",
        unit=Unit.BYTES,
        minimum=1 << 20,
        visibility=Visibility.TUNING,
    )
    recovery_point_interval_ms: int = setting(
        10_000,
        "A partition is flushed after this time at the latest, likewise.",
        unit=Unit.MILLISECONDS,
        minimum=100,
        visibility=Visibility.TUNING,
        kafka="log.flush.offset.checkpoint.interval.ms",
    )
    file_handles_max: int = setting(
        1000,
        "Most segment files open at a time, except those in use; the least recently used is "
        "closed.",
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
        "A flush of a `durability=fsync` topic that takes this long is slow. When three of its "
        "last ten flushes were slow, or one hangs, a broker lets other in-sync replicas lead until "
        "its disk has been well for a while. Healthy disks are much faster.",
        unit=Unit.MILLISECONDS,
        minimum=10,
        minus_one="no flush is slow",
        visibility=Visibility.TUNING,
    )
    retention_check_interval_ms: int = setting(
        300_000,
        "Pause between two looks for segments to delete.",
        kafka="log.retention.check.interval.ms",
        unit=Unit.MILLISECONDS,
        minimum=10,
    )
    trash_delay_ms: int = setting(
        86_400_000,
        "How long files of a replica that was moved away, or of a topic since its deletion, stay "
        "in the log directory, under names that end in `.deleted`, and take space. A deleted topic "
        "keeps them under their own names for `cluster.deleted_topic_retention_ms` first. You may "
        "remove those that end in `.deleted` earlier. A minute in Kafka.",
        kafka="file.delete.delay.ms",
        unit=Unit.MILLISECONDS,
    )
    damaged_logs_max: int = setting(
        16,
        "Damaged logs that each log directory keeps, under names that end in `.damaged`, after the "
        "replica was copied again from another broker. When there are so many, the next damaged "
        "replica stays offline: a disk that damages so many should be replaced.",
        minimum=1,
    )
    scrub_bytes_per_second: int = setting(
        8 << 20,
        "How fast closed segments are read again in the background, to find damaged bits. Choose "
        "it so that a whole log directory is read within 7 days.",
        unit=Unit.BYTES,
        minimum=1 << 10,
        minus_one="no scrubbing",
    )
    cleaner_threads: int = setting(
        1,
        "Threads that compact logs, see [compaction.md](compaction.md). 0: no log is compacted.",
        kafka="log.cleaner.threads",
        maximum=64,
    )
    cleaner_dedupe_buffer_size: int = setting(
        128 << 20,
        "Memory for the keys of logs that are being compacted, 24 bytes each, for all threads "
        "together; a smaller log takes less. When it does not hold all new keys of a log, that log "
        "is compacted in several passes.",
        unit=Unit.BYTES,
        minimum=64 << 10,
        maximum=1 << 40,
        visibility=Visibility.TUNING,
        kafka="log.cleaner.dedupe.buffer.size",
    )
    cleaner_io_max_bytes_per_second: int = setting(
        -1,
        "How much compaction may read and write in a second, all threads together.",
        unit=Unit.BYTES,
        minimum=64 << 10,
        maximum=1 << 40,
        minus_one=NO_LIMIT,
        visibility=Visibility.TUNING,
        kafka="log.cleaner.io.max.bytes.per.second",
    )
    cleaner_backoff_ms: int = setting(
        15_000,
        "Pause before the next look when no log has to be compacted.",
        unit=Unit.MILLISECONDS,
        minimum=10,
        visibility=Visibility.TUNING,
        kafka="log.cleaner.backoff.ms",
    )
    tier_free_bytes_min: int = setting(
        8 << 30,
        "While an SSD has less free space than this, the oldest closed segments of the topics with "
        "`media=tiered` on it move to an HDD, however young they are.",
        unit=Unit.BYTES,
        maximum=1 << 50,
    )
    tier_io_max_bytes_per_second: int = setting(
        64 << 20,
        "How much moves of segments between SSDs and an HDD may copy and verify in a second, for "
        "each HDD.",
        unit=Unit.BYTES,
        minimum=64 << 10,
        maximum=1 << 40,
        minus_one=NO_LIMIT,
    )
    tier_check_interval_ms: int = setting(
        15_000,
        "Pause before the next look when no segment has to move between an SSD and an HDD.",
        unit=Unit.MILLISECONDS,
        minimum=10,
        visibility=Visibility.TUNING,
    )
    producer_id_expiration_ms: int = setting(
        86_400_000,
        "A producer that wrote nothing for this long is forgotten; a later retry of its last "
        "batches is not recognised. The longest silent one is also forgotten when a partition has "
        "20000.",
        kafka="producer.id.expiration.ms",
        unit=Unit.MILLISECONDS,
        minimum=1,
    )

    segment_bytes_max: int = constant(INT32_MAX)
    """A segment ends at this size, whatever its topic asks for."""
    index_interval_bytes_max: int = constant(INT32_MAX)
    """Entries of an index are no further apart, whatever the topic asks for."""


@dataclass(frozen=True, kw_only=True)
class LimitsConfig:
    """Bounds on what clients can make the broker hold. A request beyond one is refused."""

    message_bytes_max: int = setting(
        8 << 20,
        "The largest message on the wire, in either direction; a call with a larger answer fails. "
        "Messages between brokers, with the whole metadata, may be up to 1 GiB.",
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
        "free. Incomplete messages, and those that wait to be counted, take memory beside it: by "
        "DRPC see `incomplete_bytes_max`, by gRPC `connection_streams_max`.",
        unit=Unit.BYTES,
        minimum=1 << 20,
        maximum=1 << 40,
    )
    connection_request_memory_bytes_max: int = setting(
        32 << 20,
        "The share of it that one connection may take. On each listener, calls of more than 16 KiB "
        "that wait for a quota of request time may hold as much beside it, and those of one quota "
        "half as much; further ones are refused with `BROKER_BUSY`.",
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
        "Most entries of one kind in a request, such as topics, partitions or settings; those of "
        "all its topics count together. Produced partitions, too. By Kafka's protocol, entries of "
        "all kinds together.",
        minimum=1,
        maximum=1_000_000,
    )
    request_timeout_ms_max: int = setting(
        60_000,
        "The longest that a write, or a deletion of records, may wait for its replicas, even if "
        "the client asks for more.",
        unit=Unit.MILLISECONDS,
        minimum=100,
    )
    fetch_wait_ms_max: int = setting(
        60_000,
        "The longest that a fetch may wait for records, even if the client asks for more.",
        unit=Unit.MILLISECONDS,
        minimum=100,
    )
    fetch_response_bytes_max: int = setting(
        1 << 20,
        "Bytes of records in one answer to a fetch, except for a larger first batch. A slow or "
        "dead reader holds one answer at most.",
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
    connections_max: int = setting(
        4000,
        "Most connections at a time of each listener: clients', outside and brokers'. A further "
        "one is refused, and the log and `millrace_connections` say so. When more than nine tenths "
        "are used, connections without a call under way are closed, the longest idle first. The "
        "bound is lower when the process may not open as many files (`ulimit -Hn`).",
        minimum=1,
        maximum=1_000_000,
        kafka="max.connections",
    )
    connections_per_host_max: int = setting(
        2500,
        "Most of them from one address, on each listener. Clients behind one address, as that of a "
        "NAT, count together. A gRPC listener notices it within a second.",
        minimum=1,
        maximum=1_000_000,
        kafka="max.connections.per.ip",
    )
    connections_per_host_rate_max: int = setting(
        500,
        "Most new connections a second from one address, on each listener, over some seconds. "
        "Further ones wait for their handshake of TLS, for `handshake_ms_max`, or are closed; on a "
        "gRPC listener, within a second.",
        minimum=1,
        maximum=1_000_000,
    )
    connections_unknown_max: int = setting(
        1000,
        "Most connections of each listener whose callers are not known: they have made no call, or "
        "none that proves who calls where that is asked for. Beyond it, the oldest are closed.",
        minimum=1,
        maximum=1_000_000,
    )
    connection_unknown_bytes_max: int = setting(
        1 << 20,
        "Most bytes that come by a gRPC connection before its caller is known; beyond it, it is "
        "closed, as soon as that is noticed. A DRPC connection is not read further until then.",
        unit=Unit.BYTES,
        minimum=64 << 10,
        maximum=1 << 40,
    )
    principal_connections_max: int = setting(
        1000,
        "Most connections with a call under way that one principal has at this broker; calls on "
        "further ones are refused with `BROKER_BUSY`. Callers that prove nothing count by their "
        "address. Only with [access](security.md).",
        minimum=1,
        maximum=1_000_000,
    )
    principal_calls_max: int = setting(
        2000,
        "Most calls that one principal has under way at this broker, each open stream is one; "
        "further ones are refused with `BROKER_BUSY`. Callers that prove nothing count by their "
        "address. Only with [access](security.md).",
        minimum=1,
        maximum=10_000_000,
    )
    token_reviews_per_host_rate_max: int = setting(
        50,
        "Most new tokens a second from one address that have a good signature, and so are reviewed "
        "by the API server; calls with further ones are told to try again (`ACCESS_UNDECIDED`). Of "
        "20 times as many the signature is verified, so forged ones do not use it up. Tokens that "
        "are known do not count. Only with `access.kubernetes`.",
        minimum=1,
        maximum=100_000,
    )
    connection_age_ms_max: int = setting(
        -1,
        "A connection of this age is drained: the client gets what it has asked for, and connects "
        "again. It has 60 s for that. Where callers show certificates, an hour at most.",
        unit=Unit.MILLISECONDS,
        minimum=1000,
        minus_one=NO_LIMIT,
    )
    connection_streams_max: int = setting(
        64,
        "Most calls at a time on one gRPC connection; a further one waits. Each may hold "
        "`message_bytes_max` of an incomplete message, or 4 MiB that are not read yet: a hostile "
        "connection can take up to 528 MiB with the defaults, see "
        "[limits.md](limits.md#hostile-clients).",
        minimum=1,
    )
    incomplete_bytes_max: int = setting(
        64 << 20,
        "Most memory for messages that have not arrived in full, or were not taken yet, over all "
        "connections of each DRPC listener; half of it for those from one address. At the bound, "
        "connections that hold some are not read, but for the one that has waited longest; beyond "
        "it there is one message, and 16 KiB for each connection.",
        unit=Unit.BYTES,
        minimum=1 << 20,
        maximum=1 << 40,
    )
    message_ms_max: int = setting(
        10_000,
        "How long a message may take to arrive on a DRPC connection, beside its bytes at 64 KiB/s; "
        "1 s while other connections wait for memory. Then the connection is closed.",
        unit=Unit.MILLISECONDS,
        minimum=1000,
    )
    connection_silence_ms_max: int = setting(
        10_000,
        "A connection that has made no call by then is closed, even if it has sent a part of a "
        "frame; and so is one that nobody who is known has called by, where callers have to be "
        "known. Health checks and reflection are no such calls.",
        unit=Unit.MILLISECONDS,
        minimum=1000,
    )
    connection_idle_ms_max: int = setting(
        600_000,
        "A connection without any call is closed after this time.",
        kafka="connections.max.idle.ms",
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

    controller_lag_bytes_max: int = constant(16 << 20)
    """Metadata that waits for a slow broker. Beyond the bound it is dropped, and the broker gets
    the full state again."""
    replica_keepalive_ms: int = constant(5_000)
    """As `keepalive_interval_ms` and `keepalive_timeout_ms`, for connections between brokers. When
    only one end knows that a connection is gone, a follower notices it after that time."""

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
            ValueError: the text has another form; says which forms are allowed.
        """
        media, colon, path = text.partition(":")
        if not colon or "/" in media:  # `./a:b` is a path with a colon in it.
            return cls(text, DEFAULT_MEDIA)
        if media not in list(Media) or not path:
            raise ValueError(
                f"{text!r} must be a path, or {' or '.join(f'{kind}:PATH' for kind in Media)}; "
                "write a relative path with a colon in it as ./PATH"
            )
        return cls(path, Media(media))


class Origin(StrEnum):
    """Where a setting was given."""

    FILE = "file"
    ENVIRONMENT = "environment"


@dataclass(frozen=True, kw_only=True)
class BrokerConfig:
    """Configuration of one broker process."""

    log_dirs: tuple[str, ...] = setting(
        _REQUIRED,
        "Directories of the partitions' logs, one per disk, as `ssd:PATH` or `hdd:PATH`; a plain "
        "path counts as `ssd`. New partitions go to the directory on the topic's media that has "
        "the fewest; a failed directory takes only its own partitions offline.",
        kafka="log.dirs",
    )
    insecure: bool = setting(
        False,
        "Start also where other machines reach a listener that is in plain text, or one for "
        "clients that may do everything. Else the start is refused: [security](security.md). The "
        "operator for Kubernetes sets it for Clusters whose `tls` is not `Required`, or whose "
        "`access` is not `Enforced`.",
    )
    node: NodeConfig = section(NodeConfig)
    coordination: CoordinationConfig = section(CoordinationConfig)
    cluster: ClusterConfig = section(ClusterConfig)
    listeners: ListenersConfig = section(ListenersConfig)
    kafka: KafkaConfig = section(KafkaConfig)
    access: AccessConfig = section(AccessConfig)
    replication: ReplicationConfig = section(ReplicationConfig)
    positions: PositionsConfig = section(PositionsConfig)
    transactions: TransactionsConfig = section(TransactionsConfig)
    groups: GroupsConfig = section(GroupsConfig)
    metrics: MetricsConfig = section(MetricsConfig)
    logging: LoggingConfig = section(LoggingConfig)
    storage: StorageConfig = section(StorageConfig)
    limits: LimitsConfig = section(LimitsConfig)
    quotas: QuotasConfig = section(QuotasConfig)
    threads: ThreadsConfig = section(ThreadsConfig)
    shutdown: ShutdownConfig = section(ShutdownConfig)

    origins: tuple[tuple[str, Origin], ...] = constant((), compare=False)
    """Of the settings that were given, by full name; it only says where they come from."""

    @property
    def log_directories(self) -> tuple[LogDirConfig, ...]:
        """The directories of `log_dirs`."""
        return tuple(map(LogDirConfig.parse, self.log_dirs))

    def validate(self) -> Iterator[str]:
        """Yield what is wrong between the settings."""
        for text in self.log_dirs:
            try:
                LogDirConfig.parse(text)
            except ValueError as error:
                yield f"log_dirs: {error}"
        if not self.insecure:
            has_rules = self.access.has_rules and self.access.enforced
            yield from self.listeners.exposures(has_rules=has_rules)
        coordination = self.coordination
        is_kubernetes = coordination.kind is CoordinationKind.KUBERNETES
        if self.listeners.replicas.has_both and not is_kubernetes:
            yield (
                'listeners.replicas.tls_port: coordination.kind must be "kubernetes"; brokers of '
                "one machine change to TLS together"
            )
        if self.access.kubernetes and not is_kubernetes:
            yield 'access.kubernetes: coordination.kind must be "kubernetes", too'
        if (
            coordination.kind is CoordinationKind.KUBERNETES
            and self.cluster.shard_bytes_max > coordination.kubernetes.object_bytes_max
        ):
            yield (
                "cluster.shard_bytes_max: must not be more than "
                "coordination.kubernetes.object_bytes_max, or topics are made that cannot be stored"
            )


def check_settings(sections: Mapping[str, object]) -> None:
    """Check settings, given by section and name, as a broker would at its start.

    Raises:
        InvalidConfigError: lists the problems.
    """
    given: dict[str, object] = {
        "log_dirs": ["log"],
        "coordination": {"kind": CoordinationKind.KUBERNETES.value},
    }
    settings.parse(BrokerConfig, given | dict(sections))
