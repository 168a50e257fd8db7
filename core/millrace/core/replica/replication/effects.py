"""What a broker's replicas order, in the order in which the shell performs it.

Leaders and followers return effects with their partition, and no layer translates them: the shell
performs them, and the queue of jobs on files (`file_jobs`) holds the same objects. As in raft's
`Ready`, something must be durable before each. The machine returns an effect only then; the shell
reports what it did only when that is durable in its turn:

| effect         | durable before it                    | answer, once this is durable          |
|----------------|--------------------------------------|---------------------------------------|
| `OpenLog`      | the state that names this replica    | `on_opened`: recovered batches, where |
|                |                                      | durability is `fsync`; `on_failed`,   |
|                |                                      | `unopened.on_refused`                 |
| `Configure`    | likewise                             |                                       |
| `CloseReplica` | the deletion of the topic            |                                       |
| `DropReplica`  | the state that names others          |                                       |
| `SetAside`     | the state that does not count on     | `on_set_aside`: the log's other name; |
|                | this replica                         | `on_set_aside_failed`                 |
| `Append`       | nothing                              | `Written`; `Flushed`: the batches;    |
|                |                                      | `Failed`                              |
| `ChangeLog`    | the commit of what `ADVANCE_START`   | `Changed`, `Flushed`: the change      |
|                | deletes (P71); else nothing          |                                       |
| `FetchFrom`    | nothing: a follower reports apart    | `on_fetched`, `on_fetch_error`,       |
|                | what is written and what is flushed  | `on_session_broken`                   |
| `StopFetching` | nothing                              |                                       |
| `Complete`     | the records, as durability and acks  |                                       |
|                | ask (P13, P15), unless it failed     |                                       |
| `Wake`         | everything below the high watermark, |                                       |
|                | as durability asks (P13)             |                                       |
| `RecordsLost`  | nothing; the cut follows             |                                       |
| `Halted`       | nothing                              |                                       |
| `Propose…`     | nothing                              | `on_isr_answers`, `on_answers`: the   |
|                |                                      | controller's change                   |

`FetchFrom` and `StopFetching` end in `Replicas`, which has the sessions with leaders.

Source: etcd's raft, `Ready`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, Self

from millrace.core.errors import SafetyViolationError
from millrace.core.ids import (
    UNKNOWN_OFFSET,
    VERIFY_NOTHING,
    BrokerId,
    LeaderEpoch,
    Offset,
    TopicPartition,
)
from millrace.core.metadata.model import Topic
from millrace.core.metadata.requests import ReplicaRenewal
from millrace.core.replica.replication.appends import Waiter
from millrace.core.replica.replication.in_sync import IsrProposal


class ReplicaBatch(Protocol):
    """The fields of a batch that the machines need; the shell has the bytes."""

    @property
    def base_offset(self) -> Offset: ...
    @property
    def next_offset(self) -> Offset: ...
    @property
    def leader_epoch(self) -> LeaderEpoch: ...
    def cut(self, topic_partition: TopicPartition, offset: Offset) -> Self:
        """Return the end of the batch, from `offset` on, as a batch of its own."""


# --- The files of a replica ------------------------------------------------------------------


@dataclass(slots=True)
class OpenLog:
    """Open the partition's log, or begin one.

    Recovered batches are flushed before the answer: without a later append nothing else would flush
    them, and the high watermark, and a producer that repeats its last batch, would wait for ever.
    """

    topic_partition: TopicPartition
    topic: Topic
    is_first: bool = False
    """Whether the first image after the start names the replica: its log should be there."""


@dataclass(slots=True)
class Configure:
    """The topic's settings have changed, or may have."""

    topic_partition: TopicPartition
    topic: Topic


@dataclass(slots=True)
class CloseReplica:
    """Stop serving the partition, whose topic was deleted; its data stays (P75)."""

    topic_partition: TopicPartition
    may_return: bool = True
    """Whether the topic may be brought back: then its log is closed in order, to be opened soon."""


@dataclass(slots=True)
class DropReplica:
    """Stop serving the partition, and move its data to the trash: others have it (P33, P70)."""

    topic_partition: TopicPartition


@dataclass(slots=True)
class SetAside:
    """Rename a damaged log: its name must be free for a new one.

    No remembered state of the old log may be used for the new one.
    """

    topic_partition: TopicPartition


# --- The log of a replica --------------------------------------------------------------------


@dataclass(slots=True)
class Append:
    """Append these batches unchanged (P1)."""

    topic_partition: TopicPartition
    batches: Sequence[ReplicaBatch]
    generation: int
    """Failed writes before it; after one more it is void."""


class Change(Enum):
    """A change of a log, apart from appends."""

    TRUNCATE = "end the log at an offset, or at the start of the batch that holds it"
    START_OVER = "delete all batches; the log is empty and begins at an offset"
    ADVANCE_START = "delete the batches before an offset"
    FLUSH = "make all of it durable"


@dataclass(slots=True)
class ChangeLog:
    """Change the log of a replica that is open."""

    topic_partition: TopicPartition
    change: Change
    offset: Offset = UNKNOWN_OFFSET


# --- The leader to follow --------------------------------------------------------------------


@dataclass(slots=True)
class FetchFrom:
    """Open this position at the leader; an earlier one gets no more answers (P4)."""

    topic_partition: TopicPartition
    leader: BrokerId
    leader_epoch: LeaderEpoch
    fetch_offset: Offset
    last_fetched_epoch: LeaderEpoch
    number: int
    """Different for each position, also at the same offset: an old answer must not be taken
    twice."""
    pause_ms: int = 0
    """Pause before, after a refusal."""
    verify_until: Offset = VERIFY_NOTHING
    """The leader verifies what it sends of the records below: a batch came damaged."""


@dataclass(slots=True)
class StopFetching:
    """Leave the position."""

    topic_partition: TopicPartition


# --- Those who wait --------------------------------------------------------------------------


@dataclass(slots=True)
class Complete:
    """Tell the owners of these appends how they ended."""

    topic_partition: TopicPartition
    waiters: list[Waiter]


@dataclass(slots=True)
class Wake:
    """Wake the partition's readers: its role, high watermark or log start has changed."""

    topic_partition: TopicPartition
    only_followers: bool = False
    """More is written, and not committed yet."""


@dataclass(slots=True)
class RecordsLost:
    """Report and count records lost by an unclean election (P30); the log is cut next.

    Producers had acknowledgements for the committed ones. Which of them were committed is known
    here only up to the high watermark, which is always a step behind.
    """

    topic_partition: TopicPartition
    leader_epoch: LeaderEpoch
    """Leader epoch of the log without these records."""
    start_offset: Offset
    """Both logs are equal before this offset."""
    end_offset: Offset
    """The former end of this log."""
    committed_offset: Offset
    """All records before it were certainly committed; at least `start_offset`."""


@dataclass(slots=True)
class Halted:
    """Report that the replica has halted, so that no committed record is lost (P5)."""

    topic_partition: TopicPartition
    error: SafetyViolationError


# --- The controller --------------------------------------------------------------------------


@dataclass(slots=True)
class ProposeIsr:
    """Ask the controller, and call `on_isr_answers` with its answers or with the error."""

    proposals: list[tuple[TopicPartition, IsrProposal]]


@dataclass(slots=True)
class ProposeRenewals:
    """Ask the controller, and call `UnopenedReplicas.on_answers` with its answers or the error."""

    renewals: list[ReplicaRenewal]


Effect = (
    OpenLog
    | Configure
    | CloseReplica
    | DropReplica
    | SetAside
    | Append
    | ChangeLog
    | FetchFrom
    | StopFetching
    | Complete
    | Wake
    | RecordsLost
    | Halted
    | ProposeIsr
    | ProposeRenewals
)
