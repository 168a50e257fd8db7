"""Batches on their way to the sender: encoded by several threads, handed on in their order."""

import asyncio
import threading

import numpy as np

from millrace.client._producer.encoding import Encoding
from millrace.core.client.producer.batch import Piece, ProducerBatch
from millrace.core.errors import MillraceError
from millrace.core.ids import MonotonicMs, TopicId, TopicPartition
from millrace.core.records.cells import ByteCells, cells_of
from millrace.core.records.compression import Codec, Compressor
from millrace.core.records.header import Buffer

_WAIT_S = 60


class Sender:
    """What takes encoded batches."""

    def __init__(self, expected: int) -> None:
        self.taken: list[ProducerBatch] = []
        self.refused: list[tuple[ProducerBatch, MillraceError]] = []
        self._left = expected
        self.has_all = asyncio.Event()

    def on_batches(self, batches: tuple[ProducerBatch, ...]) -> None:
        self.taken += batches
        self._count(len(batches))

    def on_unencodable(self, batch: ProducerBatch, error: MillraceError) -> None:
        self.refused.append((batch, error))
        self._count(1)

    def _count(self, count: int) -> None:
        self._left -= count
        if not self._left:
            self.has_all.set()


class SlowForTheFirst(Compressor):
    """Compresses the body with `slow` in it only when another body was compressed."""

    def __init__(self) -> None:
        super().__init__("lz4")
        self._other_is_done = threading.Event()

    def compress(self, body: Buffer) -> tuple[Codec, Buffer]:
        if b"slow" in bytes(body):
            assert self._other_is_done.wait(_WAIT_S), "no other thread compresses meanwhile"
            return super().compress(body)
        compressed = super().compress(body)
        self._other_is_done.set()
        return compressed


def _batch(value: bytes, sent_at: int = 1) -> ProducerBatch:
    batch = ProducerBatch("orders", TopicPartition(TopicId(bytes(16)), 0), MonotonicMs(0))
    batch.pieces = [Piece(1, sent_at, cells_of([value]), None, None)]
    batch.record_count = 1
    return batch


async def _encode(
    compressor: Compressor, batches: list[ProducerBatch]
) -> tuple[list[ProducerBatch], list[tuple[ProducerBatch, MillraceError]]]:
    sender = Sender(len(batches))
    encoding = Encoding(compressor, sender, asyncio.get_running_loop(), lambda: None)  # type: ignore[arg-type]
    encoding.start()
    try:
        encoding.encode(batches)
        async with asyncio.timeout(_WAIT_S):
            await sender.has_all.wait()
    finally:
        encoding.end()
    return sender.taken, sender.refused


async def test_a_batch_that_compresses_slowly_leaves_before_those_after_it() -> None:
    batches = [_batch(b"slow"), _batch(b"quick"), _batch(b"quick, too")]
    taken, refused = await _encode(SlowForTheFirst(), batches)
    assert (taken, refused) == (batches, [])
    assert all(batch.prepared is not None for batch in batches)


async def test_a_batch_that_cannot_be_encoded_fails_alone() -> None:
    for codec in ("none", "lz4"):
        before, bad, after = _batch(b"first"), _batch(b"bad", sent_at=-1), _batch(b"last")
        taken, refused = await _encode(Compressor(codec), [before, bad, after])
        assert taken == [before, after]
        assert [batch for batch, _ in refused] == [bad]


async def test_values_that_are_no_bytes_fail_their_batch() -> None:
    batch = _batch(b"no bytes")
    batch.pieces[0].values = ByteCells([[object()]], np.array([1]))  # type: ignore[list-item]
    _, refused = await _encode(Compressor("lz4"), [batch])
    assert isinstance(refused[0][1], MillraceError)
