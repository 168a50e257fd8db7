"""Coordinators: state machines whose state is the log of one partition.

Positions of readers are one; consumer groups and transactions are others. The broker that leads the
partition runs the machine. The machine and the runtime that runs it share a contract.

The machine:

- `handle_*` methods, which a request calls, read the state and change nothing. They return the
  records to append and the answer.
- `replay` alone changes the state. It gets each record of the log once, in order.
- The records from `oldest_offset` on alone lead to the same state. The runtime deletes the records
  before it.

The runtime:

- It handles, appends and replays one request after the other.
- It sends an answer after the commit of everything that the machine had replayed by then: an answer
  may rest on records of other requests (P55, P59, P60).
- It cannot take back a replayed record. So after a failed append, and after a loss of leadership,
  it compares the machine with the log. If they differ, it starts with a new machine.

Source: Kafka's CoordinatorRuntime and CoordinatorShard (KIP-848).
"""

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from millrace.core.ids import Offset, WallMs


class CoordinatorRecord(Protocol):
    """A record of a coordinator's log."""

    @property
    def timestamp(self) -> WallMs:
        """When the record was made."""
        ...


RecordT = TypeVar("RecordT", bound=CoordinatorRecord)
ResponseT = TypeVar("ResponseT")
_RecordT_contra = TypeVar("_RecordT_contra", bound=CoordinatorRecord, contravariant=True)


@dataclass(slots=True)
class Result(Generic[RecordT, ResponseT]):
    """The outcome of a request: records to append and replay, in order, and the answer."""

    records: list[RecordT]
    response: ResponseT


class CoordinatorMachine(Protocol[_RecordT_contra]):
    """The machine's side of the contract."""

    @property
    def next_offset(self) -> Offset:
        """The offset after the last replayed record."""
        ...

    @property
    def oldest_offset(self) -> Offset:
        """The offset of the oldest record that the state needs; `next_offset` if it needs none."""
        ...

    def replay(self, record: _RecordT_contra, offset: Offset) -> None:
        """Apply a record of the log."""
        ...
