"""Settings that should be the same on every broker, since any of them may become the controller."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from millrace.core.settings import Unit, Visibility, parse, setting, settings_of, to_text


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """What the controller goes by, and every broker by its word; to be the same on all of them."""

    default_partitions: int = setting(
        1,
        "Partitions of a topic that is created without saying how many. Kafka's `num.partitions`.",
        minimum=1,
        maximum=10_000,
    )
    default_replication_factor: int = setting(
        -1,
        "Replicas of a topic that is created without saying how many.",
        minimum=1,
        maximum=32_767,
        minus_one="3, or the number of brokers when there are fewer",
    )
    positions_partitions: int = setting(
        16,
        "Partitions of `__positions`, where readers keep [positions](clusters.md#positions), when "
        "it is made, as the first position is stored. It stays so. Kafka's "
        "`offsets.topic.num.partitions`.",
        minimum=1,
        maximum=1000,
    )
    positions_replication_factor: int = setting(
        -1,
        "Replicas of `__positions` when it is made. With a number it is not made before there are "
        "so many brokers. Kafka's `offsets.topic.replication.factor`.",
        minimum=1,
        maximum=32_767,
        minus_one="3, or the number of brokers when there are fewer",
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
        "Most brokers that are registered, those included that are gone and were not unregistered. "
        "A broker of another name is refused then. All are in one metadata object, of which the "
        "coordination store must take so much: some 500 bytes for each.",
        minimum=1,
        maximum=100_000,
    )
    shard_bytes_max: int = setting(
        1_450_000,
        "Largest metadata object of topics, of which there are 32; each topic falls to one of them "
        "at random. A topic that may come to need more is refused. The coordination store must "
        "take so much: etcd takes 1.5 MiB. 10000 partitions of three replicas need 1.3 MB.",
        unit=Unit.BYTES,
        minimum=16 << 10,
        maximum=1 << 30,
    )

    request_topics_max: int = setting(
        1000,
        "Most topics in one request to create, alter or delete. Their partitions together must not "
        "be more than `topic_partitions_max` either: a larger request would hold up all others.",
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
        "Whether topics that do not say so themselves elect a leader that may lack acknowledged "
        "records when no other can lead. False, because a producer was told that these records "
        "are safe: a partition that waits can be repaired, one that has forgotten cannot.",
    )

    broker_session_timeout_ms: int = setting(
        4000,
        "A broker that the controller has not heard of for so long is fenced, and others lead its "
        "partitions. Two seconds will do where all brokers are on one machine.",
        unit=Unit.MILLISECONDS,
        minimum=100,
    )
    broker_reconnect_grace_ms: int = setting(
        400,
        "A broker whose connection to the controller broke is fenced after so long, unless it is "
        "back. Shorter than the session's time-out, for a process that was killed is noticed at "
        "once; not zero, for connections break without it.",
        unit=Unit.MILLISECONDS,
        minimum=1,
        visibility=Visibility.TUNING,
    )
    broker_heartbeat_interval_ms: int = setting(
        250,
        "How often a broker tells the controller that it is there.",
        unit=Unit.MILLISECONDS,
        minimum=10,
        visibility=Visibility.TUNING,
    )
    controller_tick_ms: int = setting(
        100,
        "How often the controller looks at its clock at the least: it moves on reassignments then.",
        unit=Unit.MILLISECONDS,
        minimum=1,
        maximum=1000,
        visibility=Visibility.TUNING,
    )
    controlled_shutdown_wait_ms: int = setting(
        30_000,
        "How long a broker that is stopped in good order waits for other replicas to take its "
        "place among the in-sync ones. It stops without that after so long.",
        unit=Unit.MILLISECONDS,
    )
    address_settle_ms: int = setting(
        0,
        "How long after a broker's start clients may still take its host name for a former "
        "address, as answers of DNS are kept. Until then it leads nothing that another in-sync "
        "broker can lead. For brokers whose address changes with each start: the operator for "
        "Kubernetes sets 30 s.",
        unit=Unit.MILLISECONDS,
        maximum=600_000,
    )
    leader_balance_interval_ms: int = setting(
        500,
        "How often the controller looks for leaderships to move: back to preferred leaders, and "
        "from brokers that have more than their share.",
        unit=Unit.MILLISECONDS,
        minimum=1,
        visibility=Visibility.TUNING,
    )
    leader_moves_max: int = setting(
        200,
        "Most leaderships that are moved at a time to even them out. The others wait for the next "
        "time: each move makes clients look for the new leader.",
        minimum=1,
        visibility=Visibility.TUNING,
    )
    reassigning_partitions_max: int = setting(
        1000,
        "Most partitions whose replicas are being reassigned at a time; a request for more is "
        "refused, and `millrace reassign apply` waits with it. Their new replicas are copied all "
        "at once.",
        minimum=1,
        maximum=100_000,
    )
    log_end_partitions_max: int = setting(
        1000,
        "Most partitions of which one broker is asked for its log end at a time, when nobody is "
        "known to have all records and the best replica is looked for.",
        minimum=1,
        maximum=100_000,
        visibility=Visibility.TUNING,
    )

    def texts(self) -> dict[str, str]:
        """Return the values by name, as they are sent."""
        named = settings_of(type(self)).values()
        return {each.name: to_text(getattr(self, each.attribute)) for each in named}

    def overruled_by(self, texts: Mapping[str, str]) -> "ClusterConfig":
        """Return these settings with another broker's values for those that both know.

        Raises:
            InvalidConfigError: this release does not take such a value.
        """
        own = self.texts()
        return parse(type(self), {name: texts.get(name, own[name]) for name in own})

    def differences(self, other: "ClusterConfig") -> dict[str, tuple[str, str]]:
        """Return what differs by name: the value here, and the other one."""
        theirs = other.texts()
        return {
            name: (value, theirs[name])
            for name, value in self.texts().items()
            if value != theirs[name]
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
                "broker_heartbeat_interval_ms < broker_reconnect_grace_ms < "
                "broker_session_timeout_ms must hold: a session outlives several heartbeats, and "
                "a broken connection ends it sooner than silence"
            )
