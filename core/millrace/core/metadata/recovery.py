"""Partitions of which nobody is known to have all committed records: the best replica leads (P31).

ISR and ELR are empty when every replica that was in sync has since restarted without what it had.
The controller waits until all replicas are alive, asks each where its log ends, and elects the one
with the greatest (leader epoch of its last batch, log end offset): nobody can have more. Records
may be lost all the same, which is always reported.

Reports are of one life of a broker, and are forgotten with it.

Source: the second part of KIP-966.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from millrace.core.ids import TopicPartition
from millrace.core.metadata import elections
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.draft import Draft
from millrace.core.metadata.leadership import Changes, RulesByTopic
from millrace.core.metadata.model import BrokerLife, PartitionState
from millrace.core.metadata.requests import LogEnd


@dataclass(slots=True)
class Recovery:
    """What to do now.

    Attributes:
        elected: partitions with their new leaders.
        asks: partitions of which a broker should report the log end.
    """

    elected: Changes = field(default_factory=dict)
    asks: dict[BrokerLife, list[TopicPartition]] = field(default_factory=dict)


class LogEnds:
    """Reports of where replicas' logs end, of the partitions that need them only."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        self._reports: dict[TopicPartition, dict[BrokerLife, LogEnd]] = {}

    def on_report(self, draft: Draft, life: BrokerLife, log_ends: Iterable[LogEnd]) -> None:
        """Note what a broker says; to be called with its registered life."""
        for log_end in log_ends:
            key = log_end.topic_partition
            partition = draft.partition(key) if key in draft.leaderless else None
            if partition is not None and life.broker_id in partition.replicas:
                self._reports.setdefault(key, {})[life] = log_end

    def decide(self, draft: Draft) -> Recovery:
        """Return which leaders can be elected, and whom to ask because of the others."""
        self._reports = {
            key: each for key, each in self._reports.items() if key in draft.leaderless
        }
        rules = RulesByTopic(draft, self._config)
        recovery = Recovery()
        for key in draft.leaderless:
            partition = draft.partition(key)
            assert partition is not None
            if partition.isr or partition.elr:
                continue
            lives = _live_replicas(partition, rules[key.topic_id])
            if lives is None:
                continue
            reports = self._reports.get(key, {})
            missing = [life for life in lives if life not in reports]
            if not missing:
                best = best_replica(lives, reports)
                recovery.elected[key] = elections.unclean(partition, best)
            for life in missing:
                asked = recovery.asks.setdefault(life, [])
                if len(asked) < self._config.log_end_partitions_max:
                    asked.append(key)
        return recovery

    def forget(self, key: TopicPartition, life: BrokerLife) -> None:
        """Forget what a broker's life has reported of a partition: its log is another now."""
        self._reports.get(key, {}).pop(life, None)

    def of(self, key: TopicPartition, life: BrokerLife) -> LogEnd | None:
        """Return what a broker's life has reported last of a partition."""
        return self._reports.get(key, {}).get(life)


def best_replica(lives: Iterable[BrokerLife], reports: Mapping[BrokerLife, LogEnd]) -> BrokerLife:
    """Return whose log ends last; among equals the first."""
    return max(lives, key=lambda life: (reports[life].leader_epoch, reports[life].end_offset))


def _live_replicas(partition: PartitionState, rules: elections.Rules) -> list[BrokerLife] | None:
    """Return all replicas' lives, in order; None while one of them is not there or is to go."""
    lives = []
    for broker_id in partition.replicas:
        life = rules.life_of(broker_id)
        if life is None or not rules.may_lead(life):
            return None
        lives.append(life)
    return lives
