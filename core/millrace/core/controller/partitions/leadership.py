"""Elections over many partitions at once, when brokers come and go.

Pure. All changes of one event go into `DecidedMetadata` together, and from there
into one write for each shard (docs/design/metadata.md).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from millrace.core.controller.balancing import balance
from millrace.core.controller.balancing.balance import Movable
from millrace.core.controller.decided.decided_metadata import DecidedMetadata
from millrace.core.controller.partitions import elections
from millrace.core.controller.partitions.elections import NOTHING_SHOWN, Restart, Rules, Shown
from millrace.core.controller.partitions.offline_replicas import OfflineReplicas
from millrace.core.errors import (
    EligibleLeadersNotAvailableError,
    PreferredLeaderNotAvailableError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import NO_BROKER, BrokerId, TopicId, TopicPartition
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.model import BrokerLife, PartitionState
from millrace.core.metadata.requests import ElectionKind

_LEADER_MOVES_MAX: Final = 200
"""Leaderships moved at a time to balance them. The others wait for the next time: each move makes
clients look for the new leader."""

Changes = dict[TopicPartition, PartitionState]
"""The new states of changed partitions."""


class RulesByTopic:
    """The rules of each topic, made once."""

    def __init__(self, decided: DecidedMetadata, config: ClusterConfig) -> None:
        self._decided = decided
        self._config = config
        self._rules: dict[TopicId, Rules] = {}

    def __getitem__(self, topic_id: TopicId) -> Rules:
        rules = self.find(topic_id)
        assert rules is not None
        return rules

    def find(self, topic_id: TopicId) -> Rules | None:
        """Return a topic's rules; None when there is no such topic."""
        rules = self._rules.get(topic_id)
        if rules is None:
            topic = self._decided.topic(topic_id)
            if topic is None:
                return None
            rules = Rules.of(topic, self._decided.cluster.brokers, self._config)
            self._rules[topic_id] = rules
        return rules


def all_partitions(decided: DecidedMetadata) -> list[TopicPartition]:
    """Return every partition there is."""
    return [
        TopicPartition(topic.topic_id, number)
        for topic in decided.topics()
        for number in range(len(topic.partitions))
    ]


def held_by(decided: DecidedMetadata, broker_ids: Iterable[BrokerId]) -> list[TopicPartition]:
    """Return the partitions where one of these brokers is in sync, eligible or last known."""
    wanted = frozenset(broker_ids)
    return [
        TopicPartition(topic.topic_id, number)
        for topic in decided.topics()
        for number, partition in enumerate(topic.partitions)
        if any(life.broker_id in wanted for life in (*partition.isr, *partition.elr))
        or not wanted.isdisjoint(partition.last_known_elr)
    ]


def elected(
    decided: DecidedMetadata,
    config: ClusterConfig,
    keys: Iterable[TopicPartition],
    shown: Mapping[TopicPartition, Shown] | None = None,
) -> Changes:
    """Bring partitions in line with the brokers as they are; free leaderships are spread (P25).

    Args:
        shown: the known logs of eligible replicas.
    """
    return _spread(decided, config, keys, elections.elect, shown or {})


def restarted(
    decided: DecidedMetadata, config: ClusterConfig, life: BrokerLife, restart: Restart
) -> Changes:
    """Take a broker's earlier life out of every partition, before it gets the new one (P37)."""
    return _spread(
        decided,
        config,
        held_by(decided, [life.broker_id]),
        lambda state, rules, heir, _: elections.restarted(state, rules, life, restart, heir),
        {},
    )


def given_up(
    decided: DecidedMetadata,
    config: ClusterConfig,
    offline: OfflineReplicas,
    keys: Iterable[TopicPartition],
) -> Changes:
    """Do without replicas that are damaged or gone, if others have everything (P65)."""
    rules = RulesByTopic(decided, config)
    changes: Changes = {}
    for key in keys:
        state = decided.partition(key)
        if state is not None:
            after = elections.given_up(state, rules[key.topic_id], offline.of(key))
            if after is not state:
                changes[key] = after
    return changes


def balanced(decided: DecidedMetadata, config: ClusterConfig) -> Changes:
    """Return the leaderships to move now: back to preferred leaders, and to even them out."""
    rules = RulesByTopic(decided, config)
    movable: dict[TopicPartition, Movable] = {}
    for key in decided.misled:
        state = decided.partition(key)
        assert state is not None
        able = elections.candidates(state, rules[key.topic_id])
        if len(able) > 1 or state.replicas[0] in able:
            movable[key] = Movable(state.leader, state.replicas[0], tuple(able))
    moves = balance.moves(movable, decided.led_counts, _LEADER_MOVES_MAX)
    changes: Changes = {}
    for key, leader in moves.items():
        state = decided.partition(key)
        assert state is not None
        changes[key] = elections.moved(state, rules[key.topic_id], leader)
    return changes


def elected_on_request(
    decided: DecidedMetadata,
    config: ClusterConfig,
    kind: ElectionKind,
    key: TopicPartition,
    offline: frozenset[BrokerLife],
) -> PartitionState:
    """Return a partition after an election that a client asked for.

    Args:
        offline: lives whose logs of the partition are damaged or gone: none of them is elected.

    Raises:
        UnknownTopicOrPartitionError: there is no such partition.
        PreferredLeaderNotAvailableError: the preferred leader is not alive or not in sync.
        EligibleLeadersNotAvailableError: no replica is alive.
    """
    state = decided.partition(key)
    if state is None:
        raise UnknownTopicOrPartitionError(f"there is no partition {key}")
    rules = RulesByTopic(decided, config)[key.topic_id].without(offline)
    if kind is ElectionKind.PREFERRED:
        preferred = state.replicas[0]
        if preferred not in elections.candidates(state, rules):
            raise PreferredLeaderNotAvailableError(
                f"the preferred leader, broker {preferred}, is not alive and in sync: wait "
                "until it is; leaderships then return by themselves",
                topic_partition=key,
            )
        return elections.moved(state, rules, preferred)
    if state.leader != NO_BROKER and state.leader_life not in offline:
        return state
    # Do not wait for the ends of logs: the operator asks for a leader now.
    state_after = elections.elect(
        state, _with_unclean(rules), shown=dict.fromkeys(state.elr, False)
    )
    if state_after.leader == NO_BROKER:
        raise EligibleLeadersNotAvailableError(
            "none of its replicas is alive and may lead: start one of the brokers "
            f"{', '.join(map(str, state.replicas))}",
            topic_partition=key,
        )
    return state_after


def _with_unclean(rules: Rules) -> Rules:
    """Allow one unclean election: an operator asked for it (P30)."""
    return Rules(brokers=rules.brokers, config=rules.config, may_elect_unclean=True)


def _spread(
    decided: DecidedMetadata,
    config: ClusterConfig,
    keys: Iterable[TopicPartition],
    follow: Callable[[PartitionState, Rules, BrokerId, Shown], PartitionState],
    shown: Mapping[TopicPartition, Shown],
) -> Changes:
    """Apply elections to partitions, with heirs that spread the leaderships evenly."""
    rules = RulesByTopic(decided, config)
    states: Changes = {}
    free: dict[TopicPartition, list[BrokerId]] = {}
    loads = Counter(decided.led_counts)
    for key in keys:
        state = decided.partition(key)
        assert state is not None
        states[key] = state
        if not elections.needs_leader(state, rules[key.topic_id]):
            continue
        able = elections.candidates(state, rules[key.topic_id], shown.get(key, NOTHING_SHOWN))
        if able:
            loads[state.leader] -= 1
            if able[0] == state.replicas[0]:
                loads[able[0]] += 1  # The preferred leader, which needs no spreading.
            else:
                free[key] = able
    heirs = balance.heirs(free, loads)
    changes: Changes = {}
    for key, state in states.items():
        heir = heirs.get(key, NO_BROKER)
        after = follow(state, rules[key.topic_id], heir, shown.get(key, NOTHING_SHOWN))
        if after is not state:
            changes[key] = after
    return changes
