"""Leaders and in-sync replicas of partitions, as pure functions from one state to the next.

A partition's in-sync replicas (ISR) have every committed record. When they become fewer than min
ISR, nothing more is committed, so a replica that leaves then still has everything: it is kept in
the eligible leader replicas (ELR), and may lead when the ISR is empty. A replica that may have lost
records leaves the ELR too, and is remembered as last known (KIP-966, P26).

A member of the ELR may lack records all the same: its disk was restored from a snapshot of the same
life of its broker, or damage cut the end of its log off. Registration shows neither. So a member
must show its log before it leads (KIP-966 has no such rule; in Raft every vote compares logs):

- `committed_end` is the end of what all members must have: every record before it was committed.
  One end is enough for all members, as nothing is committed while there is an ELR.
- Only a leader knows the end. It reports the end as soon as fewer than min ISR are in sync. The end
  may be too low: for a moment after the controller itself has taken a member out of the ISR, or
  when a new leader knows an older high watermark. It is never too high. So a member that has
  everything always has enough, and one that lacks more than the records of that moment has not.
- If no leader has reported an end it is 0, and each member has enough. This happens when all
  brokers die at once, and for partitions with one replica.
- Each life of a member has to show its log. A member whose log is unknown has not shown enough.
- No unclean election takes place by itself while a member lives that may yet show enough.
- An unclean election ends the ELR, and with it the end.

Entries carry the broker epoch. An entry counts only while it is its broker's registered life (P37).

Each function returns its argument when nothing is to change; else a state whose partition epoch is
one higher, and whose leader epoch is too iff the leader, its life or the replica set changed, or a
replica starts over.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Final

from millrace.core.ids import NO_BROKER, NOTHING_WRITTEN, BrokerId, EpochEnd
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.model import BrokerLife, BrokerRegistration, PartitionState, Topic
from millrace.core.metadata.topic_config import Durability, TopicConfig


class Restart(Enum):
    """What a broker that starts again still has of its partitions."""

    CLEAN = 1
    """Everything: it was shut down in good order (P27)."""
    UNCLEAN = 2
    """What was on disk."""
    LOST_DISK = 3
    """Unknown: one of its log directories is gone."""


Shown = Mapping[BrokerLife, bool]
"""Known logs of the ELR of one partition: those that have everything before `committed_end`, and
those that lack some of it."""

NOTHING_SHOWN: Final[Shown] = {}

UNCLEAN_ELECTIONS: Final = "unclean.leader.election.enable"
"""The one setting of a topic whose default is a setting of the cluster."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Everything that decides elections in one topic besides the partition states.

    Attributes:
        brokers: every broker that has ever registered.
        may_elect_unclean: whether availability goes before the newest records (P30).
    """

    brokers: Mapping[BrokerId, BrokerRegistration]
    config: TopicConfig
    may_elect_unclean: bool

    @staticmethod
    def of(
        topic: Topic, brokers: Mapping[BrokerId, BrokerRegistration], cluster: ClusterConfig
    ) -> "Rules":
        """Return the rules of a topic; settings it does not set follow the cluster's default."""
        if UNCLEAN_ELECTIONS in topic.overrides:
            may_elect_unclean = topic.config.unclean_leader_election_enable
        else:
            may_elect_unclean = cluster.unclean_leader_election_enable
        return Rules(brokers=brokers, config=topic.config, may_elect_unclean=may_elect_unclean)

    def min_isr(self, partition: PartitionState) -> int:
        """Return how many replicas must be in sync for anything to be committed."""
        return self.config.effective_min_insync_replicas(partition.replication_factor)

    def is_live(self, life: BrokerLife) -> bool:
        """Whether this life may be in sync: registered, and not fenced (P29, P37)."""
        return life in self._live

    def can_lead(self, life: BrokerLife) -> bool:
        """Whether this life may be elected: live, not about to stop, and not reluctant (P25)."""
        return life in self._able and not self.brokers[life.broker_id].reluctance

    def may_lead(self, life: BrokerLife) -> bool:
        """Whether this life may be elected if no other can: it may be drained or reluctant.

        A broker that is shutting down may not: it would be gone at once.
        """
        return self.can_join(life) or (
            self.is_live(life) and self.brokers[life.broker_id].is_drained
        )

    def can_join(self, life: BrokerLife) -> bool:
        """Whether this life may become in sync: live, and not about to stop."""
        return life in self._able

    def without(self, lives: Iterable[BrokerLife]) -> "Rules":
        """Return the rules as if these lives were fenced."""
        brokers = dict(self.brokers)
        for life in lives:
            broker = brokers.get(life.broker_id)
            if broker is not None and broker.life == life:
                brokers[life.broker_id] = replace(broker, is_fenced=True)
        return replace(self, brokers=brokers)

    @cached_property  # Asked several times of every partition of a topic.
    def _live(self) -> frozenset[BrokerLife]:
        return frozenset(broker.life for broker in self.brokers.values() if not broker.is_fenced)

    @cached_property
    def _able(self) -> frozenset[BrokerLife]:
        return frozenset(
            broker.life
            for broker in self.brokers.values()
            if not broker.is_fenced and not broker.is_draining
        )

    def is_past(self, life: BrokerLife) -> bool:
        """Whether the broker has begun another life since."""
        broker = self.brokers.get(life.broker_id)
        return broker is None or broker.broker_epoch > life.broker_epoch

    def life_of(self, broker_id: BrokerId) -> BrokerLife | None:
        """Return the registered life of a broker."""
        broker = self.brokers.get(broker_id)
        return None if broker is None else broker.life


def candidates(
    partition: PartitionState, rules: Rules, shown: Shown = NOTHING_SHOWN
) -> list[BrokerId]:
    """Return the replicas that may lead with every committed record, in replica order (P25).

    These are in-sync replicas; or eligible ones that have shown so, when no in-sync one is left.
    """
    able = _in_sync(partition, rules) or _proven(partition, shown)
    return _in_order(partition, filter(rules.can_lead, able))


def awaited(partition: PartitionState, rules: Rules) -> list[BrokerLife]:
    """Return the eligible replicas that live, may lead, and have to show their logs first."""
    if _in_sync(partition, rules) or not partition.is_counted_on:
        return []
    return [life for life in partition.elr if rules.may_lead(life)]


def needs_leader(partition: PartitionState, rules: Rules) -> bool:
    """Whether there is no leader, or one that must not (P29) or should not (P32) lead."""
    leader = partition.leader_life
    return leader is None or not rules.can_lead(leader)


def elect(
    partition: PartitionState,
    rules: Rules,
    heir: BrokerId = NO_BROKER,
    shown: Shown = NOTHING_SHOWN,
) -> PartitionState:
    """Bring a partition in line with the brokers as they are now.

    Fenced brokers and past lives leave the ISR and cannot lead (P29, P37). A leader that can stay
    stays; else the order is that of P25: an in-sync replica; an eligible one that has shown its
    log; the last known leader, if it is the only one last known; any live replica, if unclean
    elections are allowed and no eligible one may yet show its log; no leader. A drained or
    reluctant broker leads only if the alternative is a stopping broker or no leader.

    Args:
        heir: elected, if it is a candidate and a leader is needed; else the first candidate is.
        shown: the known logs of eligible replicas.
    """
    return _elected(partition, rules, heir, _as_it_is, shown)


def restarted(
    partition: PartitionState,
    rules: Rules,
    life: BrokerLife,
    restart: Restart,
    heir: BrokerId = NO_BROKER,
) -> PartitionState:
    """Take a broker's earlier life out, before it gets the new one (P37, first phase).

    It leaves the ISR either way. It stays or becomes eligible if it still has its records: after a
    clean shutdown, or with durability `fsync`, once everything committed before that setting is
    flushed. Otherwise it is last known, as it lacks its newest records at the most. With another
    disk it is not even that: it may be empty, and as a leader it would empty the others (P26, P27).

    Args:
        rules: with the broker as it is registered now, fenced.
        life: the new one, which is not registered yet, so it is not elected meanwhile.
    """
    assert not rules.is_live(rules.life_of(life.broker_id) or life)
    is_flushed = rules.config.durability is Durability.FSYNC and not partition.is_unflushed
    keeps = restart is Restart.CLEAN or (restart is Restart.UNCLEAN and is_flushed)

    def renamed(entry: BrokerLife) -> BrokerLife | None:
        if entry.broker_id != life.broker_id:
            return entry
        return life if keeps else None

    after = _elected(partition, rules, heir, renamed)
    if restart is not Restart.LOST_DISK or life.broker_id not in after.last_known_elr:
        return after
    return after.successor(
        leader=after.leader,
        isr=after.isr,
        elr=after.elr,
        last_known_elr=_last_known_without(after, life.broker_id),
    )


def given_up(
    partition: PartitionState, rules: Rules, gone: frozenset[BrokerLife]
) -> PartitionState:
    """Do without replicas whose logs are damaged or gone (P65).

    If no other replica can lead, the replicas that have the records, damaged or not, are kept. The
    partition stays as it is, or has no leader until eligible replicas have shown their logs.
    """
    if gone.isdisjoint((*partition.isr, *partition.elr)):
        return partition

    def renamed(entry: BrokerLife) -> BrokerLife | None:
        return None if entry in gone else entry

    others = rules.without(gone)
    after = _elected(partition, others, NO_BROKER, renamed)
    if after.leader == NO_BROKER:
        is_awaited = bool(awaited(partition, others))
        return _elected(partition, others, NO_BROKER, _as_it_is) if is_awaited else partition
    return after


def renewed(partition: PartitionState, rules: Rules, replica: BrokerLife) -> PartitionState:
    """Let a damaged replica start over with an empty log, if another replica leads (P65).

    It is as if the replica were removed and added again in one step (P33), and the leader epoch
    grows as it does then: a leader counts only reports of its own epoch (P9, P22), so the records
    of the old log do not count for the new one. The replica is no longer in sync, eligible or last
    known, so it is not elected as if it had its records. It joins again like any other. Returns the
    argument if no other replica can lead: the damaged one is kept then.
    """
    without = given_up(partition, rules, frozenset({replica}))
    leader = without.leader_life
    counted = {life.broker_id for life in (*without.isr, *without.elr)}
    if leader is None or not rules.is_live(leader) or replica.broker_id in counted:
        return partition
    return without.successor(
        leader=without.leader,
        isr=without.isr,
        elr=without.elr,
        last_known_elr=_last_known_without(without, replica.broker_id),
        is_renewed=True,
    )


def unclean(partition: PartitionState, leader: BrokerLife) -> PartitionState:
    """Elect a leader that may lack committed records: it alone is in sync, and recovers (P30).

    The records of the others no longer count: they follow the new leader's log.
    """
    return partition.successor(leader=leader.broker_id, isr=(leader,), is_unclean=True)


def moved(partition: PartitionState, rules: Rules, leader: BrokerId) -> PartitionState:
    """Let another candidate lead."""
    assert leader in candidates(partition, rules)
    if leader == partition.leader:
        return partition
    in_sync = _in_sync(partition, rules) or _entries(partition.elr, leader)
    return _next(partition, rules, leader, in_sync)


def with_isr(
    partition: PartitionState,
    rules: Rules,
    isr: Iterable[BrokerLife],
    *,
    is_recovering: bool | None = None,
    is_unflushed: bool | None = None,
    committed_end: EpochEnd = NOTHING_WRITTEN,
) -> PartitionState:
    """Change the ISR under the same leader, which must stay in it (P24); the ELR follows (P26).

    Args:
        is_recovering: whether the leader recovers (P30), by its own report; None: unchanged.
        is_unflushed: whether committed records may not be flushed, likewise.
        committed_end: the end of the committed records, by its report.
    """
    members = {life.broker_id: life for life in isr}
    in_order = tuple(members[replica] for replica in partition.replicas if replica in members)
    return _next(
        partition,
        rules,
        partition.leader,
        in_order,
        is_recovering=is_recovering,
        is_unflushed=is_unflushed,
        committed_end=committed_end,
    )


def with_config(partition: PartitionState, before: Rules, rules: Rules) -> PartitionState:
    """Apply new settings of the topic, if they concern the partition.

    If fewer in-sync replicas suffice now, the leader commits without the ELR, which ends (P26). If
    records must be flushed from now on, committed ones may not be flushed yet: the leader reports
    when they are. The partition epoch grows even if nothing else does, so that a change of the ISR
    that rests on the old settings is refused (P19).

    Args:
        before: the rules so far.
    """
    becomes_flushed = (
        before.config.durability is not Durability.FSYNC
        and rules.config.durability is Durability.FSYNC
    )
    if before.min_isr(partition) == rules.min_isr(partition) and not becomes_flushed:
        return partition
    elr, last_known_elr = elr_after(partition, rules, partition.isr)
    return partition.successor(
        leader=partition.leader,
        isr=partition.isr,
        elr=elr,
        last_known_elr=last_known_elr,
        is_unflushed=partition.is_unflushed or becomes_flushed,
    )


Renaming = Callable[[BrokerLife], BrokerLife | None]
"""Decides about an entry that leaves the ISR or was in the ELR; None: records may be lost."""


def _as_it_is(entry: BrokerLife) -> BrokerLife:
    return entry


def elr_after(
    partition: PartitionState,
    rules: Rules,
    isr: Sequence[BrokerLife],
    renamed: Renaming = _as_it_is,
) -> tuple[tuple[BrokerLife, ...], tuple[BrokerId, ...]]:
    """Return ELR and last known ELR that go with a new ISR (P26).

    With min ISR in sync, records may be committed that only these have, so no other is eligible.
    With fewer, nothing is committed, and members of ISR or ELR so far still have everything, unless
    they may have lost records.
    """
    if len(isr) >= rules.min_isr(partition):
        return (), ()
    in_sync = {life.broker_id for life in isr}
    eligible: dict[BrokerId, BrokerLife] = {}
    lost = {*partition.last_known_elr}
    for entry in (*partition.elr, *partition.isr):
        named = renamed(entry)
        if named is None or rules.is_past(named):
            lost.add(entry.broker_id)
        elif entry.broker_id not in in_sync:
            eligible[entry.broker_id] = named
    return (
        tuple(eligible[replica] for replica in partition.replicas if replica in eligible),
        tuple(
            replica
            for replica in partition.replicas
            if replica in lost and replica not in eligible and replica not in in_sync
        ),
    )


def _proven(partition: PartitionState, shown: Shown) -> tuple[BrokerLife, ...]:
    """Return the members of the ELR known to have everything before `committed_end`."""
    if not partition.is_counted_on:
        return partition.elr
    return tuple(life for life in partition.elr if shown.get(life, False))


def _elected(
    partition: PartitionState,
    rules: Rules,
    heir: BrokerId,
    renamed: Renaming,
    shown: Shown = NOTHING_SHOWN,
) -> PartitionState:
    in_sync = _in_sync(partition, rules)
    leader = partition.leader_life
    if leader is not None and rules.can_lead(leader):
        return _next(partition, rules, leader.broker_id, in_sync, renamed)
    able = candidates(partition, rules, shown)
    if able:
        chosen = heir if heir in able else able[0]
        in_sync = in_sync or _entries(partition.elr, chosen)
        return _next(partition, rules, chosen, in_sync, renamed)
    # Drained or reluctant: better than one that stops, which is better than none.
    reluctant = in_sync or _proven(partition, shown)
    rather_not = _in_order(partition, filter(rules.may_lead, reluctant))
    if leader is not None and leader in in_sync and (rules.may_lead(leader) or not rather_not):
        return _next(partition, rules, leader.broker_id, in_sync, renamed)
    if rather_not:
        in_sync = in_sync or _entries(partition.elr, rather_not[0])
        return _next(partition, rules, rather_not[0], in_sync, renamed)
    if not in_sync:
        without = _next(partition, rules, NO_BROKER, (), renamed)
        last = _last_known_leader(without, rules)
        is_awaited = any(life not in shown for life in awaited(partition, rules))
        if last is None and rules.may_elect_unclean and not is_awaited:
            last = _any_live(without, rules)
        return without if last is None else unclean(partition, last)
    return _next(partition, rules, NO_BROKER, in_sync, renamed)


def _in_sync(partition: PartitionState, rules: Rules) -> tuple[BrokerLife, ...]:
    return tuple(life for life in partition.isr if rules.is_live(life))


def _in_order(partition: PartitionState, lives: Iterable[BrokerLife]) -> list[BrokerId]:
    """Return the brokers of some entries in the order of the replicas."""
    broker_ids = {life.broker_id for life in lives}
    return [broker_id for broker_id in partition.replicas if broker_id in broker_ids]


def _entries(lives: Sequence[BrokerLife], broker_id: BrokerId) -> tuple[BrokerLife, ...]:
    return tuple(life for life in lives if life.broker_id == broker_id)


def _last_known_leader(partition: PartitionState, rules: Rules) -> BrokerLife | None:
    """Return the last leader, if it alone was in sync last, and it is back."""
    if partition.elr or partition.last_known_elr != (partition.last_known_leader,):
        return None
    life = rules.life_of(partition.last_known_leader)
    return life if life is not None and rules.may_lead(life) else None


def _last_known_without(partition: PartitionState, broker_id: BrokerId) -> tuple[BrokerId, ...]:
    return tuple(broker for broker in partition.last_known_elr if broker != broker_id)


def _any_live(partition: PartitionState, rules: Rules) -> BrokerLife | None:
    """Return the best live replica for an unclean election.

    If the last leader had its disk, it would be last known. Among the others, replicas that are
    being added come last: they may have next to nothing yet, and are first in the order of the
    replicas (P33).
    """
    eligible = {life.broker_id for life in partition.elr}
    last, led_last, adding = (
        partition.last_known_elr,
        partition.last_known_leader,
        partition.adding,
    )
    by_rank = sorted(
        partition.replicas,
        key=lambda broker: (
            broker not in eligible,
            broker not in last,
            broker == led_last,
            broker in adding,
        ),
    )
    for broker_id in by_rank:
        life = rules.life_of(broker_id)
        if life is not None and rules.may_lead(life):
            return life
    return None


def _next(
    partition: PartitionState,
    rules: Rules,
    leader: BrokerId,
    isr: tuple[BrokerLife, ...],
    renamed: Renaming = _as_it_is,
    *,
    is_recovering: bool | None = None,
    is_unflushed: bool | None = None,
    committed_end: EpochEnd = NOTHING_WRITTEN,
) -> PartitionState:
    elr, last_known_elr = elr_after(partition, rules, isr, renamed)
    is_same = (
        leader == partition.leader
        and isr == partition.isr
        and elr == partition.elr
        and last_known_elr == partition.last_known_elr
        and is_recovering in (None, partition.is_recovering)
        and is_unflushed in (None, partition.is_unflushed)
        and not (elr and committed_end.end_offset > partition.committed_end.end_offset)
    )
    if is_same:
        return partition
    return partition.successor(
        leader=leader,
        isr=isr,
        elr=elr,
        last_known_elr=last_known_elr,
        committed_end=committed_end,
        is_recovering=is_recovering,
        is_unflushed=is_unflushed,
    )
