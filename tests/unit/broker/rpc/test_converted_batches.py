"""Batches of Kafka's for readers of earlier releases: as columns, as many as fit, and once."""

import asyncio
from collections.abc import Callable, Iterator

import pytest
from tests.unit.broker.kafka.test_stored_batches import PLACE, of_columns, of_kafka

from millrace.broker.rpc.converted_batches import ColumnBatches
from millrace.core.errors import CorruptBatchError
from millrace.core.ids import Offset
from millrace.core.records.batch import open_batch, walk
from millrace.core.records.header import COLUMNS_FORMAT
from millrace.runtime.mailbox import Mailbox, Worker

Opening = Callable[[int], ColumnBatches]
END = Offset(99)
"""Of what is stored; nobody looks, as long as something is converted."""


@pytest.fixture
def opening() -> Iterator[Opening]:
    """Makes what keeps so many bytes of converted batches."""
    workers: list[Worker] = []

    def made(kept_bytes_max: int) -> ColumnBatches:
        workers.append(Worker("convert", Mailbox(asyncio.get_running_loop())))
        return ColumnBatches(workers[-1:], kept_bytes_max)

    yield made
    for worker in workers:
        worker.close()


async def test_what_an_older_reader_knows_is_sent_as_it_lies_there(opening: Opening) -> None:
    data = of_columns(0) + of_columns(3)
    sent, end = await opening(0).in_columns(PLACE, data, Offset(6), 1)
    assert sent is data
    assert end == 6


async def test_batches_of_both_kinds_become_columns_with_the_same_offsets(opening: Opening) -> None:
    data = of_columns(0) + of_kafka(3)[0] + of_kafka(6, codec="zstd")[0] + of_columns(9)
    sent, end = await opening(1 << 20).in_columns(PLACE, data, END, 1 << 20)
    assert end == 12
    offsets = []
    for header, batch in walk(sent):
        assert header.format == COLUMNS_FORMAT
        offsets += open_batch(PLACE, header, batch, 1 << 20).column("offset").to_pylist()
    assert offsets == list(range(12))


async def test_as_many_are_sent_as_fit_and_the_first_one_always(opening: Opening) -> None:
    data = b"".join(of_kafka(offset)[0] for offset in range(0, 15, 3))
    columns = opening(1 << 20)
    whole, _ = await columns.in_columns(PLACE, data, END, 1 << 20)
    size = len(whole) // 5
    for bytes_max, count in ((1, 1), (2 * size, 2), (3 * size - 1, 2), (5 * size, 5)):
        sent, end = await columns.in_columns(PLACE, data, END, bytes_max)
        assert (len(sent), end) == (count * size, 3 * count)


async def test_each_batch_is_converted_once_for_all_readers(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 0
    convert = ColumnBatches.converted

    def counted(*given: object) -> object:
        nonlocal count
        count += 1
        return convert(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(ColumnBatches, "converted", staticmethod(counted))
    columns, data = opening(1 << 20), of_kafka(0)[0] + of_kafka(3)[0]
    await asyncio.gather(*(columns.in_columns(PLACE, data, END, 1 << 20) for _ in range(5)))
    assert count == 2


async def test_a_damaged_batch_is_not_sent(opening: Opening) -> None:
    damaged = bytearray(of_kafka(3)[0])
    damaged[-1] ^= 1
    columns = opening(1 << 20)
    with pytest.raises(CorruptBatchError):
        await columns.in_columns(PLACE, bytes(damaged), END, 1 << 20)
    _, end = await columns.in_columns(PLACE, of_kafka(0)[0] + damaged, END, 1 << 20)
    assert end == 3
