"""A few records as Python objects: the same ones that Arrow reads, or none."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.core.records.batches import (
    TOPIC_PARTITION,
    codecs,
    columns,
    open_whole,
    sealed,
    stamped,
    with_body,
)

from millrace.core.errors import MillraceError
from millrace.core.ids import NO_TIMESTAMP, LeaderEpoch, Offset, WallMs
from millrace.core.records.batch import open_batch, open_records
from millrace.core.records.cells import FEW_MAX
from millrace.core.records.columns import Columns
from millrace.core.records.few_records import FEW_BYTES, FewRecords
from millrace.core.records.header import HEADER_BYTES, parse_header

NOON = WallMs(1_700_000_000_000)


def opened(batch: bytes) -> FewRecords | pa.RecordBatch:
    return open_records(TOPIC_PARTITION, parse_header(batch), batch, 1 << 20)


def rows(records: FewRecords | pa.RecordBatch) -> list[tuple[Any, ...]]:
    if not isinstance(records, FewRecords):
        return list(zip(*(records.column(name).to_pylist() for name in range(4)), strict=True))
    count = len(records.offsets)
    nothing: Sequence[None] = [None] * count
    keys, values = records.keys or nothing, records.values or nothing
    return list(zip(records.offsets, records.timestamps, keys, values, strict=True))


@given(columns(), codecs(), st.sampled_from([NO_TIMESTAMP, WallMs(NOON + 1)]))
def test_records_are_those_that_arrow_reads(
    given_columns: Columns, codec: str, append_timestamp: WallMs
) -> None:
    batch = stamped(
        sealed(given_columns, codec),
        base_offset=Offset(77),
        leader_epoch=LeaderEpoch(3),
        append_timestamp=append_timestamp,
    )
    records = opened(batch)
    assert rows(records) == rows(open_whole(batch))
    if given_columns.record_count > FEW_MAX:
        assert not isinstance(records, FewRecords)


@pytest.mark.parametrize("keys", [None, [b"a", b"", b"ccc"]])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_few_plain_records_do_not_go_through_arrow(keys: list[bytes] | None, codec: str) -> None:
    batch = sealed(
        Columns(record_count=3, timestamps=NOON, keys=keys, values=[b"x" * 99, b"", b"y"]), codec
    )
    records = opened(batch)
    assert isinstance(records, FewRecords)
    assert rows(records) == rows(open_whole(batch))


def test_large_values_go_through_arrow() -> None:
    batch = sealed(Columns(record_count=1, timestamps=NOON, values=[b"x" * FEW_BYTES]))
    assert not isinstance(opened(batch), FewRecords)


BODY = Columns(
    record_count=3,
    timestamps=NOON,
    keys=[b"one", b"two", b"three"],
    values=[b"a" * 5, b"", b"b" * 11],
)


@given(st.data())
def test_a_changed_body_is_refused_or_read_as_arrow_reads_it(
    data: st.DataObject,
) -> None:
    batch = sealed(BODY)
    body = bytearray(batch[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] = data.draw(st.integers(0, 255))
    del body[data.draw(st.integers(0, len(body)) | st.just(len(body))) :]
    changed = with_body(batch, bytes(body))
    try:
        expected = rows(open_batch(TOPIC_PARTITION, parse_header(changed), changed, 1 << 20))
    except MillraceError as error:
        with pytest.raises(type(error)):
            opened(changed)
    else:
        assert rows(opened(changed)) == expected
