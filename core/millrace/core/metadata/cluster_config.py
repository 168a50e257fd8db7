"""Settings that must be the same on every broker, since any of them may become the controller."""

from collections.abc import Iterator
from dataclasses import dataclass

from millrace.core.settings import setting


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """What the controller goes by when topics are made and changed."""

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

    request_topics_max: int = setting(
        1000,
        "Most topics in one request to create, alter or delete. Their partitions together must not "
        "be more than `topic_partitions_max` either: a larger request would hold up all others.",
        minimum=1,
        maximum=100_000,
    )

    def validate(self) -> Iterator[str]:
        """Yield what is wrong between the settings."""
        if self.default_partitions > self.topic_partitions_max:
            yield (
                f"default_partitions = {self.default_partitions}: must not be more than "
                f"topic_partitions_max = {self.topic_partitions_max}"
            )
