"""Partitions of which nobody is known to have all committed records: the best replica leads (P31).

ISR and ELR are empty when every replica that was in sync has since restarted without what it had.
The controller asks each replica that is alive where its log ends, waits until all have said so, and
elects the one with the greatest (leader epoch of its last batch, log end offset): nobody can have
more. Records may be lost all the same, which is always reported.

Not all have to be alive at one time: brokers that go on dying would be waited for without end.
While nobody leads a partition its logs do not grow, so what a replica has reported since then is
the most that it can ever come back with. Only a life that has itself reported is elected, as an
earlier one may have had more; and where the best report is of a life that is over, that broker is
waited for.

Source: the second part of KIP-966.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from millrace.core.ids import BrokerId, LeaderEpoch, Offset, TopicPartition
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


_ByBroker = dict[BrokerId, tuple[BrokerLife, LogEnd]]


@dataclass(slots=True)
class _Reports:
    leader_epoch: LeaderEpoch
    by_broker: _ByBroker = field(default_factory=dict)


class LogEnds:
    """Reports of where replicas' logs end, of the partitions that need them only."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        self._reports: dict[TopicPartition, _Reports] = {}

    def on_report(self, draft: Draft, life: BrokerLife, log_ends: Iterable[LogEnd]) -> None:
        """Note what a broker says; to be called with its registered life."""
        for log_end in log_ends:
            key = log_end.topic_partition
            partition = draft.partition(key) if key in draft.leaderless else None
            if partition is not None and life.broker_id in partition.replicas:
                self._of_now(key, partition)[life.broker_id] = life, log_end

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
            reports = self._of_now(key, partition)
            missing = [life for life in lives if self.of(key, life) is None]
            if not missing and reports.keys() >= {*partition.replicas}:
                best = best_replica(partition, lives, reports)
                if best is not None:
                    recovery.elected[key] = elections.unclean(partition, best)
            for life in missing:
                asked = recovery.asks.setdefault(life, [])
                if len(asked) < self._config.log_end_partitions_max:
                    asked.append(key)
        return recovery

    def forget(self, key: TopicPartition, life: BrokerLife) -> None:
        """Forget what a broker's life has reported of a partition: its log is another now."""
        known = self._reports.get(key)
        if known is not None and self.of(key, life) is not None:
            del known.by_broker[life.broker_id]

    def of(self, key: TopicPartition, life: BrokerLife) -> LogEnd | None:
        """Return what a broker's life has reported last of a partition."""
        known = self._reports.get(key)
        reported = None if known is None else known.by_broker.get(life.broker_id)
        return None if reported is None or reported[0] != life else reported[1]

    def _of_now(self, key: TopicPartition, partition: PartitionState) -> _ByBroker:
        """Return what was reported since nobody leads the partition."""
        known = self._reports.get(key)
        if known is None or known.leader_epoch != partition.leader_epoch:
            known = self._reports[key] = _Reports(partition.leader_epoch)
        return known.by_broker


def best_replica(
    partition: PartitionState, lives: Iterable[BrokerLife], reports: _ByBroker
) -> BrokerLife | None:
    """Return whose log ends last, among equals the first; None where none of `lives` is that.

    Args:
        lives: who may be elected; all of them have reported.
        reports: of all replicas.
    """

    def log_end_of(broker_id: BrokerId) -> tuple[LeaderEpoch, Offset]:
        _, log_end = reports[broker_id]
        return log_end.leader_epoch, log_end.end_offset

    best = max(map(log_end_of, partition.replicas))
    return next((life for life in lives if log_end_of(life.broker_id) == best), None)


def _live_replicas(partition: PartitionState, rules: elections.Rules) -> list[BrokerLife]:
    """Return the lives of the replicas that are there and may lead, in order."""
    lives = map(rules.life_of, partition.replicas)
    return [life for life in lives if life is not None and rules.may_lead(life)]
