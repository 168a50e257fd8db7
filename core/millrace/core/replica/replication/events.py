"""What reaches a replica from its disk and from the leader that it follows.

A thread of the disk posts a `DiskEvent` to one entry, `on_disk`, in the order of what it was told
to do; `effects` says which order each answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from millrace.core.errors import CorruptLogError, MillraceError
from millrace.core.ids import EpochEnd, Offset
from millrace.core.replica.replication.effects import Change, ReplicaBatch

_NOT_KNOWN: Final = Offset(0)


@dataclass(slots=True)
class Written:
    """All batches before `end_offset` are in the file."""

    end_offset: Offset


@dataclass(slots=True)
class Flushed:
    """Likewise, and they survive a power cut; there may have been no `Written`."""

    end_offset: Offset


@dataclass(slots=True)
class Failed:
    """The batches from `base_offset` on were not written, and will not be (P64)."""

    base_offset: Offset
    error: MillraceError


@dataclass(slots=True)
class Changed:
    """The log was changed, durably, and has these offsets now.

    Its start may also have advanced without an order: by retention, or because a client wanted it.
    """

    change: Change
    log_start_offset: Offset
    log_end_offset: Offset


@dataclass(slots=True)
class Corrupt:
    """The log is damaged, and takes no more appends (P65)."""

    error: CorruptLogError


DiskEvent = Written | Flushed | Failed | Changed | Corrupt


@dataclass(slots=True, frozen=True, kw_only=True)
class Fetched:
    """A leader's answer for one open position."""

    handle: int
    """The position's, in the session with the leader."""
    fetch_offset: Offset
    """Where the batches begin: the position's offset, or the end of the answer before."""
    high_watermark: Offset
    log_start_offset: Offset
    compacted_offset: Offset = _NOT_KNOWN
    """All replicas have compacted their logs up to it; 0: not known."""
    batches: Sequence[ReplicaBatch] = ()
    """The batches before the first one with a wrong checksum."""
    size: int = 0
    """Bytes of the batches, which were paid from the credit."""
    is_damaged: bool = False
    """Whether a batch had a wrong checksum."""
    diverging: EpochEnd | None = None
