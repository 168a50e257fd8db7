"""The settings of `Consumer`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from millrace.client._cluster.arguments import LogEnd
from millrace.client._settings import Bytes, Milliseconds, TracedConfig, TracedSettings, function
from millrace.client.serialization import Deserializer
from millrace.core.isolation import ISOLATIONS, READ_COMMITTED, Isolation
from millrace.core.settings import Unit, setting


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(TracedConfig):
    """Settings of `Consumer` and `SyncConsumer`."""

    fetch_min_bytes: int = setting(
        1,
        "A broker waits until so much is there, but no longer than `fetch_max_wait_ms`.",
        unit=Unit.BYTES,
    )
    fetch_max_wait_ms: int = setting(
        500, "How long a broker waits for `fetch_min_bytes`.", unit=Unit.MILLISECONDS
    )
    fetch_max_bytes: int = setting(
        50 << 20,
        "Bytes that may be on their way or wait to be polled, per broker.",
        unit=Unit.BYTES,
        minimum=1024,
        maximum=1 << 40,
    )
    max_partition_fetch_bytes: int = setting(
        1 << 20, "Bytes of one partition in one response.", unit=Unit.BYTES, minimum=1
    )
    auto_offset_reset: str = setting(
        "earliest",
        "Where to begin without a position, and where to go when it lies outside of the log; "
        "`none`: an error. `beginning` means `earliest`, and `end` means `latest`. A partition "
        "that appears after a group, or a consumer of the whole topic, has begun is read from its "
        "start in any case.",
        choices=("earliest", "beginning", "latest", "end", "none"),
    )
    isolation: str = setting(
        READ_COMMITTED,
        "Which records are read. `read_committed`: those of no transaction, and those of committed "
        "ones, as far as no transaction is open (Kafka's default is the other one). "
        "`read_uncommitted`: also those of open and aborted transactions.",
        kafka="isolation.level",
        choices=ISOLATIONS,
    )
    key_deserializer: Deserializer | None = setting(
        None, "From the bytes of a key to what records show.", parse=function, allowed="a function"
    )
    value_deserializer: Deserializer | None = setting(
        None,
        "From the bytes of a value to what records show.",
        parse=function,
        allowed="a function",
    )
    group: str = setting(
        "",
        "The consumer group that `subscribe` joins: its members share the topics. Empty: none, and "
        "the consumer reads all of them.",
        kafka="group.id",
    )
    group_instance_id: str = setting(
        "",
        "The name that this member keeps over restarts: what it read waits for it for a session. "
        "No other living member may have it.",
        kafka="group.instance.id",
    )
    group_assignor: str = setting(
        "",
        "Which assignor the member asks for: `uniform` moves few partitions, `range` gives each "
        "member neighbouring ones. The group uses what most members ask for.",
        kafka="group.remote.assignor",
        choices=("", "uniform", "range"),
    )
    enable_auto_commit: bool = setting(
        True,
        "Whether a member of a group commits what it has handed out, when it polls again: each "
        "record at least once. Without it, a member commits only the end at which its group begins "
        '(`auto_offset_reset="latest"`), so that the next member begins there, too.',
        kafka="enable.auto.commit",
    )
    auto_commit_interval_ms: int = setting(
        5_000,
        "Time between two such commits. What is revoked is committed at once.",
        kafka="auto.commit.interval.ms",
        unit=Unit.MILLISECONDS,
        minimum=1,
    )
    max_poll_interval_ms: int = setting(
        300_000,
        "A member that does not poll for so long leaves its group: others get its partitions.",
        kafka="max.poll.interval.ms",
        unit=Unit.MILLISECONDS,
        minimum=1,
    )
    metadata_max_age_ms: int = setting(
        300_000,
        "How often to look whether topics have more partitions, whether a pattern without a "
        "group matches more topics, and where to read from.",
        unit=Unit.MILLISECONDS,
        minimum=1,
    )
    client_rack: str = setting(
        "",
        "The zone of this client, as brokers name theirs (`node.rack`). With it, partitions are "
        "read from an in-sync follower of the same zone where there is one; empty: from their "
        "leaders.",
    )

    def validate(self) -> Iterator[str]:
        """Yield what is wrong between the settings."""
        if self.fetch_min_bytes > self.fetch_max_bytes:
            yield (
                f"fetch_min_bytes = {self.fetch_min_bytes}: must not be more than fetch_max_bytes "
                f"= {self.fetch_max_bytes}"
            )


class ConsumerSettings(TracedSettings, total=False):
    """See `ConsumerConfig`."""

    fetch_min_bytes: Bytes
    fetch_max_wait_ms: Milliseconds
    fetch_max_bytes: Bytes
    max_partition_fetch_bytes: Bytes
    auto_offset_reset: LogEnd | Literal["none"]
    isolation: Isolation
    key_deserializer: Deserializer | None
    value_deserializer: Deserializer | None
    group: str
    group_instance_id: str
    group_assignor: Literal["", "uniform", "range"]
    enable_auto_commit: bool
    auto_commit_interval_ms: Milliseconds
    max_poll_interval_ms: Milliseconds
    metadata_max_age_ms: Milliseconds
    client_rack: str
