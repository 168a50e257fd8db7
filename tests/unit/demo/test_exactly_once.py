"""What the demo expects of the copied delays, on a few flights."""

import pyarrow as pa
from demo.checks import Consumed
from demo.dataset import Records
from demo.exactly_once import check_copy, delays_of, sums

from millrace.cli.records.json_cells import json_rows

TABLE = pa.table(
    {
        "carrier": ["UA", "AA", "UA", "UA", "AA"],
        "dest": ["ATL", "ORD", "MIA", "ORD", "ATL"],
        "dep_delay": [5, -2, None, 20, 1],
    }
)
KEYS = pa.array([b"UA1", b"AA7", b"UA1", b"UA1", b"AA9"])
VALUES = pa.concat_arrays(map(json_rows, TABLE.to_batches())).cast(pa.binary())
FLIGHTS = Records(TABLE, KEYS, VALUES)


def came(*rows: int) -> Consumed:
    numbers = pa.array(rows, pa.int64())
    keys, values = delays_of(KEYS.take(numbers), VALUES.take(numbers))
    offsets = pa.array(range(len(keys)), pa.int64())
    return Consumed(pa.repeat(0, len(keys)), offsets, keys, values)


def test_flights_that_never_departed_are_left_out() -> None:
    keys, values = delays_of(KEYS, VALUES)
    assert keys.to_pylist() == [b"UA1", b"AA7", b"UA1", b"AA9"]
    assert values[0].as_py() == b'{"carrier":"UA","dep_delay":5}'
    assert [len(column) for column in delays_of(KEYS[2:3], VALUES[2:3])] == [0, 0]
    assert [len(column) for column in delays_of(KEYS[:0], VALUES[:0])] == [0, 0]


def test_counts_and_sums_are_those_of_each_carrier() -> None:
    assert sums(TABLE) == {"UA": (2, 25), "AA": (2, -1)}


def test_a_copy_may_mix_flights_and_keeps_the_order_of_each() -> None:
    checks = list(check_copy(FLIGHTS, came(4, 0, 3, 1), 12))
    assert [check.holds for check in checks] == [True, True, True]
    assert checks[0].detail == "4 of 4, and 12 aborted ones that no reader sees"
    assert checks[2].detail == "2 carriers, 24 minutes"


def test_what_is_lost_doubled_or_out_of_order_is_told() -> None:
    lost = list(check_copy(FLIGHTS, came(0, 1, 3), 0))
    assert [check.holds for check in lost] == [False, False, False]
    assert lost[0].detail == "1 lost, 0 doubled or foreign"
    doubled = list(check_copy(FLIGHTS, came(0, 1, 3, 4, 4), 0))
    assert [check.holds for check in doubled] == [False, False, False]
    assert doubled[0].detail == "0 lost, 1 doubled or foreign"
    swapped = list(check_copy(FLIGHTS, came(3, 0, 1, 4), 0))
    assert [check.holds for check in swapped] == [True, False, True]
    assert swapped[1].detail == "1 flight numbers wrong"
