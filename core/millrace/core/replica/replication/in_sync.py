"""The replicas that a leader counts on: those in sync, about to join, or about to leave.

Only the controller changes the in-sync replicas. The leader proposes a set, and until it has the
answer either set may be the true one. So everything that depends on the set uses the *maximal* ISR,
the union of the committed set and the proposed one (P20): a high watermark that waits for too many
is late, one that waits for too few loses records. One proposal is in flight at a time. The states
of followers, members and proposals, and their events, are the tables of `isr_states`.

- An answer that proves that nothing was applied takes the proposal back; after any other, or none,
  the maximal ISR stays, and the same proposal is made again (P21).
- A state with a higher partition epoch ends every doubt: it names the stored set.

While fewer than min ISR are in sync the high watermark stands still. The leader reports it as soon
as the metadata has an ELR and a lower end: a member must show that it has everything before it, if
it is to lead (P26). A lagging member leaves with the high watermark of that moment; if it moved
before the change was stored, or the controller removed a member by itself, the leader reports it
afterwards.

The shell need not poll. `due_at` says when time alone will change something, and a partition whose
followers have everything waits only for events.

A follower joins only if its log begins no earlier than the leader's, durably: else deleted records
would be back when it leads. `low_watermark` says which deletions all have that may lead (P71).

Members and followers are named by broker and broker epoch. The log of an earlier life of a broker
proves nothing about this one (KIP-903).

Source: KIP-497, KIP-841, KIP-903; Kafka's Partition and ISR states.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from millrace.core.ids import (
    NOTHING_WRITTEN,
    UNKNOWN_OFFSET,
    BrokerEpoch,
    BrokerId,
    EpochEnd,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    PartitionEpoch,
    TopicPartition,
)
from millrace.core.metadata.model import BrokerLife, BrokerRegistration, PartitionState
from millrace.core.metadata.requests import AlterPartition
from millrace.core.metadata.topic_config import Durability
from millrace.core.replica.log.leader_epochs import LeaderEpochs
from millrace.core.replica.replication.isr_states import (
    MEMBERSHIP_TRANSITIONS,
    PROPOSAL_TRANSITIONS,
    FollowerState,
    Membership,
    MembershipEvent,
    ProposalEvent,
    ProposalState,
)
from millrace.core.replica.replication.progress import Follower, FollowerProgress
from millrace.core.replica.replication.rules import AppendRules, ReplicationConfig
from millrace.core.transitions import after


class BrokerStanding(NamedTuple):
    """A broker's standing in the metadata."""

    broker_epoch: BrokerEpoch
    can_join: bool
    """It is neither fenced nor shutting down (P29)."""


def standings_of(
    brokers: Mapping[BrokerId, BrokerRegistration],
) -> dict[BrokerId, BrokerStanding]:
    """Return every broker's standing; one result serves all partitions of a broker."""
    return {
        broker_id: BrokerStanding(
            broker.broker_epoch, can_join=not broker.is_fenced and not broker.is_draining
        )
        for broker_id, broker in brokers.items()
    }


class LeaderEnds(NamedTuple):
    """The offsets of the leader, to which followers are compared."""

    log_end_offset: Offset
    high_watermark: Offset
    leader_epoch_start_offset: Offset
    flushed_offset: Offset
    log_start_offset: Offset


@dataclass(slots=True, frozen=True)
class IsrProposal:
    """The in-sync replicas that a leader asks the controller for. Its answer decides what follows.

    | the controller's answer                        | goes to           | because                 |
    |------------------------------------------------|-------------------|-------------------------|
    | a state                                        | `on_isr_accepted` |                         |
    | `IneligibleReplicaError`, or it was never sent | `on_isr_refused`  | nothing was applied     |
    | any other error, a time-out, a broken stream   | `on_isr_unknown`  | an earlier attempt may  |
    |                                                |                   | be what made it so      |

    A proposal also ends the recovery after an unclean election (P30): the leader's log counts as it
    is.

    `is_unflushed` stays True, if the state says so, until all of the proposed replicas have flushed
    the committed records. Later records are flushed before they are committed (P13).
    `committed_end` is the leader's high watermark: eligible replicas must have everything before it
    (P26).
    """

    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[BrokerLife, ...]
    is_unflushed: bool = False
    committed_end: EpochEnd = NOTHING_WRITTEN

    def request_of(self, topic_partition: TopicPartition, leader: BrokerLife) -> AlterPartition:
        """Return the request to the controller."""
        return AlterPartition(
            topic_id=topic_partition.topic_id,
            partition=topic_partition.partition,
            leader=leader,
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            isr=self.isr,
            is_unflushed=self.is_unflushed,
            committed_end=self.committed_end,
        )


class InSyncReplicas:
    """The committed set, and the proposal under way. Only the partition leader uses it.

    Attributes:
        state: the newest known one.
        proposal: the one in flight or in doubt.
    """

    __slots__ = (
        "_awaited",
        "_broker",
        "_config",
        "_followers",
        "_has_silent",
        "_members",
        "_proposal_state",
        "_retry_at",
        "proposal",
        "standings",
        "state",
    )

    def __init__(
        self,
        broker: BrokerLife,
        state: PartitionState,
        standings: Mapping[BrokerId, BrokerStanding],
        config: ReplicationConfig,
        now: MonotonicMs,
    ) -> None:
        self._broker = broker
        self._config = config
        self.standings = standings
        self.state = state
        self.proposal: IsrProposal | None = None
        self._proposal_state = ProposalState.SETTLED
        # Of a proposal in doubt, or of the next one after a refusal.
        self._retry_at = now
        # All that are or may be in sync, those of the committed set first.
        self._members: dict[BrokerLife, Membership] = {}
        self._begin_epoch(now)

    def _begin_epoch(self, now: MonotonicMs) -> None:
        # Earlier reports do not count: followers must have reached this epoch (P9, P22, KIP-320),
        # and a replica that was removed and added again may be empty (P33).
        self._followers = {
            broker_id: Follower(broker_id, now)
            for broker_id in self.state.replicas
            if broker_id != self._broker.broker_id
        }
        self._settle(now)
        self._await(())

    def _settle(self, now: MonotonicMs, event: ProposalEvent = ProposalEvent.SETTLED) -> None:
        """Accept the committed set; no proposal is in flight any more."""
        self._on(event)
        self.proposal = None
        before, self._members = self._members, {}
        for life in dict.fromkeys((*self.state.isr, *before)):
            was = before.get(life, Membership.OUT)
            is_in = life in self.state.isr
            settled = MembershipEvent.COMMITTED_IN if is_in else MembershipEvent.COMMITTED_OUT
            membership = after(MEMBERSHIP_TRANSITIONS, was, settled)
            if membership is Membership.IN_SYNC:
                self._members[life] = membership
            self._note_change(life, was, membership, now)

    def _note_change(
        self, life: BrokerLife, was: Membership, membership: Membership, now: MonotonicMs
    ) -> None:
        follower = self._followers.get(life.broker_id)
        if follower is None or follower.life != life:
            return
        was_in = was in (Membership.IN_SYNC, Membership.LEAVING)
        if membership is Membership.IN_SYNC and not was_in:
            follower.on_joined(now)
        elif membership is Membership.OUT and was_in and self._may_join(life):
            follower.on_fell_behind(self._config, now)  # Else it left for another reason.

    def _change(self, life: BrokerLife, event: MembershipEvent) -> None:
        was = self._members.get(life, Membership.OUT)
        self._members[life] = after(MEMBERSHIP_TRANSITIONS, was, event)

    def _on(self, event: ProposalEvent) -> None:
        self._proposal_state = after(PROPOSAL_TRANSITIONS, self._proposal_state, event)

    def _is_pausing(self, now: MonotonicMs) -> bool:
        """Whether the pause after a refusal lasts."""
        return self._proposal_state is ProposalState.REFUSED and now < self._retry_at

    # --- The set -----------------------------------------------------------------------------

    @property
    def maximal_isr(self) -> tuple[BrokerLife, ...]:
        """All replicas that are in sync, or may be (P20)."""
        return tuple(self._members)

    def is_short(self, rules: AppendRules) -> bool:
        """Whether too few replicas are in sync: the committed set counts (P9, P14)."""
        in_sync = len(self.state.isr)
        return in_sync < rules.min_insync_replicas and in_sync < self.effective_min(rules)

    def is_surely_short(self, rules: AppendRules) -> bool:
        """Whether too few are in sync with either outcome of the proposal in flight (P15)."""
        brokers = {life.broker_id for life in self.maximal_isr}
        return len(brokers) < self.effective_min(rules)

    @property
    def followers(self) -> tuple[Follower, ...]:
        """All other replicas, in the order of the partition's replicas."""
        return tuple(self._followers.values())

    @property
    def has_followers(self) -> bool:
        """Whether the partition has other replicas."""
        return bool(self._followers)

    def has(self, broker_id: BrokerId) -> bool:
        """Whether a broker follows this partition."""
        return broker_id in self._followers

    def effective_min(self, rules: AppendRules) -> int:
        """Return how many replicas must be in sync; never more than there are."""
        return min(rules.min_insync_replicas, self.state.replication_factor)

    def smallest_end(self, durability: Durability) -> Offset | None:
        """Return the smallest end of the followers that the high watermark waits for; None: none.

        A follower without a report in this epoch, or whose life is not the registered one, has
        nothing (P9, P37).
        """
        if self._has_silent:
            return UNKNOWN_OFFSET
        smallest: Offset | None = None
        for follower in self._awaited:
            kept = follower.progress.kept(durability)
            if smallest is None or kept < smallest:
                smallest = kept
        return smallest

    def low_watermark(self, log_start_offset: Offset) -> Offset:
        """Return before which offset all replicas that may lead have deleted everything (P71).

        Args:
            log_start_offset: of the leader's log.
        """
        others = dict.fromkeys((*self.maximal_isr, *self.state.elr))
        others.pop(self._broker, None)
        found = [self._follower(life) for life in others]
        starts = [
            UNKNOWN_OFFSET if follower is None else follower.progress.log_start_offset
            for follower in found
        ]
        return min([log_start_offset, *starts])

    def compacted_offset(self, of_leader: Offset) -> Offset:
        """Return up to where all replicas have compacted their logs, in sync or not (P57).

        Args:
            of_leader: up to where its own log is.
        """
        others = [follower.progress.compacted_offset for follower in self._followers.values()]
        return max(min([of_leader, *others]), Offset(0))

    def _follower(self, life: BrokerLife) -> Follower | None:
        """Return what is known of a life of a broker; None: nothing that counts."""
        follower = self._followers.get(life.broker_id)
        if follower is None or follower.life != life or not self._is_registered(life):
            return None
        return follower

    def _is_registered(self, life: BrokerLife) -> bool:
        standing = self.standings.get(life.broker_id)
        return standing is not None and standing.broker_epoch == life.broker_epoch

    def _await(self, joining: tuple[BrokerLife, ...]) -> None:
        """Update the followers that the high watermark waits for; each change of them calls
        this."""
        members = tuple(life for life in self.maximal_isr if life != self._broker)
        joining = tuple(life for life in joining if life not in members)
        found = [self._follower(life) for life in (*members, *joining)]
        self._awaited = tuple(follower for follower in found if follower is not None)
        self._has_silent = len(self._awaited) < len(found)

    # --- Reports of followers ----------------------------------------------------------------

    def on_report(
        self,
        life: BrokerLife,
        progress: FollowerProgress,
        leader_end: Offset,
        rules: AppendRules,
        now: MonotonicMs,
    ) -> None:
        """Take a follower's report, which is of this leader epoch and a prefix of the log."""
        follower = self._followers[life.broker_id]
        if follower.life is not None and life.broker_epoch < follower.life.broker_epoch:
            return  # An earlier life of the broker, late (KIP-903).
        is_new = life != follower.life
        follower.on_report(life, progress, leader_end, rules.durability, now)
        if is_new or life not in self.state.isr:
            self.observe(leader_end, rules, now)
            self._await(self._joining(rules, now))

    def observe(self, leader_end: Offset, rules: AppendRules, now: MonotonicMs) -> None:
        """Note which followers have everything now; to be called before that changes or is used."""
        for follower in self._followers.values():
            follower.observe(leader_end, rules.durability, now)

    def on_tick(self, rules: AppendRules, now: MonotonicMs) -> None:
        """Let time pass; call `observe` before."""
        self._await(self._joining(rules, now))

    def on_stood_still(self, ends: LeaderEnds, now: MonotonicMs) -> None:
        """This process itself stood still: members' silence is its own fault.

        They get their whole time again (P23).
        """
        members = [life.broker_id for life in self.maximal_isr]
        for follower in self._followers.values():
            if follower.broker_id in members:
                follower.on_pause(ends.log_end_offset, now)

    def due_at(self, ends: LeaderEnds, rules: AppendRules, now: MonotonicMs) -> MonotonicMs | None:
        """Return when time alone will change the members, or the proposal.

        Before that `on_tick` and `propose` do nothing; None: only an event changes that. Call
        `observe` before. May be too early, never too late.
        """
        moments: list[MonotonicMs] = []
        if self._proposal_state is ProposalState.IN_DOUBT or self._is_pausing(now):
            moments.append(self._retry_at)
        elif self._proposal_state is not ProposalState.IN_FLIGHT and (
            self.state.is_recovering
            or self._joiners(ends, rules, now)
            or any(self._lags(life, ends, rules, now) for life in self.state.isr)
            or (self.state.is_unflushed and self._is_flushed(self.state.isr, ends, rules))
            or self._knows_more(ends)
        ):
            return now
        for follower in self._followers.values():
            held_until = follower.held_until(now)
            if held_until is not None:
                moments.append(held_until)
            if not follower.has_all(ends.log_end_offset, rules.durability):
                # Then a member has to leave, and the wait for a joining follower ends.
                lags_at = follower.caught_up_at + self._config.replica_lag_time_max_ms + 1
                if lags_at > now:
                    moments.append(MonotonicMs(lags_at))
        return min(moments, default=None)

    def _joining(self, rules: AppendRules, now: MonotonicMs) -> tuple[BrokerLife, ...]:
        """Followers that will be in sync as soon as they may.

        The high watermark waits for them already (P9): under load a follower that is one batch
        behind would otherwise never reach it.
        """
        return tuple(follower.life for follower in self._candidates(rules, now) if follower.life)

    def _candidates(self, rules: AppendRules, now: MonotonicMs) -> list[Follower]:
        if not self._followers or self._is_pausing(now):
            return []
        # A silent one has all committed records, too, if nothing was committed since.
        caught_up_since = now - self._config.replica_lag_time_max_ms
        is_short = self.is_short(rules)
        return [
            follower
            for follower in self._followers.values()
            if follower.life is not None
            and follower.state is FollowerState.CAUGHT_UP
            and follower.caught_up_at >= caught_up_since
            and follower.life not in self.state.isr
            and self._may_join(follower.life)
            and (is_short or follower.held_until(now) is None)
        ]

    def _may_join(self, life: BrokerLife) -> bool:
        return self._is_registered(life) and self.standings[life.broker_id].can_join

    # --- Proposals ---------------------------------------------------------------------------

    def is_expansion_due(self, ends: LeaderEnds, rules: AppendRules, now: MonotonicMs) -> bool:
        """Whether a follower may join now, and nothing else is in flight."""
        return self.proposal is None and bool(self._joiners(ends, rules, now))

    def propose(
        self,
        ends: LeaderEnds,
        leader_epochs: LeaderEpochs,
        rules: AppendRules,
        now: MonotonicMs,
    ) -> IsrProposal | None:
        """Return the proposal to make now; at most one is in flight (P20)."""
        if self._proposal_state is ProposalState.IN_DOUBT and now >= self._retry_at:
            self._on(ProposalEvent.MADE)
            return self.proposal  # The same, for it may have been applied (P21).
        if self.proposal is not None or self._is_pausing(now):
            return None
        joiners = self._joiners(ends, rules, now)
        replaced = {life.broker_id for life in joiners}
        kept = tuple(
            life
            for life in self.state.isr
            if life.broker_id not in replaced and not self._lags(life, ends, rules, now)
        )
        members = (*kept, *joiners)
        # A leaving member may become eligible, and the leader does not know its later flushes.
        is_flushed = kept == self.state.isr and self._is_flushed(members, ends, rules)
        is_unflushed = self.state.is_unflushed and not is_flushed
        is_news = (
            self.state.is_recovering
            or is_unflushed != self.state.is_unflushed
            or self._knows_more(ends)
        )
        if members == self.state.isr and not is_news:
            return None
        self.proposal = IsrProposal(
            self.state.leader_epoch,
            self.state.partition_epoch,
            members,
            is_unflushed,
            leader_epochs.end_at(ends.high_watermark),
        )
        self._on(ProposalEvent.MADE)
        for life in dict.fromkeys((*self.state.isr, *members)):
            if life not in members:
                self._change(life, MembershipEvent.REMOVAL_PROPOSED)
            elif life not in self.state.isr:
                self._change(life, MembershipEvent.ADDITION_PROPOSED)
        self._await(self._joining(rules, now))
        return self.proposal

    def _knows_more(self, ends: LeaderEnds) -> bool:
        """Whether the high watermark is beyond the `committed_end` of the metadata."""
        return bool(self.state.elr) and ends.high_watermark > self.state.committed_end.end_offset

    def _is_flushed(
        self, members: tuple[BrokerLife, ...], ends: LeaderEnds, rules: AppendRules
    ) -> bool:
        """Whether all committed records would survive an unclean restart of all members.

        A new leader's high watermark may be behind the true one (P11). It knows nothing about
        eligible replicas; there are none once enough are in sync (P26).
        """
        if rules.durability is not Durability.FSYNC or self.state.elr:
            return False
        committed = max(ends.high_watermark, ends.leader_epoch_start_offset)
        others = [self._follower(life) for life in members if life != self._broker]
        return ends.flushed_offset >= committed and all(
            follower is not None and follower.progress.flushed_offset >= committed
            for follower in others
        )

    def _joiners(
        self, ends: LeaderEnds, rules: AppendRules, now: MonotonicMs
    ) -> tuple[BrokerLife, ...]:
        """Return the lives that may join (P22): caught up in this epoch, registered, and not
        fenced.

        A joining one must have all committed records, and none that was deleted (P71). A new
        leader's high watermark may be behind the true one, which is at most where its epoch began:
        below that no follower joins (P11).
        """
        least = max(ends.high_watermark, ends.leader_epoch_start_offset)
        return tuple(
            follower.life
            for follower in self._candidates(rules, now)
            if follower.life
            and follower.progress.kept(rules.durability) >= least
            and follower.progress.log_start_offset >= ends.log_start_offset
        )

    def _lags(
        self, life: BrokerLife, ends: LeaderEnds, rules: AppendRules, now: MonotonicMs
    ) -> bool:
        """Whether a member has to leave (P23); the leader never removes itself (P24)."""
        if life == self._broker:
            return False
        standing = self.standings.get(life.broker_id)
        if standing is not None and standing.broker_epoch > life.broker_epoch:
            return True  # That life is over, even if the present one reports (P37).
        follower = self._followers[life.broker_id]
        known = self._follower(life)
        return (
            known is None or known.progress.kept(rules.durability) < ends.log_end_offset
        ) and now - follower.caught_up_at > self._config.replica_lag_time_max_ms

    def on_refused(self, proposal: IsrProposal, rules: AppendRules, now: MonotonicMs) -> None:
        """Take a proposal back that certainly was not applied (P21), and pause."""
        if proposal != self.proposal:
            return
        self._settle(now, ProposalEvent.REFUSED)
        self._retry_at = MonotonicMs(now + self._config.isr_retry_ms)
        self._await(self._joining(rules, now))

    def on_unknown(self, proposal: IsrProposal, now: MonotonicMs) -> None:
        """Keep a proposal that may have been applied, and make it again after a pause (P21)."""
        if proposal == self.proposal:
            self._on(ProposalEvent.UNKNOWN)
            self._retry_at = MonotonicMs(now + self._config.isr_retry_ms)

    # --- Answers of the controller -----------------------------------------------------------

    def on_accepted(self, proposal: IsrProposal, state: PartitionState, now: MonotonicMs) -> None:
        """Take an answer that the state was so already."""
        if proposal == self.proposal and state.isr == self.state.isr:
            self._settle(now)

    def adopt(
        self,
        state: PartitionState,
        standings: Mapping[BrokerId, BrokerStanding],
        rules: AppendRules,
        now: MonotonicMs,
    ) -> None:
        """Follow a state that is not older than the known one; a newer one wins (P21)."""
        self.standings = standings
        before, self.state = self.state, state
        if state.leader_epoch > before.leader_epoch:
            self._begin_epoch(now)
            return
        if state.partition_epoch > before.partition_epoch:
            self._followers = {
                broker_id: self._followers.get(broker_id) or Follower(broker_id, now)
                for broker_id in state.replicas
                if broker_id != self._broker.broker_id
            }
            self._settle(now)
        self._await(self._joining(rules, now))
