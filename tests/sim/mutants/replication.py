"""Mutants of the partition's state machines: truncation, high watermark, appends, ISR."""

from typing import Final

from tests.sim.mutants.mutant import Mutant, mutant
from tests.sim.mutants.shells import NEWS_IS_LATE

_LEADER: Final = "millrace.core.replica.replication.leader:PartitionLeader"
_OFFSETS: Final = "millrace.core.replica.replication.leader_offsets:LeaderOffsets"
_APPENDS: Final = "millrace.core.replica.replication.appends:OpenAppends"
_FOLLOWER: Final = "millrace.core.replica.replication.follower:PartitionFollower"
_IN_SYNC: Final = "millrace.core.replica.replication.in_sync:InSyncReplicas"
_EPOCHS: Final = "millrace.core.replica.log.leader_epochs:LeaderEpochs"
_STATES: Final = "millrace.core.replica.log.producer_states:ProducerStates"

# fmt: off
TRUNCATION: Final[tuple[Mutant, ...]] = (
    mutant("batches are stamped with no leader's epoch", "P1", "millrace.core.records.header:stamp",
           "_BROKER.pack(crc, leader_epoch,", "_BROKER.pack(crc, 0,"),
    mutant("a follower cuts its log once, and does not ask again whether it diverges", "P3",
           f"{_FOLLOWER}._on_truncated",
           "return self._changed(self.log_start_offset, log_end_offset)",
           "effects = self._changed(self.log_start_offset, log_end_offset)\n"
           "    for effect in effects:\n"
           "        if isinstance(effect, FetchFrom):\n"
           "            effect.last_fetched_epoch = NO_LEADER_EPOCH\n"
           "    return effects"),
    mutant("an epoch ends where the log ends", "P3", f"{_EPOCHS}.end_offset_for",
           "return EpochEnd(entries[at - 1].epoch, entries[at].start_offset)",
           "return EpochEnd(entries[at - 1].epoch, log_end_offset)"),
    mutant("a leader serves followers whose log is no prefix of its own", "P4",
           f"{_OFFSETS}.diverging",
           "if last_fetched_epoch == self.leader_epoch and fetch_offset <= self.written_offset:",
           "if fetch_offset <= self.written_offset:"),
    mutant("an empty log counts for all that it has given up, whatever came in its place", "P4",
           f"{_OFFSETS}.diverging_follower",
           "if not is_trusted or fetch_offset > self.written_offset:", "if False:"),
    mutant("a follower joins with records that its leader has deleted", "P71",
           f"{_IN_SYNC}._joiners",
           "and follower.progress.log_start_offset >= ends.log_start_offset", ""),
    mutant("a deletion of records counts although only its leader knows of it", "P71",
           f"{_IN_SYNC}.low_watermark",
           "return min([log_start_offset, *starts])", "return log_start_offset"),
    mutant("a follower cuts its log at its high watermark", "P5", f"{_FOLLOWER}._cut_back",
           "end_offset = min(diverging.end_offset, own.end_offset)",
           "end_offset = self.high_watermark"),
    mutant("nobody hears which records an unclean election has cost", "P30",
           f"{_FOLLOWER}._cut_back",
           "lost = self._lost(end_offset)", "lost = []"),
    mutant("requests of any leader epoch are answered", "P6",
           "millrace.core.replica.replication.role:Role.check_epoch",
           "if expected not in (self.leader_epoch, NO_LEADER_EPOCH):", "if False:"),
    mutant(
        # The session finds the position of such an answer by its handle, and the follower by its
        # offsets. So this mutant makes both take the answer for one to the open position.
        "an answer to a position that was left is taken for one to the open position",
        "P7",
        "millrace.core.replica.replication.leader_session:LeaderSession.position",
        "found = self._open.get(handle)",
        "found = self._open.get(handle) or next(iter(self._open.values()), None)",
    ),
    mutant("a follower keeps batches whose checksums do not hold", "P8",
           "millrace.core.records.header:verify_body",
           "if found != header.producer_crc:", "if False:"),
)
# fmt: on

# fmt: off
HIGH_WATERMARK: Final[tuple[Mutant, ...]] = (
    mutant("what a follower reported in an earlier leader epoch counts", "P9",
           f"{_IN_SYNC}._begin_epoch",
           "broker_id: Follower(broker_id, now)",
           "broker_id: getattr(self, '_followers', {}).get(broker_id) or Follower(broker_id, now)"),
    mutant("reports of sessions of another leader epoch count", "P9",
           f"{_LEADER}.on_follower_fetch",
           "self.check_epoch(leader_epoch)", "",
           also=mutant(
               "sessions of another leader epoch go on",
               "P6",
               "millrace.core.replica.fetch.session_reader:SessionReader.decide",
               "self.check_epoch(replica, position.current_leader_epoch, image)",
               "pass",
           )),
    mutant("the high watermark moves while too few are in sync", "P9", f"{_LEADER}._advance",
           "if not is_short:", "if True:"),
    mutant("a member that has said nothing in this epoch is not waited for", "P9",
           f"{_IN_SYNC}.smallest_end",
           "if self._has_silent:", "if False:"),
    mutant("the high watermark goes back", "P9", f"{_LEADER}._advance",
           "self.high_watermark = max(self.high_watermark, replicated)",
           "self.high_watermark = replicated"),
    mutant("a leader counts on itself alone", "P9", f"{_LEADER}._advance",
           "if replicated is None or replicated > durable_offset:", "if True:"),
    mutant("readers see what is not committed", "P10",
           "millrace.core.replica.replication.role:Role.last_stable_offset",
           "return self.high_watermark", "return self.written_offset"),
    mutant("a new leader says where the log ends before it knows", "P11",
           f"{_OFFSETS}.is_high_watermark_known",
           "return self.high_watermark >= self.leader_epoch_start_offset", "return True"),
    mutant("a follower takes the leader's high watermark beyond its own log", "P12",
           f"{_FOLLOWER}._advance",
           "committed = min(self._leader_high_watermark, self.written_offset)",
           "committed = self._leader_high_watermark"),
    mutant("a follower tells a reader that is ahead of it that its offset does not exist", "P12",
           "millrace.core.replica.replication.follower:PartitionFollower.check_readable",
           "raise OffsetNotAvailableError(", "raise OffsetOutOfRangeError("),
    mutant("a leader counts what it has not flushed", "P13", f"{_OFFSETS}.durable_offset",
           "return self.flushed_offset", "return self.written_offset"),
    mutant("what a follower has not flushed counts", "P13",
           "millrace.core.replica.replication.progress:FollowerProgress.kept",
           "return min(self.flushed_offset, self.log_end_offset)", "return self.log_end_offset"),
)
# fmt: on

# fmt: off
APPENDS: Final[tuple[Mutant, ...]] = (
    mutant("a leader appends although too few are in sync", "P14", f"{_LEADER}.append",
           "if acks is Acks.ALL and self.in_sync.is_short(rules):", "if False:"),
    mutant("nobody is told that too few are in sync since the append", "P15", f"{_LEADER}._advance",
           "if is_short and self._appends.wait_for_all and self.in_sync.is_surely_short(rules):",
           "if False:"),
    mutant("acks=all is acknowledged when the leader has it", "P15", f"{_APPENDS}.acknowledge",
           "done = _completed(self._waiting_for_all, high_watermark)",
           "done = _completed(self._waiting_for_all, durable_offset)"),
    mutant("who no longer leads says that nothing was appended", "P16", f"{_LEADER}._fail_all",
           "again(Appended.MAYBE)", "again(Appended.NO)"),
    mutant("who no longer leads acknowledges what waits", "P17", f"{_LEADER}.resign",
           "self._complete(self._fail_all(error))",
           "self._complete(self._appends.acknowledge(Offset(-1), self.next_offset)"
           " + self._fail_all(error))"),
    mutant("a repetition is acknowledged before its original is committed", "P18",
           f"{_LEADER}._repeat",
           "if self._is_acknowledged(waiter):", "if True:"),
    mutant("a repeated batch is appended again", "P42", f"{_STATES}.check",
           "return kept.base_offset", "return None"),
    mutant("four batches of a producer are remembered", "P42", f"{_STATES}.update",
           "entry.batches[1 - BATCHES_KEPT :]", "entry.batches[2 - BATCHES_KEPT :]"),
    mutant("a batch is taken before the one that goes before it", "P43", f"{_STATES}.check",
           "if ahead > SEQUENCE_MAX // 2:",
           "if ahead <= SEQUENCE_MAX // 2:\n"
           "        return None\n    if ahead > SEQUENCE_MAX // 2:"),
    mutant("a producer that is not known begins with the successor of an open batch", "P43",
           f"{_STATES}.check",
           "if is_successor:", "if False:"),
    mutant("sequences of batches that were not written stay taken", "P64", f"{_APPENDS}.take_back",
           "producers.put(given.producer_id, given.producer_before)", "pass"),
)
# fmt: on

# fmt: off
IN_SYNC: Final[tuple[Mutant, ...]] = (
    mutant("a member that is being added is not waited for before its addition is known", "P20",
           f"{_IN_SYNC}.maximal_isr",
           "return tuple(self._members)", "return self.state.isr"),
    mutant("a member that is being removed is not waited for any more", "P20",
           f"{_IN_SYNC}.maximal_isr",
           "return tuple(self._members)",
           "return self.proposal.isr if self.proposal is not None else self.state.isr"),
    mutant("a proposal without an answer is taken back", "P21",
           "millrace.core.replica.replication.replicas:Replicas.on_isr_answers",
           "elif isinstance(answer, IneligibleReplicaError):", "elif True:"),
    mutant("a follower joins below the high watermark", "P22", f"{_IN_SYNC}._joiners",
           "for follower in self._candidates(rules, now)",
           "for follower in self._followers.values()",
           "and follower.progress.kept(rules.durability) >= least",
           "and follower.life not in self.state.isr\n"
           "            and self._may_join(follower.life)"),
    mutant("a follower joins below where the epoch began", "P22", f"{_IN_SYNC}._joiners",
           "least = max(ends.high_watermark, ends.leader_epoch_start_offset)",
           "least = ends.high_watermark", "for follower in self._candidates(rules, now)",
           "for follower in self._followers.values()", "if follower.life",
           "if follower.life and follower.life not in self.state.isr\n"
           "            and self._may_join(follower.life)"),
    mutant("a leader whose clock jumped takes its followers for silent", "P23",
           "millrace.core.replica.replication.replicas:Replicas._note_time",
           "if now - since > self._config.replica_lag_time_max_ms // 2:", "if False:"),
    mutant("who lags stays in sync", "P23", f"{_IN_SYNC}._lags",
           ") and now - follower.caught_up_at > self._config.replica_lag_time_max_ms",
           ") and False"),
    mutant("a leader proposes to leave", "P24", f"{_IN_SYNC}.propose",
           "members = (*kept, *joiners)",
           "members = tuple(each for each in (*kept, *joiners) if each != self._broker)"),
    mutant("a damaged replica is emptied before anybody else knows", "P65",
           "millrace.core.replica.replication.renewals:Renewals.to_set_aside",
           "if damaged.phase is RenewalPhase.GRANTED", "if damaged.phase is not None"),
    mutant("a broker leads because an earlier life of it does", "P37",
           "millrace.core.replica.replication.replica:Replica.must_lead",
           "self.state.leader_life == self.broker", "self.state.leader == self.broker.broker_id",
           also=NEWS_IS_LATE),
)
# fmt: on

# fmt: off
ELIGIBLE: Final[tuple[Mutant, ...]] = (
    mutant("a leader does not say what is committed", "P26",
           "millrace.core.replica.replication.in_sync:InSyncReplicas._knows_more",
           "return bool(self.state.elr) and", "return False and"),
    mutant("an eligible replica may lack one record", "P26",
           "millrace.core.replica.log.leader_epochs:LeaderEpochs.has",
           "if log_end_offset < end.end_offset:", "if log_end_offset < end.end_offset - 1:"),
)
# fmt: on

MUTANTS: Final = (*TRUNCATION, *HIGH_WATERMARK, *APPENDS, *IN_SYNC, *ELIGIBLE)
