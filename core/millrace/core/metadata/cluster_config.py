"""Settings that should be the same on every broker, since any of them may become the controller."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from millrace.core.media import Media, TopicMedia
from millrace.core.metadata.topic_config import Durability
from millrace.core.settings import Unit, Visibility, constant, parse, setting, settings_of, to_text

DEFAULT_REPLICATION_FACTOR_MAX: Final = 3
INITIAL_BROKERS_MAX: Final = 1000


def usual_replication_factor(brokers: int) -> int:
    """Return how many replicas a topic usually has in a cluster with so many brokers for it."""
    return min(DEFAULT_REPLICATION_FACTOR_MAX, max(1, brokers))


def replicas_by_default(setting: int, brokers: int) -> int:
    """Return how many replicas a topic gets if nobody names a number.

    Args:
        setting: the number that is set; -1: the usual one.
        brokers: how many may hold a replica (`may_hold`).
    """
    return usual_replication_factor(brokers) if setting == -1 else setting


def may_hold(
    media: TopicMedia, there: Collection[Media], *, is_drained: bool, is_fenced: bool
) -> bool:
    """Return whether a broker counts for the replicas of a topic, also one that is away (P77).

    A broker that has just registered is fenced and has not told its media yet: it counts.

    Args:
        media: of the topic.
        there: media of the broker's log directories.
        is_drained: the broker is to hold nothing.
        is_fenced: the broker is away, or has not come yet.
    """
    return not is_drained and (media.is_among(there) or (is_fenced and not there))


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """The controller's settings, which every broker follows; they should be the same on all."""

    default_partitions: int = setting(
        1,
        "Partitions of a topic that is created without a number of partitions.",
        kafka="num.partitions",
        minimum=1,
        maximum=10_000,
    )
    default_replication_factor: int = setting(
        -1,
        "Replicas of a topic that is created without a replication factor. Brokers that are away "
        "count, drained ones do not.",
        minimum=1,
        maximum=32_767,
        minus_one="3, or the number of brokers that the cluster has when there are fewer",
        kafka="default.replication.factor",
    )
    initial_brokers: int = setting(
        1,
        "How many brokers a new cluster begins with. Before so many have registered for the first "
        "time, the cluster does not know how many replicas it can keep: topics without a "
        "replication factor and `__positions` wait for them. Once they have registered, the "
        "cluster never waits again, also when it grows or this number does. The operator for "
        "Kubernetes writes the number of brokers that the Cluster asks for, 3 at the most, into "
        "`node.initial_brokers_file`.",
        minimum=1,
        maximum=INITIAL_BROKERS_MAX,
    )
    positions_partitions: int = setting(
        16,
        "Partitions of `__positions`, where readers keep [positions](clusters.md#positions). The "
        "topic is created with the first position; the number never changes.",
        kafka="offsets.topic.num.partitions",
        minimum=1,
        maximum=1000,
    )
    positions_replication_factor: int = setting(
        -1,
        "Replicas of `__positions`. With a number, the topic is not created before there are that "
        "many brokers. While it has fewer replicas than this, the controller adds some on each "
        "broker that comes.",
        kafka="offsets.topic.replication.factor",
        minimum=1,
        maximum=32_767,
        minus_one="3, or the number of brokers that the cluster has when there are fewer",
    )
    positions_durability: Durability = setting(
        Durability.FSYNC,
        "`durability` of `__positions` when it is created. `replicated`, as in Kafka: a position "
        "is kept once it is in the page cache of its replicas.",
    )
    transactions_partitions: int = setting(
        16,
        "Partitions of `__transactions`, where the states of "
        "[transactions](clusters.md#transactions) are kept. The topic is created with the first "
        "transactional id; the number never changes.",
        kafka="transaction.state.log.num.partitions",
        minimum=1,
        maximum=1000,
    )
    transactions_replication_factor: int = setting(
        -1,
        "Replicas of `__transactions`, as `positions_replication_factor` is for `__positions`.",
        kafka="transaction.state.log.replication.factor",
        minimum=1,
        maximum=32_767,
        minus_one="3, or the number of brokers that the cluster has when there are fewer",
    )
    transactions_durability: Durability = setting(
        Durability.FSYNC,
        "`durability` of `__transactions` when it is created. A transaction waits for two to three "
        "flushes of it. Where no topic is flushed before its records are acknowledged, "
        "`replicated` makes commits faster, as in Kafka.",
    )
    topic_partitions_max: int = setting(
        10_000,
        "Most partitions of one topic; a request for more is refused.",
        minimum=1,
        maximum=100_000,
    )
    broker_partitions_max: int = setting(
        10_000,
        "Most partition replicas on one broker, over all topics; a topic that needs more is "
        "refused. Every partition costs open files and memory.",
        minimum=1,
        maximum=1_000_000,
    )
    brokers_max: int = setting(
        1000,
        "Most registered brokers, including gone ones that were not unregistered. A broker with a "
        "new name is refused then. All are in one metadata object of about 700 bytes each, which "
        "the coordination store must take.",
        minimum=1,
        maximum=100_000,
    )
    quotas_max: int = setting(
        1000,
        "Most [quotas](quotas.md). They are in the metadata object of the brokers, about 300 bytes "
        "each, and may have 500000 bytes together.",
        minimum=0,
        maximum=10_000,
    )
    shard_bytes_max: int = setting(
        1_450_000,
        "Largest metadata object of topics. There are 32, and each topic is in one of them at "
        "random. A topic that may need more is refused. The coordination store must take objects "
        "of this size: etcd takes 1.5 MiB. 10000 partitions of three replicas need 1.4 MB.",
        unit=Unit.BYTES,
        minimum=16 << 10,
        maximum=1 << 30,
    )

    deleted_topic_retention_ms: int = setting(
        86_400_000,
        "How long a deleted topic can be brought back with `millrace topic undelete`. Its files "
        "stay on the brokers for this time, which counts while there is a controller. `0`: it is "
        "gone for good at once.",
        unit=Unit.MILLISECONDS,
    )
    deleted_topics_max: int = setting(
        1000,
        "Most deleted topics that can be brought back. With one more, the one that was deleted "
        "first is gone for good before its time. So is one whose metadata object has no room for "
        "a topic that is created.",
        minimum=0,
        maximum=100_000,
    )
    request_topics_max: int = setting(
        1000,
        "Most topics in one request to create, alter, delete or undelete. Their partitions "
        "together are limited by `topic_partitions_max`: a larger request would hold up all "
        "others.",
        minimum=1,
        maximum=100_000,
    )

    request_partitions_max: int = setting(
        10_000,
        "Most partitions in one request to change in-sync replicas, to reassign replicas or to "
        "elect leaders.",
        minimum=1,
        maximum=100_000,
    )
    unclean_leader_election_enable: bool = setting(
        False,
        "Whether topics without a setting of their own elect a leader that may lack acknowledged "
        "records when no other can lead. False, because these records were acknowledged: a "
        "partition that waits can be repaired, lost records cannot.",
        kafka="unclean.leader.election.enable",
    )

    broker_session_timeout_ms: int = setting(
        4000,
        "A broker without a heartbeat for this long is fenced, and others lead its partitions. Two "
        "seconds are enough when all brokers are on one machine.",
        unit=Unit.MILLISECONDS,
        minimum=100,
        kafka="broker.session.timeout.ms",
    )
    broker_reconnect_grace_ms: int = setting(
        400,
        "A broker whose connection to the controller broke is fenced after this time, unless it is "
        "back. Shorter than the session's time-out, as the connection of a killed process breaks "
        "at once; not zero, as connections also break for other reasons.",
        unit=Unit.MILLISECONDS,
        minimum=1,
        visibility=Visibility.TUNING,
    )
    controlled_shutdown_wait_ms: int = setting(
        30_000,
        "How long a broker in a controlled shutdown waits for other replicas to replace it among "
        "the in-sync ones. After that it stops without them.",
        unit=Unit.MILLISECONDS,
    )
    address_settle_ms: int = setting(
        0,
        "How long after a broker's start clients may still resolve its host name to a former "
        "address, because of cached DNS answers. Until then it leads only what no other in-sync "
        "broker can lead. For brokers whose address changes with each start: the operator for "
        "Kubernetes sets 30 s.",
        unit=Unit.MILLISECONDS,
        maximum=600_000,
    )
    reassigning_partitions_max: int = setting(
        1000,
        "Most partitions whose replicas are being reassigned at a time; a request for more is "
        "refused, and `millrace reassign apply` waits with it. Their new replicas are copied all "
        "at once.",
        minimum=1,
        maximum=100_000,
    )

    broker_heartbeat_interval_ms: int = constant(250)
    """Pause between two heartbeats of a broker."""
    controller_tick_ms: int = constant(100)
    """Longest pause between two ticks of the controller, which advance reassignments."""
    log_end_partitions_max: int = constant(1000)
    """Partitions in one request for log ends to a broker, when no replica is known to have all
    records."""

    def texts(self) -> dict[str, str]:
        """Return the values by name, as they are sent."""
        named = settings_of(type(self)).values()
        return {declared.name: to_text(getattr(self, declared.attribute)) for declared in named}

    def overruled_by(self, texts: Mapping[str, str]) -> "ClusterConfig":
        """Return these settings with another broker's values, for the names known to both.

        Raises:
            InvalidConfigError: this release does not take such a value.
        """
        own = self.texts()
        other = parse(type(self), {name: texts.get(name, own[name]) for name in own})
        return replace(self, **{name: getattr(other, name) for name in own})

    def differences(self, other: "ClusterConfig") -> dict[str, tuple[str, str]]:
        """Return the differences by name: the value here, and the other one.

        `initial_brokers` is not compared: brokers that are added later may be given another number,
        and the cluster no longer uses it then.
        """
        theirs = other.texts()
        return {
            name: (value, theirs[name])
            for name, value in self.texts().items()
            if value != theirs[name] and name != "initial_brokers"
        }

    def validate(self) -> Iterator[str]:
        """Yield what is wrong between the settings."""
        if self.default_partitions > self.topic_partitions_max:
            yield (
                f"default_partitions = {self.default_partitions}: must not be more than "
                f"topic_partitions_max = {self.topic_partitions_max}"
            )
        if not (
            self.broker_heartbeat_interval_ms
            < self.broker_reconnect_grace_ms
            < self.broker_session_timeout_ms
        ):
            yield (
                f"broker_reconnect_grace_ms = {self.broker_reconnect_grace_ms}: must be less than "
                f"broker_session_timeout_ms = {self.broker_session_timeout_ms}, and more than the "
                f"{self.broker_heartbeat_interval_ms} ms between two heartbeats"
            )
