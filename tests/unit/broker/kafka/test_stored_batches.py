"""Stored batches as Kafka's readers get them: as they lie there, or converted and kept."""

import asyncio
from collections.abc import Callable, Iterator, Sequence

import pytest
from tests.fakes.kafka_batches import Record, batch_of

from millrace.broker.kafka.records.stored_batches import StoredBatches, ZstdNotKnownError
from millrace.core.errors import CorruptBatchError
from millrace.core.ids import LeaderEpoch, Offset, TopicId, TopicPartition, WallMs
from millrace.core.records import kafka_batch
from millrace.core.records.batch import prepare
from millrace.core.records.batch_limits import BatchLimits
from millrace.core.records.columns import Columns
from millrace.core.records.compression import Compressor
from millrace.core.records.header import HEADER_BYTES, Buffer, stamp
from millrace.runtime.mailbox import Mailbox, Worker

PLACE = TopicPartition(TopicId(b"t" * 16), 0)
OTHER = TopicPartition(TopicId(b"t" * 16), 1)


def of_columns(offset: int, count: int = 3, codec: str = "none", size: int = 10) -> bytes:
    """Return a batch of format 1 as it lies in a file."""
    values = [b"%d" % number + bytes(size) for number in range(offset, offset + count)]
    prepared = prepare(PLACE, Columns(count, WallMs(5), values=values), Compressor(codec))
    header = prepared.finish()
    return stamp(header, base_offset=Offset(offset), leader_epoch=LeaderEpoch(2)) + bytes(
        prepared.body
    )


Opening = Callable[[int], StoredBatches]


@pytest.fixture
def opening() -> Iterator[Opening]:
    """Makes what keeps so many bytes of converted batches."""
    workers: list[Worker] = []

    def made(kept_bytes_max: int) -> StoredBatches:
        workers.append(Worker("convert", Mailbox(asyncio.get_running_loop())))
        return StoredBatches(workers[-1:], kept_bytes_max)

    yield made
    for worker in workers:
        worker.close()


async def read(
    stored: StoredBatches, data: Buffer, bytes_max: int = 1 << 20, *, knows_zstd: bool = True
) -> Sequence[Buffer]:
    return await stored.in_kafkas_form(PLACE, data, bytes_max, knows_zstd=knows_zstd)


def of_kafka(offset: int, count: int = 3, codec: str = "none") -> tuple[bytes, bytes]:
    """Return a batch of format 2 as it lies in a file, and as Kafka's readers get it."""
    sent = memoryview(batch_of([Record()] * count, codec))
    limits = BatchLimits(batch_bytes_max=1 << 20, inflated_bytes_max=1 << 20)
    header, _ = kafka_batch.adopt(PLACE, sent, limits)
    begin, rest = kafka_batch.stamp(
        PLACE, header, sent, base_offset=Offset(offset), leader_epoch=LeaderEpoch(2)
    )
    stored = begin + bytes(rest)
    return stored, stored[HEADER_BYTES:]


async def test_kafkas_own_batches_are_sent_as_they_lie_there(opening: Opening) -> None:
    (first, sent), (second, sent_too) = of_kafka(0), of_kafka(3)
    data = first + second
    pieces = await read(opening(0), data)
    assert [bytes(piece) for piece in pieces] == [sent, sent_too]
    assert all(isinstance(piece, memoryview) and piece.obj is data for piece in pieces), "copied"


@pytest.mark.parametrize("count", [33, 3000])
async def test_many_small_batches_are_sent_in_one_piece(opening: Opening, count: int) -> None:
    stored, sent = of_kafka(0, 1)
    pieces = await read(opening(0), stored * count)
    assert [bytes(piece) for piece in pieces] == [sent * count]


async def test_batches_of_columns_are_converted(opening: Opening) -> None:
    """K6."""
    data = of_columns(7, 3)
    (piece,) = await read(opening(1 << 20), data)
    header = kafka_batch.read_header(piece)
    assert (header.base_offset, header.record_count, header.leader_epoch) == (7, 3, 2)


async def test_a_log_may_have_both_kinds(opening: Opening) -> None:
    stored, sent = of_kafka(3)
    pieces = await read(opening(1 << 20), of_columns(0) + stored + of_columns(6))
    assert bytes(pieces[1]) == sent
    assert [kafka_batch.read_header(piece).base_offset for piece in pieces] == [0, 3, 6]


async def test_what_was_converted_is_kept_for_the_next_reader(opening: Opening) -> None:
    stored = opening(1 << 20)
    data = of_columns(0) + of_columns(3)
    before = await read(stored, data)
    again = await read(stored, bytearray(data))  # Read anew.
    assert [one is other for one, other in zip(before, again, strict=True)] == [True, True]


async def test_readers_that_come_at_the_same_time_have_a_batch_converted_once(
    opening: Opening,
) -> None:
    stored, data = opening(1 << 20), of_columns(0)
    results = await asyncio.gather(*(read(stored, data) for _ in range(5)))
    assert len({id(piece) for (piece,) in results}) == 1


async def test_no_more_is_kept_than_allowed(opening: Opening) -> None:
    one = of_columns(0, size=1000)
    stored = opening(5000)
    before = await read(stored, one)
    await read(stored, of_columns(3, size=1000))
    again = await read(stored, one)
    assert again[0] is not before[0]
    assert bytes(again[0]) == bytes(before[0])


async def test_converted_batches_end_where_the_reader_wants_no_more(opening: Opening) -> None:
    data = b"".join(of_columns(offset, size=1000) for offset in range(0, 15, 3))
    stored = opening(1 << 20)
    size = len((await read(stored, data))[0])
    assert len(await read(stored, data, 2 * size)) == 2
    assert len(await read(stored, data, 1)) == 1, "the first one is sent even if it is larger"


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_batch_that_is_damaged_is_not_sent(opening: Opening, is_first: bool) -> None:
    damaged = bytearray(of_columns(3))
    damaged[-1] ^= 1
    stored = opening(1 << 20)
    if is_first:
        with pytest.raises(CorruptBatchError, match="does not match"):
            await read(stored, bytes(damaged))
    else:  # What precedes it can be read.
        pieces = await read(stored, of_columns(0) + damaged + of_columns(6))
        assert [kafka_batch.read_header(piece).base_offset for piece in pieces] == [0]


async def test_what_is_no_batch_is_refused(opening: Opening) -> None:
    stored = opening(1 << 20)
    with pytest.raises(CorruptBatchError):
        await read(stored, bytes(200))
    whole, _ = of_kafka(0)
    with pytest.raises(CorruptBatchError):
        await read(stored, whole + bytes(100))


@pytest.mark.parametrize("kind", ["columns", "kafka"])
async def test_a_reader_from_before_zstd_is_refused_what_it_cannot_read(
    opening: Opening, kind: str
) -> None:
    data = of_columns(0, codec="zstd") if kind == "columns" else of_kafka(0, codec="zstd")[0]
    stored = opening(1 << 20)
    with pytest.raises(ZstdNotKnownError):
        await read(stored, data, knows_zstd=False)
    assert len(await read(stored, data)) == 1
    assert len(await read(stored, of_columns(0), knows_zstd=False)) == 1
