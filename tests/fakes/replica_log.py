"""A replica's log as the replication code sees it: offsets that a test sets."""

from dataclasses import dataclass, field

from millrace.core.ids import LeaderEpoch, Offset
from millrace.core.replica.log.leader_epochs import LeaderEpochs
from millrace.core.replica.log.open_transactions import NOTHING_UNDECIDED, Undecided
from millrace.core.replica.log.producer_states import ProducerStates


@dataclass
class FakeReplicaLog:
    """Implements `ReplicaLog`."""

    log_end_offset: Offset = Offset(0)  # noqa: RUF009
    flushed_offset: Offset = Offset(0)  # noqa: RUF009
    log_start_offset: Offset = Offset(0)  # noqa: RUF009
    compacted_offset: Offset = Offset(0)  # noqa: RUF009
    size_bytes: int = 0
    leader_epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    producer_states: ProducerStates = field(default_factory=ProducerStates)
    undecided: Undecided = NOTHING_UNDECIDED

    def end_at(self, offset: int, epoch: int = 0) -> None:
        """Mark all up to an offset as written and flushed; a new epoch began at the old end."""
        if offset > self.log_end_offset:
            self.leader_epochs.append(LeaderEpoch(epoch), self.log_end_offset)
        else:
            self.leader_epochs.truncate_from_end(Offset(offset))
        self.log_end_offset = self.flushed_offset = Offset(offset)
