"""Each check of the demo fails on data that was doctored in the way that it guards against."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from demo.checks import Consumed, check_all
from demo.dataset import Records, read_flights

FLIGHTS = """\
carrier,flight,tailnum,dep_delay,time_hour
UA,1,N1,2,2013-01-01T10:00:00Z
AA,7,N2,NA,2013-01-01T10:00:00Z
UA,1,NA,-4,2013-01-02T10:00:00Z
B6,3,N4,0,2013-01-02T11:00:00Z
UA,1,N1,9,2013-01-03T10:00:00Z
"""
# Keys UA1, B63 in partition 0 and AA7 in partition 1, each key in the order of the source.
READ = [(1, 0, 1), (0, 0, 0), (0, 1, 3), (0, 2, 2), (0, 3, 4)]  # Partition, offset, row.

COUNT = "the count is right"
LOST = "nothing is lost"
DOUBLED = "nothing is doubled or foreign"
OFFSETS = "offsets rise by one in every partition"
PARTITIONS = "every key is in one partition"
ORDER = "every key's records are in the order of the source"
CONTENT = "the content hash is that of the source"


@pytest.fixture
def source(tmp_path: Path) -> Records:
    with zipfile.ZipFile(tmp_path / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", FLIGHTS)
    return read_flights(tmp_path)


def consumed(source: Records, read: list[tuple[int, int, int]]) -> Consumed:
    rows = pa.array([row for _, _, row in read], pa.int64())
    return Consumed(
        pa.array([partition for partition, _, _ in read], pa.int32()),
        pa.array([offset for _, offset, _ in read], pa.int64()),
        source.keys.take(rows),
        source.values.take(rows),
    )


def failures(source: Records, came: Consumed) -> set[str]:
    return {check.statement for check in check_all(source, came) if not check.holds}


def test_flights_are_keyed_by_designator_and_valued_by_their_row(source: Records) -> None:
    assert source.keys.to_pylist() == [b"UA1", b"AA7", b"UA1", b"B63", b"UA1"]
    assert source.values[1].as_py() == (
        b'{"carrier":"AA","flight":7,"tailnum":"N2","dep_delay":null,'
        b'"time_hour":"2013-01-01T10:00:00Z"}'
    )


def test_no_check_fails_when_everything_came_back(source: Records) -> None:
    assert failures(source, consumed(source, READ)) == set()


def test_a_lost_record_is_found(source: Records) -> None:
    assert failures(source, consumed(source, READ[:-1])) == {COUNT, LOST, ORDER, CONTENT}


def test_a_doubled_record_is_found(source: Records) -> None:
    doubled = [*READ, (1, 1, 1)]
    assert failures(source, consumed(source, doubled)) == {COUNT, DOUBLED, ORDER, CONTENT}


def test_a_record_lost_and_another_doubled_is_found_though_the_count_is_right(
    source: Records,
) -> None:
    swapped = [*READ[:-1], (0, 3, 3)]
    assert failures(source, consumed(source, swapped)) == {LOST, DOUBLED, ORDER, CONTENT}


def test_two_records_of_a_key_in_the_wrong_order_are_found(source: Records) -> None:
    turned = [*READ[:3], (0, 2, 4), (0, 3, 2)]
    assert failures(source, consumed(source, turned)) == {ORDER, CONTENT}


def test_two_records_of_different_keys_may_change_places(source: Records) -> None:
    turned = [READ[0], (0, 0, 3), (0, 1, 0), *READ[3:]]
    assert failures(source, consumed(source, turned)) == set()


def test_a_gap_in_the_offsets_is_found(source: Records) -> None:
    assert failures(source, consumed(source, [*READ[:-1], (0, 4, 4)])) == {OFFSETS}


def test_a_key_in_two_partitions_is_found(source: Records) -> None:
    assert failures(source, consumed(source, [*READ[:-1], (1, 1, 4)])) == {PARTITIONS}


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.replace(b"-4", b"-5"),
        lambda value: value[:-1],
        lambda value: None,
        lambda value: b"",
    ],
    ids=["another number", "cut short", "null", "empty"],
)
def test_a_changed_value_is_found(source: Records, change: Callable[[bytes], bytes | None]) -> None:
    came = consumed(source, READ)
    values = came.values.to_pylist()
    values[3] = change(values[3])
    came = Consumed(came.partitions, came.offsets, came.keys, pa.array(values, pa.binary()))
    assert failures(source, came) == {LOST, DOUBLED, ORDER, CONTENT}


def test_a_changed_key_is_found(source: Records) -> None:
    came = consumed(source, READ)
    keys = pa.array([b"ZZ9", *came.keys.to_pylist()[1:]], pa.binary())
    came = Consumed(came.partitions, came.offsets, keys, came.values)
    assert failures(source, came) == {LOST, DOUBLED, ORDER, CONTENT}


def test_the_content_hash_needs_no_trust_in_how_values_were_written(source: Records) -> None:
    """A bug in writing the values would be the same in what was sent and in what came back."""
    wrong = pa.array([value.replace(b"null", b"0") for value in source.values.to_pylist()])
    doctored = Records(source.table, source.keys, wrong.cast(pa.binary()))
    assert failures(doctored, consumed(doctored, READ)) == {CONTENT}


def test_no_records_at_all_are_found(source: Records) -> None:
    assert failures(source, consumed(source, [])) >= {COUNT, LOST, ORDER, CONTENT}
