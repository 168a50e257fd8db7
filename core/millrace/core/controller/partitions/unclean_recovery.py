"""Partitions that get a leader only after the controller knows the ends of their logs.

An *eligible replica* is elected as soon as it has shown everything before `committed_end` (P26; see
`elections`). If none of them has, the partition waits for another one, or for an operator.

If *no replica is known to have all committed records*, the best replica leads (P31). ISR and ELR
are empty when every replica that was in sync has since restarted without its records. The
controller asks each living replica where its log ends, waits until all have answered, and elects
the one with the greatest (leader epoch of its last batch, log end offset): no other has more.
Records may be lost all the same, which is always reported.

Not all have to be alive at one time: with brokers that keep dying the wait would not end. Logs do
not grow without a leader, so a replica never comes back with more than it reported since. Only a
life that has itself reported is elected, as an earlier one may have had more; and if the best
report is of a past life, the partition waits for that broker.

Reports are no part of the metadata: another controller asks again.

Source: the second part of KIP-966.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from millrace.core.controller.decided.decided_metadata import DecidedMetadata
from millrace.core.controller.partitions import elections
from millrace.core.controller.partitions.elections import Rules, Shown
from millrace.core.controller.partitions.leadership import Changes, RulesByTopic
from millrace.core.controller.partitions.offline_replicas import OfflineReplicas
from millrace.core.ids import BrokerId, EpochEnd, LeaderEpoch, Offset, TopicPartition
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.model import BrokerLife, PartitionState
from millrace.core.metadata.requests import LogEnd


@dataclass(slots=True)
class UncleanRecovery:
    """Decisions about these partitions.

    Attributes:
        elected: partitions with their new leaders.
        shown: of partitions with eligible replicas, the known logs.
        lacking: by broker, partitions whose log was found, for the first time, to lack committed
            records, and the end that it must have.
        asks: partitions whose log ends a broker should report.
    """

    elected: Changes = field(default_factory=dict)
    shown: dict[TopicPartition, Shown] = field(default_factory=dict)
    lacking: dict[BrokerLife, list[tuple[LogEnd, EpochEnd]]] = field(default_factory=dict)
    asks: dict[BrokerLife, list[TopicPartition]] = field(default_factory=dict)


_ByBroker = dict[BrokerId, tuple[BrokerLife, LogEnd]]


@dataclass(slots=True)
class _Reports:
    leader_epoch: LeaderEpoch
    by_broker: _ByBroker = field(default_factory=dict)
    told: set[BrokerLife] = field(default_factory=set)  # Those reported as lacking records.


class LogEnds:
    """Reports of log ends, only of the partitions that need them.

    Attributes:
        reports: how many there were.
    """

    def __init__(self, config: ClusterConfig) -> None:
        self.reports = 0
        self._config = config
        self._reports: dict[TopicPartition, _Reports] = {}

    def on_report(
        self, decided: DecidedMetadata, life: BrokerLife, log_ends: Iterable[LogEnd]
    ) -> None:
        """Note a broker's report; to be called with its registered life."""
        for log_end in log_ends:
            key = log_end.topic_partition
            partition = decided.partition(key) if key in decided.leaderless else None
            if partition is not None and life.broker_id in partition.replicas:
                self._of_now(key, partition).by_broker[life.broker_id] = life, log_end
                self.reports += 1

    def decide(self, decided: DecidedMetadata, offline: OfflineReplicas) -> UncleanRecovery:
        """Return the leaders that can be elected, and the brokers to ask about the rest."""
        self._reports = {
            key: report for key, report in self._reports.items() if key in decided.leaderless
        }
        rules = RulesByTopic(decided, self._config)
        recovery = UncleanRecovery()
        for key in decided.unproven:
            partition = decided.partition(key)
            assert partition is not None
            if partition.elr:
                gone = offline.of(key)
                self._look_at_eligible(key, partition, rules[key.topic_id], gone, recovery)
                continue
            lives = _live_replicas(partition, rules[key.topic_id])
            reports = self._of_now(key, partition).by_broker
            missing = [life for life in lives if self.of(key, life) is None]
            if not missing and reports.keys() >= {*partition.replicas}:
                best = best_replica(partition, lives, reports)
                if best is not None:
                    recovery.elected[key] = elections.unclean(partition, best)
            for life in missing:
                self._ask(life, key, recovery)
        return recovery

    def _look_at_eligible(
        self,
        key: TopicPartition,
        partition: PartitionState,
        rules: Rules,
        gone: frozenset[BrokerLife],
        recovery: UncleanRecovery,
    ) -> None:
        shown = dict.fromkeys(gone, False)
        for life in elections.awaited(partition, rules):
            if life in gone:
                continue
            log_end = self.of(key, life)
            if log_end is None:
                self._ask(life, key, recovery)
                continue
            shown[life] = log_end.committed_offset >= partition.committed_end.end_offset
            told = self._of_now(key, partition).told
            if not shown[life] and life not in told:
                told.add(life)
                lacking = recovery.lacking.setdefault(life, [])
                lacking.append((log_end, partition.committed_end))
        recovery.shown[key] = shown

    def _ask(self, life: BrokerLife, key: TopicPartition, recovery: UncleanRecovery) -> None:
        asked = recovery.asks.setdefault(life, [])
        if len(asked) < self._config.log_end_partitions_max:
            asked.append(key)

    def forget(self, key: TopicPartition, life: BrokerLife) -> None:
        """Forget the report of a broker's life about a partition: its log was replaced."""
        known = self._reports.get(key)
        if known is not None and self.of(key, life) is not None:
            del known.by_broker[life.broker_id]

    def of(self, key: TopicPartition, life: BrokerLife) -> LogEnd | None:
        """Return the last report of a broker's life about a partition."""
        known = self._reports.get(key)
        reported = None if known is None else known.by_broker.get(life.broker_id)
        return None if reported is None or reported[0] != life else reported[1]

    def _of_now(self, key: TopicPartition, partition: PartitionState) -> _Reports:
        """Return the reports since the partition has no leader."""
        known = self._reports.get(key)
        if known is None or known.leader_epoch != partition.leader_epoch:
            known = self._reports[key] = _Reports(partition.leader_epoch)
        return known


def best_replica(
    partition: PartitionState, lives: Iterable[BrokerLife], reports: _ByBroker
) -> BrokerLife | None:
    """Return the life whose log ends last, among equals the first; None if it is not of `lives`.

    Args:
        lives: those that may be elected; all of them have reported.
        reports: of all replicas.
    """

    def log_end_of(broker_id: BrokerId) -> tuple[LeaderEpoch, Offset]:
        _, log_end = reports[broker_id]
        return log_end.leader_epoch, log_end.end_offset

    best = max(map(log_end_of, partition.replicas))
    return next((life for life in lives if log_end_of(life.broker_id) == best), None)


def _live_replicas(partition: PartitionState, rules: Rules) -> list[BrokerLife]:
    """Return the lives of the living replicas that may lead, in order."""
    lives = map(rules.life_of, partition.replicas)
    return [life for life in lives if life is not None and rules.may_lead(life)]
