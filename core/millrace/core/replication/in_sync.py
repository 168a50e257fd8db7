"""Which replicas a leader counts on: who is in sync, who is about to be, who has to leave.

Only the controller changes the in-sync replicas. The leader proposes, and until it hears the answer
either set may be the true one. So whatever depends on the set goes by the *maximal* ISR, the union
of the committed set and of the one proposed (P20): a high watermark that waits for too many is
late, one that waits for too few loses records. One proposal is in flight at a time.

- An answer that proves that nothing was applied takes the proposal back; after any other, or none,
  the maximal ISR stays, and the same proposal is made again (P21).
- A state with a higher partition epoch ends every doubt: the stored set is the one that it names.

A follower is *caught up* at a time if it had everything then that its leader had. Reports come
pipelined, so the leader sets a mark at its end of now, and when the follower has passed the mark it
was caught up at the time when the mark was set. One that has everything is caught up for as long as
nothing is written, although nobody looks: that is noted before anything changes it (`observe`). All
times are monotonic.

Nothing here has to be asked again and again. `due_at` says when time alone will change something,
and a partition whose followers have everything waits for events only.

A follower that falls behind again and again, soon after it joined, waits longer each time before it
may come back: a change of the in-sync replicas is not free. The first time it does not wait.

Members and followers are named by broker and broker epoch. What an earlier life of a broker had
proves nothing about this one (KIP-903).

Source: KIP-497, KIP-841, KIP-903; Kafka's Partition and ISR states.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from millrace.core.ids import (
    UNKNOWN_OFFSET,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    PartitionEpoch,
)
from millrace.core.metadata.model import BrokerLife, BrokerRegistration, PartitionState
from millrace.core.metadata.topic_config import Durability
from millrace.core.replication.progress import NO_PROGRESS, FollowerProgress
from millrace.core.replication.rules import AppendRules, ReplicationConfig


class BrokerStanding(NamedTuple):
    """What the metadata says of a broker."""

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
    """Where the leader stands, which its followers are measured by."""

    log_end_offset: Offset
    high_watermark: Offset
    leader_epoch_start_offset: Offset
    flushed_offset: Offset


@dataclass(slots=True, frozen=True)
class IsrProposal:
    """Effect: ask the controller for these in-sync replicas, and report its answer.

    | the controller's answer                        | goes to           | because                 |
    |------------------------------------------------|-------------------|-------------------------|
    | a state                                        | `on_isr_accepted` |                         |
    | `IneligibleReplicaError`, or it was never sent | `on_isr_refused`  | nothing was applied     |
    | any other error, a time-out, a broken stream   | `on_isr_unknown`  | an earlier attempt may  |
    |                                                |                   | be what made it so      |

    A proposal also says that the leader has come to terms with its log, which ends the recovery
    after an unclean election (P30): what is in the log then is what there is.

    `is_unflushed` stays True, where the state says so, until all of the proposed replicas have
    flushed what is committed. Whatever is committed after that is flushed before (P13).
    """

    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[BrokerLife, ...]
    is_unflushed: bool = False


@dataclass(slots=True)
class Follower:
    """What the leader knows of one other replica, all of it from this leader epoch (P9, P22).

    `caught_up_at` is when the epoch began until the follower has caught up for the first time.
    """

    broker_id: BrokerId
    caught_up_at: MonotonicMs
    life: BrokerLife | None = None
    progress: FollowerProgress = NO_PROGRESS
    has_caught_up: bool = False

    _mark: tuple[Offset, MonotonicMs] | None = None  # The leader's end, and when it was there.
    _joined_at: MonotonicMs | None = None
    _removals: int = 0
    _held_until: MonotonicMs | None = None

    def on_report(
        self,
        life: BrokerLife,
        progress: FollowerProgress,
        leader_end: Offset,
        durability: Durability,
        now: MonotonicMs,
    ) -> None:
        """Take a report; the latest one counts, also where it says less than the one before."""
        self.observe(leader_end, durability, now)
        if life != self.life:
            self.life = life
            self.has_caught_up = False
            self._mark = None
        self.progress = progress
        kept = progress.kept(durability)
        if kept >= leader_end:
            self._caught_up(now, leader_end, now)
        elif self._mark is None:
            self._mark = leader_end, now
        elif kept >= self._mark[0]:
            self._caught_up(self._mark[1], leader_end, now)

    def _caught_up(self, at: MonotonicMs, leader_end: Offset, now: MonotonicMs) -> None:
        self.has_caught_up = True
        self.caught_up_at = max(self.caught_up_at, at)
        self._mark = leader_end, now

    def has_all(self, leader_end: Offset, durability: Durability) -> bool:
        """Whether it has everything, as far as it has said."""
        return self.life is not None and self.progress.kept(durability) >= leader_end

    def observe(self, leader_end: Offset, durability: Durability, now: MonotonicMs) -> None:
        """Note that a follower which has everything is caught up although it has nothing to say."""
        if self.has_all(leader_end, durability):
            self._caught_up(now, leader_end, now)

    def on_pause(self, leader_end: Offset, now: MonotonicMs) -> None:
        """Begin to measure anew."""
        self.caught_up_at = now
        if self._mark is not None:
            self._mark = leader_end, now

    def on_joined(self, now: MonotonicMs) -> None:
        """Note that it is in sync from now on."""
        self._joined_at = now

    def on_fell_behind(self, config: ReplicationConfig, now: MonotonicMs) -> None:
        """Note that it left because it lagged, and hold it back when that happens often."""
        joined_at, self._joined_at = self._joined_at, None
        if joined_at is None or now - joined_at >= config.isr_flap_window_ms:
            self._removals = 0
            return
        pause = min(config.isr_rejoin_pause_ms << self._removals, config.isr_rejoin_pause_max_ms)
        self._removals = min(self._removals + 1, 32)
        self._held_until = MonotonicMs(now + pause)

    def held_until(self, now: MonotonicMs) -> MonotonicMs | None:
        """Return until when it has to wait before it may join again; None: it may."""
        return None if self._held_until is None or self._held_until <= now else self._held_until


class InSyncReplicas:
    """See the module. A part of the partition leader, which alone talks to it.

    Attributes:
        state: the newest that is known.
        proposal: the one in flight.
    """

    __slots__ = (
        "_ask_again_at",
        "_awaited",
        "_broker",
        "_config",
        "_followers",
        "_has_silent",
        "_not_before",
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
        self._begin_epoch(now)

    def _begin_epoch(self, now: MonotonicMs) -> None:
        # Nothing that was reported before counts: followers must have come into this epoch (P9,
        # P22, KIP-320), and one that was taken away and given back may be empty (P33).
        self._followers = {
            each: Follower(each, now)
            for each in self.state.replicas
            if each != self._broker.broker_id
        }
        self._settle()
        self._await(())

    def _settle(self) -> None:
        self.proposal: IsrProposal | None = None
        # When the proposal in flight is to be made again; None: an answer is still to come.
        self._ask_again_at: MonotonicMs | None = None
        # After a refusal.
        self._not_before: MonotonicMs | None = None

    # --- The set -----------------------------------------------------------------------------

    @property
    def isr(self) -> tuple[BrokerLife, ...]:
        """The committed in-sync replicas."""
        return self.state.isr

    @property
    def maximal_isr(self) -> tuple[BrokerLife, ...]:
        """Everyone who is in sync, or may be (P20)."""
        if self.proposal is None:
            return self.state.isr
        isr = self.state.isr
        return (*isr, *(life for life in self.proposal.isr if life not in isr))

    def is_short(self, rules: AppendRules) -> bool:
        """Whether fewer replicas are in sync than must be: the committed set counts (P9, P14)."""
        return len(self.state.isr) < self.effective_min(rules)

    def is_surely_short(self, rules: AppendRules) -> bool:
        """Whether that is so whatever becomes of the proposal in flight (P15)."""
        brokers = {life.broker_id for life in self.maximal_isr}
        return len(brokers) < self.effective_min(rules)

    @property
    def followers(self) -> tuple[Follower, ...]:
        """All other replicas, in the order of the partition's replicas."""
        return tuple(self._followers.values())

    def has(self, broker_id: BrokerId) -> bool:
        """Whether a broker follows this partition."""
        return broker_id in self._followers

    def effective_min(self, rules: AppendRules) -> int:
        """Return how many replicas must be in sync; never more than there are."""
        return min(rules.min_insync_replicas, self.state.replication_factor)

    def smallest_end(self, durability: Durability) -> Offset | None:
        """Return what all followers that the high watermark waits for have; None: for nobody.

        A follower that has said nothing in this epoch, or whose life is not the registered one,
        has nothing (P9, P37).
        """
        if self._has_silent:
            return UNKNOWN_OFFSET
        smallest: Offset | None = None
        for follower in self._awaited:
            kept = follower.progress.kept(durability)
            if smallest is None or kept < smallest:
                smallest = kept
        return smallest

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
        """Look up whom the high watermark waits for; whatever may change that calls this."""
        members = tuple(life for life in self.maximal_isr if life != self._broker)
        joining = tuple(life for life in joining if life not in members)
        found = [self._follower(life) for life in (*members, *joining)]
        self._awaited = tuple(follower for follower in found if follower is not None)
        self._has_silent = len(self._awaited) < len(found)

    # --- What followers say ------------------------------------------------------------------

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
        """Note who has everything up to now; to be called before that changes, or is asked for."""
        for follower in self._followers.values():
            follower.observe(leader_end, rules.durability, now)

    def on_tick(self, rules: AppendRules, now: MonotonicMs) -> None:
        """Look at the time, once it was observed who has everything."""
        self._await(self._joining(rules, now))

    def on_stood_still(self, ends: LeaderEnds, now: MonotonicMs) -> None:
        """This process itself stood still: members' silence is its own fault.

        They get their whole time anew (P23).
        """
        members = [life.broker_id for life in self.maximal_isr]
        for follower in self._followers.values():
            if follower.broker_id in members:
                follower.on_pause(ends.log_end_offset, now)

    def due_at(self, ends: LeaderEnds, rules: AppendRules, now: MonotonicMs) -> MonotonicMs | None:
        """Return when time alone will change who counts, or what is to be proposed.

        Before that `on_tick` and `propose` do nothing; None: nor will they ever, without an event.
        To be asked once it was observed who has everything. May be too early, never too late.
        """
        moments: list[MonotonicMs] = []
        if self.proposal is not None:
            if self._ask_again_at is not None:
                moments.append(self._ask_again_at)
        elif self._not_before is not None and now < self._not_before:
            moments.append(self._not_before)
        elif (
            self.state.is_recovering
            or self._joiners(ends, rules, now)
            or any(self._lags(life, ends, rules, now) for life in self.state.isr)
            or (self.state.is_unflushed and self._is_flushed(self.state.isr, ends, rules))
        ):
            return now
        for follower in self._followers.values():
            held_until = follower.held_until(now)
            if held_until is not None:
                moments.append(held_until)
            if not follower.has_all(ends.log_end_offset, rules.durability):
                # A member has to leave then, and one that is to join is waited for no more.
                lags_at = follower.caught_up_at + self._config.replica_lag_time_max_ms + 1
                if lags_at > now:
                    moments.append(MonotonicMs(lags_at))
        return min(moments, default=None)

    def _joining(self, rules: AppendRules, now: MonotonicMs) -> tuple[BrokerLife, ...]:
        """Followers that will be in sync as soon as they may.

        The high watermark waits for them already (P9): under load it would run away from a
        follower for ever that is one batch behind.
        """
        return tuple(follower.life for follower in self._candidates(rules, now) if follower.life)

    def _candidates(self, rules: AppendRules, now: MonotonicMs) -> list[Follower]:
        if not self._followers or (self._not_before is not None and now < self._not_before):
            return []
        # One that has gone silent holds all that is committed, too, if nothing was since.
        caught_up_since = now - self._config.replica_lag_time_max_ms
        is_short = self.is_short(rules)
        return [
            follower
            for follower in self._followers.values()
            if follower.life is not None
            and follower.has_caught_up
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

    def propose(self, ends: LeaderEnds, rules: AppendRules, now: MonotonicMs) -> IsrProposal | None:
        """Return what is to be proposed now; at most one proposal is in flight (P20)."""
        if self.proposal is not None:
            if self._ask_again_at is None or now < self._ask_again_at:
                return None
            self._ask_again_at = None
            return self.proposal  # The same, for it may have been applied (P21).
        if self._not_before is not None and now < self._not_before:
            return None
        joiners = self._joiners(ends, rules, now)
        replaced = {life.broker_id for life in joiners}
        kept = tuple(
            life
            for life in self.state.isr
            if life.broker_id not in replaced and not self._lags(life, ends, rules, now)
        )
        members = (*kept, *joiners)
        # Who leaves may become eligible, and the leader does not know what it flushes then.
        is_flushed = kept == self.state.isr and self._is_flushed(members, ends, rules)
        is_unflushed = self.state.is_unflushed and not is_flushed
        is_news = self.state.is_recovering or is_unflushed != self.state.is_unflushed
        if members == self.state.isr and not is_news:
            return None
        self.proposal = IsrProposal(
            self.state.leader_epoch, self.state.partition_epoch, members, is_unflushed
        )
        self._await(self._joining(rules, now))
        return self.proposal

    def _is_flushed(
        self, members: tuple[BrokerLife, ...], ends: LeaderEnds, rules: AppendRules
    ) -> bool:
        """Whether all that is committed would survive an unclean restart of all members.

        A new leader's high watermark may be behind the true one (P11). Of eligible replicas it
        knows nothing; they end when enough are in sync (P26).
        """
        if rules.durability is not Durability.FSYNC or self.state.elr:
            return False
        committed = max(ends.high_watermark, ends.leader_epoch_start_offset)
        others = [self._follower(life) for life in members if life != self._broker]
        return ends.flushed_offset >= committed and all(
            each is not None and each.progress.flushed_offset >= committed for each in others
        )

    def _joiners(
        self, ends: LeaderEnds, rules: AppendRules, now: MonotonicMs
    ) -> tuple[BrokerLife, ...]:
        """Who may join (P22): caught up in this epoch, in its registered life, and not fenced.

        It must have all that is committed. A new leader's high watermark may be behind the true
        one, which is at most where its epoch began: below that nobody joins (P11).
        """
        least = max(ends.high_watermark, ends.leader_epoch_start_offset)
        return tuple(
            follower.life
            for follower in self._candidates(rules, now)
            if follower.life and follower.progress.kept(rules.durability) >= least
        )

    def _lags(
        self, life: BrokerLife, ends: LeaderEnds, rules: AppendRules, now: MonotonicMs
    ) -> bool:
        """Whether a member has to leave (P23); the leader never removes itself (P24)."""
        if life == self._broker:
            return False
        standing = self.standings.get(life.broker_id)
        if standing is not None and standing.broker_epoch > life.broker_epoch:
            return True  # That life is over, whatever the present one reports (P37).
        follower = self._followers[life.broker_id]
        known = self._follower(life)
        return (
            known is None or known.progress.kept(rules.durability) < ends.log_end_offset
        ) and now - follower.caught_up_at > self._config.replica_lag_time_max_ms

    def on_refused(self, proposal: IsrProposal, rules: AppendRules, now: MonotonicMs) -> None:
        """Take a proposal back that certainly was not applied (P21), and pause."""
        if proposal != self.proposal:
            return
        self._settle()
        self._not_before = MonotonicMs(now + self._config.isr_retry_ms)
        self._await(self._joining(rules, now))

    def on_unknown(self, proposal: IsrProposal, now: MonotonicMs) -> None:
        """Keep a proposal that may have been applied, and make it again after a pause (P21)."""
        if proposal == self.proposal:
            self._ask_again_at = MonotonicMs(now + self._config.isr_retry_ms)

    # --- What the controller says ------------------------------------------------------------

    def on_accepted(self, proposal: IsrProposal, state: PartitionState) -> None:
        """Take an answer which says that the state had been so already."""
        if proposal == self.proposal and state.isr == self.state.isr:
            self._settle()

    def adopt(
        self,
        state: PartitionState,
        standings: Mapping[BrokerId, BrokerStanding],
        rules: AppendRules,
        now: MonotonicMs,
    ) -> None:
        """Follow a state that is not older than the one known; a newer one wins (P21)."""
        self.standings = standings
        before, self.state = self.state, state
        if state.leader_epoch > before.leader_epoch:
            self._begin_epoch(now)
            return
        if state.partition_epoch > before.partition_epoch:
            self._settle()
            self._followers = {
                each: self._followers.get(each) or Follower(each, now)
                for each in state.replicas
                if each != self._broker.broker_id
            }
            self._note_changes(before.isr, now)
        self._await(self._joining(rules, now))

    def _note_changes(self, before: tuple[BrokerLife, ...], now: MonotonicMs) -> None:
        for follower in self._followers.values():
            life = follower.life
            if life is None:
                continue
            if life in self.state.isr and life not in before:
                follower.on_joined(now)
            elif life in before and life not in self.state.isr and self._may_join(life):
                follower.on_fell_behind(self._config, now)  # Else it left because it must.
