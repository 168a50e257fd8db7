import pyarrow as pa
import pytest

from millrace.cli.records.headers import headers_of, with_added
from millrace.cli.records.problems import RowError
from millrace.core.records.columns import HEADERS_TYPE

OWN = pa.array(
    [[], [{"key": "a", "value": b"1"}], [], [{"key": "b", "value": None}] * 2], HEADERS_TYPE
)


def pairs(headers: pa.Array | None) -> list[list[tuple[str, bytes | None]]]:
    assert headers is not None
    assert headers.type == HEADERS_TYPE
    return [[(header["key"], header["value"]) for header in row] for row in headers.to_pylist()]


def test_added_headers_stand_after_the_own_ones_of_every_record() -> None:
    added = [("run", b"17"), ("dry", None)]
    assert pairs(with_added(OWN.slice(1), added, 3)) == [
        [("a", b"1"), *added],
        added,
        [("b", None), ("b", None), *added],
    ]
    assert pairs(with_added(None, added, 2)) == [added, added]
    assert pairs(with_added(OWN.slice(0, 0), added, 0)) == []


def test_nothing_added_leaves_headers_as_they_are() -> None:
    assert with_added(OWN, [], 4) is OWN
    assert with_added(None, [], 4) is None


def test_headers_are_read_from_pairs_objects_and_their_json() -> None:
    cells = [
        [["a", "1"], ["a", None]],
        {"b": "x", "n": 17, "raw": {"base64": "//4="}},
        '[["c", "2"], ["n", 1.10]]',
        "",
        None,
    ]
    expected = [
        [("a", b"1"), ("a", None)],
        [("b", b"x"), ("n", b"17"), ("raw", b"\xff\xfe")],
        [("c", b"2"), ("n", b"1.10")],
        [],
        [],
    ]
    assert pairs(headers_of(cells)) == expected
    assert pairs(headers_of(pa.array(['{"a": "1"}', None]))) == [[("a", b"1")], []]
    assert pairs(headers_of(OWN)) == pairs(OWN)


@pytest.mark.parametrize(
    "cell", ["nonsense", "17", 17, [["a"]], [[1, "a"]], {"a": {"base64": "?"}}]
)
def test_what_is_no_headers_is_refused_with_what_is(cell: object) -> None:
    with pytest.raises(RowError, match="is not headers") as refused:
        headers_of([[], cell])
    assert refused.value.index == 1
    assert "[[" in refused.value.hint


def test_a_column_of_lists_of_something_else_is_refused() -> None:
    with pytest.raises(RowError, match="holds no headers"):
        headers_of(pa.array([[1]]))
