"""Headers are added to each record, however the records' own headers were given."""

from typing import Any

import pyarrow as pa
import pytest

from millrace.core.client.producer.sent_columns import with_headers
from millrace.core.records.columns import HEADERS_TYPE

ADDED = (("traceparent", b"00-1"), ("tracestate", b"a=1"))
OWN: list[Any] = [
    (),
    (("a", b"1"),),
    (("traceparent", b"00-0"), ("b", None)),
    (("a", b"1"), ("b", None), ("a", b"2")),
    (),
]
WANTED = [
    ADDED,
    (("a", b"1"), *ADDED),
    (("traceparent", b"00-0"), ("b", None)),
    (("a", b"1"), ("b", None), ("a", b"2"), *ADDED),
    ADDED,
]


def rows(headers: Any) -> list[Any]:
    if isinstance(headers, pa.Array):
        assert headers.type == HEADERS_TYPE
        headers.validate(full=True)
        headers = [
            [(header["key"], header["value"]) for header in row] for row in headers.to_pylist()
        ]
    return [tuple(row) for row in headers]


def test_records_without_headers_get_them() -> None:
    assert rows(with_headers(None, 3, ADDED)) == [ADDED] * 3


def test_nothing_to_add_changes_nothing() -> None:
    assert with_headers(None, 3, ()) is None
    assert with_headers(OWN, 5, ()) is OWN


def test_a_list_keeps_its_headers_and_a_trace_that_it_has() -> None:
    assert rows(with_headers(OWN, 5, ADDED)) == WANTED


def test_a_column_keeps_its_headers_and_a_trace_that_it_has() -> None:
    assert rows(with_headers(pa.array(OWN, HEADERS_TYPE), 5, ADDED)) == WANTED


@pytest.mark.parametrize("first", range(5))
@pytest.mark.parametrize("last", range(6))
def test_so_does_a_part_of_a_column(first: int, last: int) -> None:
    part = pa.array(OWN, HEADERS_TYPE)[first:last]
    assert rows(with_headers(part, len(part), ADDED)) == WANTED[first:last]


def test_null_rows_count_as_empty() -> None:
    column = pa.array([None, (("a", b"1"),), None], HEADERS_TYPE)
    assert rows(with_headers(column, 3, ADDED)) == [ADDED, (("a", b"1"), *ADDED), ADDED]


def test_one_header_is_added_too() -> None:
    assert rows(with_headers(pa.array(OWN, HEADERS_TYPE), 5, ADDED[:1]))[3] == (
        ("a", b"1"),
        ("b", None),
        ("a", b"2"),
        ("traceparent", b"00-1"),
    )
