"""Levels of the protocol between brokers, and which settings of topics wait for the last upgrade.

| level | brokers that speak it                                                                  |
|-------|----------------------------------------------------------------------------------------|
| 1     | speak the first protocol                                                               |
| 2     | know compacted topics: their settings, and batches that a leader has put together (P57) |
| 3     | know transactions: their markers, and what readers of committed records may see (T16)  |
| 4     | know Kafka's record batches as bodies: batches of format 2 (K4)                        |

A broker says its level when it opens its session, and the controller keeps it with the
registration. A broker of level 1 cannot read the metadata of a topic with settings of compaction.
As a follower it cannot go on when its log ends within a batch that its leader has put together. So
these settings are refused as long as such a broker is registered, alive or not; and while a topic
has one, no broker of level 1 is registered. The alternative, a cleaner that puts no batches
together, would not help: the settings themselves are unknown to such a broker.

Likewise with transactions: a broker below level 3 that leads a partition would show undecided
records to readers of committed ones. So `__transactions` is not created before all brokers have
that level, and from then on no other broker is registered.

A broker below level 4 takes a batch of format 2 for damage. So leaders refuse the batches of
Kafka's clients as long as one is registered. Once there is none, and a broker has a listener for
these clients, none is registered any more: logs may have such batches. It cannot read the
generations of Kafka's groups either, so coordinators refuse their members as long. As a controller
it would overlook the replicas that a client assigns to new partitions, so that is refused, too.

Source: Kafka's features (KIP-584), without a command that enables them.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from millrace.core.errors import UnsupportedFeatureError
from millrace.core.metadata.model import ClusterState, Topic
from millrace.core.topics import TRANSACTIONS_TOPIC
from millrace.core.words import some

FIRST_LEVEL: Final = 1
COMPACTION: Final = 2
TRANSACTIONS: Final = 3
KAFKA_BATCHES: Final = 4
BROKER_LEVEL: Final = KAFKA_BATCHES
"""The highest level that this release speaks."""

_LEVELS: Final = dict.fromkeys(
    (
        "cleanup.policy",
        "delete.retention.ms",
        "max.compaction.lag.ms",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
    ),
    COMPACTION,
)
"""Settings of topics, and the level that knows them; all others are of the first."""


def check_settings(cluster: ClusterState, topic: str, overrides: Mapping[str, str]) -> None:
    """Check that each registered broker knows the settings of a topic.

    Raises:
        UnsupportedFeatureError: one does not; it says which brokers are to be upgraded.
    """
    level = _level_of(overrides)
    behind = sorted(broker.name for broker in cluster.brokers.values() if broker.level < level)
    if behind:
        new = ", ".join(name for name in overrides if name in _LEVELS)
        raise UnsupportedFeatureError(
            f"topic {topic!r}: brokers of an earlier release do not know {new}: upgrade "
            f"{some([*map(repr, behind)])} first, or unregister what is gone for good. Nothing was "
            "changed"
        )


def check_transactions(cluster: ClusterState) -> None:
    """Check that each registered broker knows transactions (T16).

    Raises:
        UnsupportedFeatureError: one does not; it says which brokers are to be upgraded.
    """
    _check_all(cluster, TRANSACTIONS, "transactions")


def check_kafka_batches(cluster: ClusterState) -> None:
    """Check that each registered broker knows batches of format 2 (K4).

    Raises:
        UnsupportedFeatureError: one does not; it says which brokers are to be upgraded.
    """
    _check_all(cluster, KAFKA_BATCHES, "batches of Kafka's clients")


def check_kafka_groups(cluster: ClusterState) -> None:
    """Check that each registered broker knows groups of Kafka's classic protocol.

    Raises:
        UnsupportedFeatureError: one does not; it says which brokers are to be upgraded.
    """
    _check_all(cluster, KAFKA_BATCHES, "groups of Kafka's clients")


def check_assignments(cluster: ClusterState) -> None:
    """Check that each registered broker knows replicas that a client assigns: one may be asked.

    Raises:
        UnsupportedFeatureError: one does not; it says which brokers are to be upgraded.
    """
    _check_all(cluster, KAFKA_BATCHES, "replicas of new partitions that are assigned by hand")


def _check_all(cluster: ClusterState, level: int, what: str) -> None:
    behind = sorted(broker.name for broker in cluster.brokers.values() if broker.level < level)
    if behind:
        raise UnsupportedFeatureError(
            f"brokers of an earlier release do not know {what}: upgrade "
            f"{some([*map(repr, behind)])} first, or unregister what is gone for good"
        )


def refusal(
    level: int, name: str, cluster: ClusterState, topics: Iterable[Topic]
) -> UnsupportedFeatureError | None:
    """Return why a broker cannot be registered: it does not know what is in use.

    Args:
        level: of the broker.
        name: of the broker.
        cluster: which brokers there are.
        topics: all that there are, with the deleted ones.
    """
    if level >= BROKER_LEVEL:
        return None
    registered = cluster.brokers.values()
    listening = sorted(
        broker.name for broker in registered if any(broker.kafka_addresses) and broker.name != name
    )
    if listening and level < KAFKA_BATCHES <= min(broker.level for broker in registered):
        return UnsupportedFeatureError(
            f"broker {name!r} speaks level {level}, and does not know the batches of Kafka's "
            f"clients, for whom {some([*map(repr, listening)])} may be reached: upgrade it to the "
            "release of the other brokers"
        )
    beyond = sorted(str(topic.name) for topic in topics if _level_of_topic(topic) > level)
    if not beyond:
        return None
    return UnsupportedFeatureError(
        f"broker {name!r} speaks level {level}, and does not know the settings or the transactions "
        f"of {some([*map(repr, beyond)])}: upgrade it to the release of the other brokers"
    )


def _level_of_topic(topic: Topic) -> int:
    level = _level_of(topic.overrides)
    return max(level, TRANSACTIONS) if topic.name == TRANSACTIONS_TOPIC else level


def _level_of(overrides: Mapping[str, str]) -> int:
    return max((_LEVELS.get(name, FIRST_LEVEL) for name in overrides), default=FIRST_LEVEL)
