"""A witness of what leaders and followers do: it checks each step against its rule.

The product's state machines know what they were told. The witness knows who said what, in which
leader epoch, and what every log holds at that moment. So it finds a forbidden step at once, even if
the step does no harm this time.

- A follower tells the truth about its log (P4). Its leader serves it only if that log is a prefix
  of its own (P4). The follower truncates nothing that both share (P5).
- An answer is applied to the position that it was given to, while that is open, and in its leader
  epoch (P7). It holds what the leader of that epoch wrote, byte for byte (P1, P8).
- A broker leads only as the life that was elected (P37).
- The high watermark never goes back, and does not move while too few replicas are in sync. It
  passes only offsets that every replica that is or may be in sync has reported in this leader epoch
  (P9, P12, P13, P20).
- A producer's batches follow one another, and none is taken for another (P14, P42, P43, P64); the
  answers about them are true (P15 to P18).
- A leader tells where the log ends only when it knows everything that was committed before it
  (P11). A follower does not say that a committed offset does not exist (P12).
- A replica that the leader proposes for the ISR has everything that may be committed (P22); the
  proposal includes the leader (P24). The leader gives a proposal up only if it surely was not
  applied (P20, P21).
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import crc32c
from tests.sim.judges.log_witness import LogWitness
from tests.sim.machines.machine import BrokerMachine
from tests.sim.world import Violation

from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.stamped_batch import StampedBatch
from millrace.core.errors import (
    Appended,
    IneligibleReplicaError,
    MillraceError,
    OffsetOutOfRangeError,
)
from millrace.core.ids import (
    NO_LEADER_EPOCH,
    NO_PRODUCER_ID,
    BrokerId,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)
from millrace.core.metadata.model import BrokerLife
from millrace.core.metadata.topic_config import Durability
from millrace.core.records.header import BatchHeader
from millrace.core.replica.log.leader_epochs import EpochStart
from millrace.core.replica.log.producer_snapshot import BATCHES_KEPT
from millrace.core.replica.replication.appends import Acks, Waiter
from millrace.core.replica.replication.effects import Append, Change, ChangeLog, Effect, FetchFrom
from millrace.core.replica.replication.follower import PartitionFollower
from millrace.core.replica.replication.in_sync import IsrProposal
from millrace.core.replica.replication.leader import PartitionLeader
from millrace.core.replica.replication.leader_session import SessionRequest
from millrace.core.replica.replication.progress import FollowerProgress
from millrace.core.replica.replication.replica import Replica
from millrace.core.replica.replication.replicas import Replicas

_PROPOSALS_KEPT: Final = 500
_BATCHES_KEPT: Final = 4 * BATCHES_KEPT


@dataclass(slots=True)
class _Said:
    """A position, as its follower opened it: the epochs of its log, and what both share."""

    epochs: tuple[EpochStart, ...]
    start_offset: Offset
    end_offset: Offset
    shared: Offset


@dataclass(slots=True)
class _Given:
    """A batch that a leader gave offsets to."""

    base_sequence: int
    last_sequence: int
    base_offset: Offset


@dataclass(slots=True)
class _Ledger:
    """The offsets that one leader assigned, by producer; a later leader begins another ledger."""

    leader: PartitionLeader
    producers: dict[tuple[ProducerId, ProducerEpoch], deque[_Given]]


Reports = dict[BrokerLife, tuple[Offset, Offset]]
"""The highest written and flushed offset that each follower has reported."""


class ReplicaWitness:
    """One witness for the replicas of all brokers.

    Args:
        logs: judges what a new leader knows of its log.

    Attributes:
        committed: for each partition, the highest high watermark of any leader.
        proposals: for each partition, the newest last.
    """

    def __init__(self, logs: LogWitness) -> None:
        self.committed: dict[TopicPartition, Offset] = {}
        self.proposals: dict[TopicPartition, deque[IsrProposal]] = {}
        self._logs = logs
        self._said: dict[tuple[BrokerLife, BrokerId, TopicPartition], _Said] = {}
        self._named: dict[tuple[BrokerLife, BrokerId, int], FetchFrom] = {}
        """The positions that followers gave to leaders, by their handles."""
        self._reports: dict[tuple[TopicPartition, LeaderEpoch], Reports] = {}
        self._begun: set[tuple[TopicPartition, LeaderEpoch]] = set()
        self._ledgers: dict[tuple[BrokerLife, TopicPartition], _Ledger] = {}
        self._high_watermarks: dict[tuple[BrokerLife, TopicPartition], Offset] = {}
        self._sums: dict[tuple[TopicPartition, LeaderEpoch, Offset], int] = {}

    # --- Following ---------------------------------------------------------------------------

    def on_said(
        self,
        life: BrokerLife,
        leader: BrokerId,
        request: SessionRequest,
        replicas: Replicas,
        logs: Mapping[TopicPartition, PartitionLog],
    ) -> None:
        """A follower tells a leader its position."""
        for handle in request.removed:
            self._named.pop((life, leader, handle), None)
        for handle, position, progress in request.added:
            self._named[life, leader, handle] = position
            topic_partition = position.topic_partition
            replica, log = replicas.find(topic_partition), logs.get(topic_partition)
            if replica is None or replica.follower is None or log is None:
                continue
            start = max(log.log_start_offset, replica.follower.log_start_offset)
            end, epochs = position.fetch_offset, log.leader_epochs
            said = position.last_fetched_epoch
            if end > start:
                is_right = said == epochs.epoch_of(Offset(end - 1))
            else:  # Retention has deleted all of it since; the follower may know its epoch.
                is_right = said < position.leader_epoch
            if not is_right:
                raise Violation(f"{life} says {position}, and its log is of {epochs.entries}")
            if progress.flushed_offset > log.flushed_offset:
                raise Violation(f"{life} says {progress}; {log.flushed_offset} is flushed")
            self._said[life, leader, topic_partition] = _Said(epochs.entries, start, end, start)

    def on_served(
        self,
        leader: PartitionLeader,
        log: PartitionLog,
        follower: BrokerLife,
        fetch_offset: Offset,
        *,
        diverges: bool,
    ) -> None:
        """A leader accepted a position, or answered that the log diverges."""
        said = self._said.get((follower, leader.broker.broker_id, leader.topic_partition))
        if said is None or said.end_offset != fetch_offset:
            return
        shared = _shared(said, log)
        if diverges:
            said.shared = shared
        elif shared < said.end_offset:
            raise Violation(
                f"{leader.broker} serves {fetch_offset} of {follower}, whose log is of "
                f"{said.epochs}, and its own of {log.leader_epochs.entries}"
            )

    def is_answer_to_open(
        self, life: BrokerLife, leader: BrokerId, handle: int, replicas: Replicas
    ) -> bool:
        """Whether what a leader sends is to a position that its follower has still open."""
        named = self._named.get((life, leader, handle))
        replica = None if named is None else replicas.find(named.topic_partition)
        follower = None if replica is None else replica.follower
        position = None if follower is None else follower.position
        return (
            named is not None
            and position is not None
            and (position.leader, position.leader_epoch, position.number)
            == (named.leader, named.leader_epoch, named.number)
        )

    def on_fetched(
        self,
        life: BrokerLife,
        leader: BrokerId,
        leader_epoch: LeaderEpoch,
        replica: Replica | None,
        effects: Iterable[Effect],
        *,
        is_open: bool,
    ) -> None:
        """A follower took a leader's answer for a position of an epoch; these are its effects.

        Args:
            is_open: whether that position was still open.
        """
        for change in [effect for effect in effects if isinstance(effect, Append | ChangeLog)]:
            if not is_open:
                raise Violation(f"{life} applies what {leader} sent to a position that was left")
            is_cut = isinstance(change, ChangeLog) and change.change is Change.TRUNCATE
            if isinstance(change, ChangeLog) and not is_cut:
                continue
            follower = None if replica is None else replica.follower
            if follower is None or (follower.leader, follower.leader_epoch) != (
                leader,
                leader_epoch,
            ):
                raise Violation(f"{life} applies what {leader} sent in {leader_epoch}")
            if isinstance(change, ChangeLog):
                said = self._said.get((life, leader, follower.topic_partition))
                if said is not None and change.offset < said.shared:
                    raise Violation(
                        f"{life} cuts {follower.topic_partition} to {change.offset}, and "
                        f"shares it with {leader} up to {said.shared}"
                    )

    def on_writing(
        self,
        life: BrokerLife,
        topic_partition: TopicPartition,
        batch: StampedBatch,
        leads: LeaderEpoch | None,
        *,
        is_compacted: bool,
    ) -> None:
        """A batch is about to be written to a log: the leader's own, or a fetched one (P1, P8).

        Args:
            leads: the epoch in which this broker leads; None: it does not lead.
            is_compacted: whether the leader may have written it again with fewer records, or put
                it together from others; the records are compared at the end.
        """
        key = topic_partition, batch.leader_epoch, batch.base_offset
        if leads is None:
            if not is_compacted and self._sums.get(key) != _sum(batch):
                raise Violation(f"{life} keeps {key} as nobody wrote it")
        elif batch.leader_epoch != leads:
            raise Violation(f"{life} in {leads} stamps {batch.leader_epoch}")
        else:
            self._sums[key] = _sum(batch)

    def on_unreadable(
        self, follower: PartitionFollower, fetch_offset: Offset, error: Exception
    ) -> None:
        """A follower refused a reader's position (P12)."""
        committed = self.committed.get(follower.topic_partition, Offset(0))
        is_there = follower.log_start_offset <= fetch_offset <= committed
        if isinstance(error, OffsetOutOfRangeError) and is_there:
            raise Violation(
                f"a follower of {follower.topic_partition} says that there is no {fetch_offset}, "
                f"and {committed} is committed: {error}"
            )

    # --- Leading -----------------------------------------------------------------------------

    def on_end_told(self, leader: PartitionLeader) -> None:
        """A leader says where the log ends (P11).

        One that was replaced, and has not heard of it, may lack what others have committed since.
        """
        committed = self.committed.get(leader.topic_partition, Offset(0))
        least = min(committed, leader.leader_epoch_start_offset)
        if leader.high_watermark < least:
            raise Violation(
                f"{leader.broker}, leader of {leader.topic_partition} in {leader.leader_epoch}, "
                f"says that the log ends at {leader.high_watermark}; {least} was committed before"
            )

    def on_image(self, machine: BrokerMachine, replicas: Replicas, logs: "Logs") -> None:
        """A broker has applied the metadata."""
        for topic_partition in replicas:
            leader = replicas.get(topic_partition).leader
            if leader is None or leader.is_resigned:
                continue
            key = topic_partition, leader.leader_epoch
            if key in self._begun:
                continue
            self._begun.add(key)
            if leader.state.leader_life != leader.broker:
                raise Violation(f"{leader.broker} leads {topic_partition}, given {leader.state}")
            reports = self._reports.get(key, {})
            for follower in leader.in_sync.followers:
                if follower.life is not None and follower.life not in reports:
                    raise Violation(
                        f"{leader.broker} counts what {follower.life} reported before leader epoch "
                        f"{leader.leader_epoch} of {topic_partition}"
                    )
            self._logs.judge_contents(machine, logs[topic_partition].state)

    def on_report(
        self, replica: Replica, life: BrokerLife, epoch: LeaderEpoch, progress: FollowerProgress
    ) -> None:
        """A leader took a follower's report, in a session of a leader epoch."""
        leader = replica.leader
        assert leader is not None
        if epoch != leader.leader_epoch:
            raise Violation(f"{leader.broker} in {leader.leader_epoch} takes a report of {epoch}")
        reports = self._reports.setdefault((leader.topic_partition, epoch), {})
        written, flushed = reports.get(life, (-1, -1))
        if progress.log_end_offset > written or progress.flushed_offset > flushed:
            reports[life] = (
                max(progress.log_end_offset, Offset(written)),
                max(progress.flushed_offset, Offset(flushed)),
            )

    def _reported(self, leader: PartitionLeader, life: BrokerLife) -> Offset:
        reports = self._reports.get((leader.topic_partition, leader.leader_epoch), {})
        written, flushed = reports.get(life, (Offset(-1), Offset(-1)))
        return min(written, flushed) if _is_flushed(leader) else written

    def on_advanced(self, replica: Replica, log: PartitionLog) -> None:
        """The role or the high watermark of a replica may have moved."""
        after = replica.high_watermark
        key = replica.broker, replica.topic_partition
        before, self._high_watermarks[key] = self._high_watermarks.get(key, after), after
        leader, follower = replica.leader, replica.follower
        if follower is not None and after > follower.written_offset:
            raise Violation(
                f"{replica.broker}, follower of {replica.topic_partition}, ends at "
                f"{follower.written_offset}, and takes {after} for committed"
            )
        if leader is None or leader.is_resigned:
            return
        known = self.committed.get(replica.topic_partition, Offset(0))
        self.committed[replica.topic_partition] = max(known, after)
        if after == before:
            return
        what = f"{leader.broker}, leader of {replica.topic_partition} in {leader.leader_epoch}"
        if after < before:
            raise Violation(f"{what}, takes its high watermark back from {before} to {after}")
        state, rules, proposal = leader.state, leader.rules, leader.in_sync.proposal
        if len(state.isr) < min(rules.min_insync_replicas, state.replication_factor):
            raise Violation(f"{what}, commits up to {after}, and in sync are {state.isr}")
        if after > _kept(leader, log):
            raise Violation(f"{what}, commits up to {after}, and keeps {_kept(leader, log)}")
        for life in (*state.isr, *(() if proposal is None else proposal.isr)):
            if life != leader.broker and self._reported(leader, life) < after:
                raise Violation(
                    f"{what}, commits up to {after}; {life} reported {self._reported(leader, life)}"
                )

    # --- Producers ---------------------------------------------------------------------------

    def on_appended(
        self,
        leader: PartitionLeader,
        log: PartitionLog,
        header: BatchHeader,
        acks: Acks,
        waiter: Waiter,
        *,
        is_successor: bool,
    ) -> None:
        """A leader assigned offsets to a batch, or found it to be a duplicate.

        Args:
            is_successor: its producer has sent others before, and does not know their outcome.
        """
        what = f"{leader.broker}, leader of {leader.topic_partition} in {leader.leader_epoch}"
        state, rules = leader.state, leader.rules
        is_short = len(state.isr) < min(rules.min_insync_replicas, state.replication_factor)
        if acks is Acks.ALL and is_short and not waiter.is_duplicate:
            raise Violation(f"{what}, appends, and in sync are {state.isr}")
        if header.producer_id == NO_PRODUCER_ID:
            return
        given = self._given(leader, log, header)
        sequences = header.base_sequence, header.last_sequence
        if waiter.is_duplicate:
            if not any(
                (batch.base_sequence, batch.last_sequence) == sequences
                and batch.base_offset == waiter.base_offset
                for batch in given
            ):
                raise Violation(f"{what}, takes {header} for what it has not, of {given}")
            return
        if given and header.base_sequence != given[-1].last_sequence + 1:
            raise Violation(f"{what}, appends {header} after {given}")
        if is_successor and not given:
            raise Violation(f"{what}, appends {header}, and not what its producer sent before")
        given.append(_Given(*sequences, waiter.base_offset))
        entry = leader.producers.entry(header.producer_id)
        if entry is None or len(entry.batches) < min(len(given), BATCHES_KEPT):
            raise Violation(f"{what}, remembers {entry} of {given}")

    def _given(
        self, leader: PartitionLeader, log: PartitionLog, header: BatchHeader
    ) -> deque[_Given]:
        key = leader.broker, leader.topic_partition
        ledger = self._ledgers.get(key)
        if ledger is None or ledger.leader is not leader:
            ledger = self._ledgers[key] = _Ledger(leader, {})
        producer = header.producer_id, header.producer_epoch
        found = ledger.producers.get(producer)
        if found is None:
            entry = log.producer_states.entry(header.producer_id)
            found = deque(maxlen=_BATCHES_KEPT)
            if entry is not None and entry.epoch == header.producer_epoch:
                for batch in entry.batches:
                    found.append(
                        _Given(batch.base_sequence, batch.last_sequence, batch.base_offset)
                    )
            ledger.producers[producer] = found
        return found

    def on_taken_back(self, replica: Replica, base_offset: Offset) -> None:
        """Batches from this offset on were not written; their leader will hear of it."""
        leader = replica.leader
        ledger = self._ledgers.get((replica.broker, replica.topic_partition))
        if leader is None or ledger is None or ledger.leader is not leader:
            return
        for given in ledger.producers.values():
            while given and given[-1].base_offset >= base_offset:
                given.pop()

    def on_answered(
        self, replica: Replica | None, log: PartitionLog | None, waiter: Waiter
    ) -> None:
        """A producer gets the outcome of its batch."""
        what = f"the batch at {waiter.base_offset} is "
        if waiter.error is not None:
            is_there = log is not None and log.log_end_offset > waiter.base_offset
            if is_there and waiter.error.appended is Appended.NO:
                raise Violation(f"{what}refused, as if it were not there: {waiter.error}")
            return
        if replica is None or log is None:
            raise Violation(f"{what}acknowledged by one who has no replica")
        end = replica.high_watermark
        if waiter.acks is Acks.LEADER and replica.leader is not None:
            end = _kept(replica.leader, log)
        if waiter.last_offset >= end:
            raise Violation(f"{what}acknowledged by {replica.broker}, where {end} is committed")

    # --- In-sync replicas --------------------------------------------------------------------

    def on_proposed(
        self, replicas: Replicas, proposals: Iterable[tuple[TopicPartition, IsrProposal]]
    ) -> None:
        """A leader proposes a new ISR."""
        for topic_partition, proposal in proposals:
            known = self.proposals.setdefault(topic_partition, deque(maxlen=_PROPOSALS_KEPT))
            if not known or known[-1] != proposal:
                known.append(proposal)
            replica = replicas.find(topic_partition)
            leader = None if replica is None else replica.leader
            if leader is None or leader.in_sync.proposal != proposal:
                continue  # The state is newer.
            what = f"{leader.broker}, leader of {topic_partition}, proposes {proposal}"
            if leader.broker not in proposal.isr:
                raise Violation(f"{what}, and is not in it")
            if not {*leader.in_sync.maximal_isr}.issuperset((*leader.state.isr, *proposal.isr)):
                raise Violation(f"{what}, and counts on {leader.in_sync.maximal_isr}")
            least = max(leader.high_watermark, leader.leader_epoch_start_offset)
            for life in proposal.isr:
                if life not in leader.state.isr and self._reported(leader, life) < least:
                    raise Violation(
                        f"{what}; {life} reported {self._reported(leader, life)}, of {least}"
                    )

    def on_isr_answers(
        self,
        replicas: Replicas,
        proposed: Sequence[tuple[TopicPartition, IsrProposal]],
        answers: Sequence[MillraceError | None],
    ) -> None:
        """A leader has the answers to its proposals."""
        for (topic_partition, proposal), answer in zip(proposed, answers, strict=True):
            replica = replicas.find(topic_partition)
            leader = None if replica is None else replica.leader
            if leader is None or leader.is_resigned or answer is None:
                continue
            is_open = leader.state.partition_epoch == proposal.partition_epoch
            if (
                is_open
                and leader.leader_epoch == proposal.leader_epoch
                and leader.in_sync.proposal != proposal
                and not isinstance(answer, IneligibleReplicaError)
            ):
                raise Violation(f"{leader.broker} gives {proposal} up because of {answer!r}")


Logs = Mapping[TopicPartition, PartitionLog]


def _is_flushed(leader: PartitionLeader) -> bool:
    return leader.rules.durability is Durability.FSYNC


def _kept(leader: PartitionLeader, log: PartitionLog) -> Offset:
    return log.flushed_offset if _is_flushed(leader) else log.log_end_offset


def _sum(batch: StampedBatch) -> int:
    return crc32c.crc32c(batch.body, crc32c.crc32c(batch.header))


def _shared(said: _Said, log: PartitionLog) -> Offset:
    """Return up to which offset a follower's log is a prefix of its leader's, by epochs."""
    start = max(said.start_offset, log.log_start_offset)
    end = said.end_offset
    if end <= start:
        return end
    own = [
        *_from(log.leader_epochs.entries, start),
        EpochStart(NO_LEADER_EPOCH, log.log_end_offset),
    ]
    theirs = [*_from(said.epochs, start), EpochStart(NO_LEADER_EPOCH, end)]
    for one, other in zip(own, theirs, strict=False):
        if one != other:
            return min(one.start_offset, other.start_offset)
    return end


def _from(entries: Sequence[EpochStart], start: Offset) -> list[EpochStart]:
    """Return epochs as if the log began at an offset."""
    first = max((at for at, entry in enumerate(entries) if entry.start_offset <= start), default=-1)
    if first < 0:
        return list(entries)
    return [EpochStart(entries[first].epoch, start), *entries[first + 1 :]]
