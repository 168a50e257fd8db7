"""The settings of consumer groups."""

from collections.abc import Iterator
from dataclasses import dataclass

from millrace.core.settings import Unit, setting


@dataclass(frozen=True, kw_only=True)
class GroupsConfig:
    """Consumer groups: see [groups](clusters.md#consumer-groups)."""

    session_timeout_ms: int = setting(
        10_000,
        "A member that is not heard for this long is removed, and its partitions go to others.",
        kafka="group.consumer.session.timeout.ms",
        unit=Unit.MILLISECONDS,
        minimum=1000,
        maximum=3_600_000,
    )
    heartbeat_interval_ms: int = setting(
        3_000,
        "Longest time that a heartbeat waits for another assignment before it is answered.",
        kafka="group.consumer.heartbeat.interval.ms",
        unit=Unit.MILLISECONDS,
        minimum=100,
        maximum=60_000,
    )
    members_max: int = setting(
        1000,
        "Most members of one group; another one is refused.",
        kafka="group.consumer.max.size",
        minimum=1,
        maximum=10_000,
    )
    partition_members_max: int = setting(
        10_000,
        "Most members of all groups in one partition of the coordinators' topic.",
        minimum=1,
        maximum=1_000_000,
    )
    lag_interval_ms: int = setting(
        1000,
        "How often a broker measures the lags of the groups that it coordinates, for its "
        "[metrics](metrics.md). That takes at most a twentieth of a processor: the lags of more "
        "than about 1400 different positions are measured less often.",
        unit=Unit.MILLISECONDS,
        minimum=100,
        maximum=3_600_000,
        minus_one="no lags in the metrics",
    )
    lag_series_max: int = setting(
        1000,
        "Most pairs of a group and a topic whose lags a broker measures and shows: consumer groups "
        "first, then Spark queries and other readers. "
        "`millrace_group_lag_left_out_groups` counts the groups that do not fit.",
        minimum=0,
        maximum=100_000,
    )
    partition_groups_max: int = setting(
        10_000,
        "Most groups in one partition of the coordinators' topic, also those that all members have "
        "left and that are not forgotten yet; the first member of another one is refused.",
        minimum=1,
        maximum=1_000_000,
    )
    partition_subscriptions_max: int = setting(
        100_000,
        "Most names of topics that the members of all groups in one partition of the coordinators' "
        "topic subscribe to, each member's counted by itself. They take memory of the broker that "
        "leads it, up to 350 bytes each.",
        minimum=1,
        maximum=10_000_000,
    )

    classic_rebalance_delay_ms: int = setting(
        3_000,
        "How long a group of Kafka's classic protocol without members waits for more of them after "
        "the first one has joined, and again after each that comes meanwhile, at most for the "
        "rebalance timeout of its members. With 0 programs that start together are assigned "
        "partitions several times. `millrace up` sets 0, as Kafka's quick start does.",
        kafka="group.initial.rebalance.delay.ms",
        unit=Unit.MILLISECONDS,
        maximum=600_000,
    )
    classic_session_timeout_ms_min: int = setting(
        6_000,
        "Shortest session timeout that a member of Kafka's classic protocol may ask for.",
        kafka="group.min.session.timeout.ms",
        unit=Unit.MILLISECONDS,
        minimum=100,
        maximum=3_600_000,
    )
    classic_session_timeout_ms_max: int = setting(
        1_800_000,
        "Longest session timeout that such a member may ask for.",
        kafka="group.max.session.timeout.ms",
        unit=Unit.MILLISECONDS,
        minimum=1000,
        maximum=86_400_000,
    )
    classic_group_bytes_max: int = setting(
        2 << 20,
        "Most bytes of what the members of one group of Kafka's classic protocol say of themselves "
        "and are assigned; a member that does not fit is refused. They are stored as one record, "
        "of up to one and a half times this size.",
        unit=Unit.BYTES,
        minimum=16 << 10,
        maximum=4 << 20,
    )
    classic_partition_bytes_max: int = setting(
        32 << 20,
        "Most bytes of what the members of all groups of Kafka's classic protocol in one partition "
        "of the coordinators' topic say of themselves and are assigned; a member that does not fit "
        "is refused. They take up to twice this memory of the broker that leads it.",
        unit=Unit.BYTES,
        minimum=64 << 10,
        maximum=1 << 40,
    )

    def validate(self) -> Iterator[str]:
        """Yield what is wrong between the settings."""
        if self.classic_session_timeout_ms_min > self.classic_session_timeout_ms_max:
            yield (
                f"classic_session_timeout_ms_min = {self.classic_session_timeout_ms_min}: must be "
                "at most classic_session_timeout_ms_max = "
                f"{self.classic_session_timeout_ms_max}"
            )
        if self.classic_partition_bytes_max < self.classic_group_bytes_max:
            yield (
                f"classic_partition_bytes_max = {self.classic_partition_bytes_max}: must be at "
                f"least classic_group_bytes_max = {self.classic_group_bytes_max}"
            )
        if 3 * self.heartbeat_interval_ms > self.session_timeout_ms:
            yield (
                f"heartbeat_interval_ms = {self.heartbeat_interval_ms}: must be at most a third of "
                f"session_timeout_ms = {self.session_timeout_ms}, or one lost heartbeat ends it"
            )
