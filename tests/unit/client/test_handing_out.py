"""What loops and polls get of the same batches, in turn."""

from collections import deque
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.core.records.batches import TOPIC_PARTITION, sealed, stamped

from millrace.client._consumer.counters import ConsumerCounters
from millrace.client._consumer.handing_out import HandingOut
from millrace.client._consumer.settings import ConsumerConfig
from millrace.core.client.consumer.sessions import FetchedBatch
from millrace.core.ids import LeaderEpoch, Offset, WallMs
from millrace.core.records.columns import Columns
from millrace.core.records.header import parse_header

PLENTY = 1 << 20


def fetched(base: int, count: int, *, has_headers: bool, start: int = -1) -> FetchedBatch:
    """A batch that was fetched; one with headers is opened as Arrow, others as Python objects."""
    columns = Columns(
        record_count=count,
        timestamps=WallMs(1000),
        values=[b"%d" % offset for offset in range(base, base + count)],
        headers=[[("name", b"1")]] * count if has_headers else None,
    )
    data = stamped(sealed(columns), base_offset=Offset(base), leader_epoch=LeaderEpoch(0))
    header = parse_header(data)
    first = Offset(max(base, start))
    return FetchedBatch("topic", TOPIC_PARTITION, 1, header, memoryview(data), first)


def handing_out(*batches: FetchedBatch) -> HandingOut:
    waiting = deque(batches)
    fetching: Any = SimpleNamespace(
        counters=ConsumerCounters(),
        take=lambda: waiting.popleft() if waiting else None,
        fetcher=SimpleNamespace(
            partition=lambda place: SimpleNamespace(high_watermark=Offset(100))
        ),
    )
    return HandingOut(fetching, ConsumerConfig())


@pytest.fixture(params=[False, True], ids=["few", "arrow"])
def has_headers(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_a_loop_that_is_left_leaves_the_rest_to_polls(has_headers: bool) -> None:
    out = handing_out(fetched(10, 6, has_headers=has_headers))
    assert [record.offset for record in islice(out.lend_records(), 2)] == [10, 11]
    assert out.rest_offset(TOPIC_PARTITION) == 12
    assert out.rest_count() == ("topic", 4)
    assert [record.offset for record in out.take_records(1, PLENTY)] == [12]
    assert [record.value for record in islice(out.lend_records(), 1)] == [b"13"]
    (rest,) = out.take_batches(PLENTY)
    assert rest.records.column("offset").to_pylist() == [14, 15]
    assert not out.take_batches(PLENTY)


def test_a_loop_goes_on_with_the_next_batch(has_headers: bool) -> None:
    batches = [fetched(10 * number, 3, has_headers=has_headers) for number in range(3)]
    out = handing_out(*batches)
    found = []
    while lent := out.lend_records():
        found += [record.offset for record in lent]
    assert found == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    assert out.rest_offset(TOPIC_PARTITION) is None


def test_a_poll_takes_small_batches_whole_and_of_the_last_what_fits(has_headers: bool) -> None:
    batches = [fetched(10 * number, 3, has_headers=has_headers) for number in range(3)]
    out = handing_out(*batches)
    assert [record.offset for record in out.take_records(5, PLENTY)] == [0, 1, 2, 10, 11]
    assert [record.value for record in out.take_records(5, PLENTY)] == [b"12", b"20", b"21", b"22"]


def test_records_before_the_position_are_not_handed_out(has_headers: bool) -> None:
    out = handing_out(fetched(10, 3, has_headers=has_headers, start=12))
    assert [record.offset for record in out.take_records(5, PLENTY)] == [12]


def test_a_poll_hands_out_one_record_at_least_whatever_its_size(has_headers: bool) -> None:
    out = handing_out(fetched(10, 3, has_headers=has_headers))
    assert [record.offset for record in out.take_records(5, 1)] == [10]
    assert out.rest_offset(TOPIC_PARTITION) == 11
