"""A batch on its way: from the records gathered for one partition to its outcome."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.core.client.producer.delivery import Delivery
from millrace.core.client.producer.intake import Intake
from millrace.core.client.producer.sent_columns import Cells, SentCells
from millrace.core.ids import (
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    LeaderEpoch,
    MonotonicMs,
    ProducerEpoch,
    ProducerId,
    WallMs,
)
from millrace.core.records.batch import PreparedBatch, prepare
from millrace.core.records.cells import ByteCells, cells_of, joined
from millrace.core.records.columns import HEADERS_TYPE, Columns
from millrace.core.records.compression import Compressor


class BatchState(Enum):
    """Where a sealed batch is."""

    WAITING = 1
    """It was not sent yet, and has no sequence."""
    IN_THE_AIR = 2
    """It was sent on the connection that it names, and is not answered."""
    TO_REPEAT = 3
    """It has a sequence; its last attempt failed in a way that allows another."""
    DONE = 4
    """It has its outcome."""


@dataclass(slots=True)
class Piece:
    """Neighbouring records of one partition, as columns."""

    record_count: int
    timestamps: Any
    values: SentCells | None
    keys: SentCells | None
    headers: Any


@dataclass(slots=True, eq=False)
class ProducerBatch(Delivery):
    """A delivery with all that the producer needs to gather, encode, send and repeat it."""

    opened_at: MonotonicMs
    pieces: list[Piece] = field(default_factory=list)
    record_count: int = 0
    size: int = 0
    intakes: list[Intake] = field(default_factory=list)
    prepared: PreparedBatch | None = None
    shape: tuple[bool, bool] = (False, False)
    """Whether there are headers, and times of the records' own."""
    sent_at: WallMs = NO_TIMESTAMP
    """Time of records that have none of their own."""

    state: BatchState = BatchState.WAITING
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    ordinal: int = 0
    """Its number among the partition's batches that were ever sent; 0: it was not sent."""
    is_successor: bool = False
    """Whether batches before it had no outcome at its latest attempt."""
    maybe_appended: bool = False
    """An attempt ended without a clear answer: the batch must keep its identity."""
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    """Leader epoch of the latest attempt."""
    abandoned_in: LeaderEpoch = NO_LEADER_EPOCH
    """Leader epoch of the latest attempt that may still arrive; none: no attempt may."""
    connection: int = 0
    request: int = 0
    """Correlation id of the latest attempt: a later attempt has a larger one."""

    @property
    def length(self) -> int:
        """Bytes on the wire; before it is encoded, about as many."""
        return self.size if self.prepared is None else self.prepared.length

    def add(self, piece: Piece, size: int, intake: Intake) -> None:
        """Append records of an intake."""
        intake.segments.append((self, self.record_count, piece.record_count))
        if not self.intakes or self.intakes[-1] is not intake:
            self.intakes.append(intake)
            intake.batches_open += 1
        self.pieces.append(piece)
        self.record_count += piece.record_count
        self.size += size

    def columns(self) -> Columns:
        """Return all records as columns and release the pieces."""
        pieces, self.pieces = self.pieces, []
        if len(pieces) == 1:
            (piece,) = pieces
            times = piece.timestamps
            if isinstance(times, np.ndarray):  # Perhaps the user's own array, who may change it.
                times = times.copy()
            self.timestamps = times
            return Columns(self.record_count, times, piece.values, piece.keys, piece.headers)
        self.timestamps = timestamps = _joined_timestamps(pieces)
        return Columns(
            self.record_count,
            timestamps,
            _joined_cells(pieces, [piece.values for piece in pieces]),
            _joined_cells(pieces, [piece.keys for piece in pieces]),
            _joined_headers(pieces),
        )


def encode(batch: ProducerBatch, compressor: Compressor) -> PreparedBatch:
    """Encode and compress a sealed batch; may run in any thread, does not change its state."""
    return prepare(batch.topic_partition, batch.columns(), compressor)


def _joined_timestamps(pieces: list[Piece]) -> Any:
    first = pieces[0].timestamps
    if not isinstance(first, np.ndarray) and all(
        not isinstance(piece.timestamps, np.ndarray) and piece.timestamps == first
        for piece in pieces
    ):
        return first
    return np.concatenate(
        [
            piece.timestamps
            if isinstance(piece.timestamps, np.ndarray)
            else np.full(piece.record_count, piece.timestamps, np.int64)
            for piece in pieces
        ]
    )


def _joined_cells(pieces: list[Piece], sent: list[SentCells | None]) -> Cells | None:
    if all(column is None for column in sent):
        return None
    columns = [cells_of(column) if isinstance(column, list) else column for column in sent]
    if all(isinstance(column, ByteCells) for column in columns):
        cells: list[ByteCells] = columns  # type: ignore[assignment]  # As the test shows.
        return joined(cells)
    return pa.concat_arrays(
        [
            pa.nulls(piece.record_count, pa.binary())
            if column is None
            else column.as_array()
            if isinstance(column, ByteCells)
            else column
            if column.type == pa.binary()
            else column.cast(pa.binary())
            for piece, column in zip(pieces, columns, strict=True)
        ]
    )


def _joined_headers(pieces: list[Piece]) -> Any:
    if all(piece.headers is None for piece in pieces):
        return None
    if all(isinstance(piece.headers, pa.Array) for piece in pieces):
        return pa.concat_arrays([piece.headers.cast(HEADERS_TYPE) for piece in pieces])
    joined: list[Any] = []
    for piece in pieces:
        if piece.headers is None:
            joined += [()] * piece.record_count
        elif isinstance(piece.headers, pa.Array):
            rows = piece.headers.cast(HEADERS_TYPE).to_pylist()
            joined += [[(h["key"], h["value"]) for h in row or ()] for row in rows]
        else:
            joined += piece.headers
    return joined
