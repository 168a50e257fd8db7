"""What the demo expects of the compacted topic, on a few flights."""

import pyarrow as pa
from demo.aircraft import by_aircraft, check_aircraft, expected_places
from demo.checks import Consumed
from demo.dataset import Records

from millrace.cli.records.json_cells import json_rows

TAILS = ["N1", "N2", None, "N1", "N3", "N2", "N1"]
TABLE = pa.table(
    {
        "carrier": ["UA", "AA", "UA", "UA", "B6", "AA", "DL"],
        "dest": ["ATL", "ORD", "MIA", "ORD", "ATL", "ATL", "ATL"],
        "tailnum": TAILS,
    }
)
VALUES = pa.concat_arrays(map(json_rows, TABLE.to_batches())).cast(pa.binary())
FLIGHTS = Records(TABLE, pa.array([b"flight"] * len(TAILS)), VALUES)


def came(*rows: int) -> Consumed:
    keys = pa.array([TAILS[row] for row in rows], pa.string()).cast(pa.binary())
    numbers = pa.array(rows, pa.int64())
    return Consumed(pa.repeat(0, len(rows)), numbers, keys, VALUES.take(numbers))


def test_flights_without_a_tail_number_are_left_out_and_the_others_keep_their_order() -> None:
    written = by_aircraft(FLIGHTS)
    assert written.keys.to_pylist() == [b"N1", b"N2", b"N1", b"N3", b"N2", b"N1"]
    assert written.values == VALUES.take(pa.array([0, 1, 3, 4, 5, 6]))
    assert written.table.column("tailnum").to_pylist() == ["N1", "N2", "N1", "N3", "N2", "N1"]


def test_the_last_flights_are_expected_and_less_than_half_of_all() -> None:
    checks = list(check_aircraft(FLIGHTS, came(4, 5, 6)))
    assert [check.holds for check in checks] == [True, False]  # Three of six.
    assert checks[0].detail == "3 aircraft"
    assert checks[1].detail == "3 of 6 records are left"


def test_what_is_missing_or_old_is_told() -> None:
    missing, _ = check_aircraft(FLIGHTS, came(4, 6))
    assert (missing.holds, missing.detail) == (False, "1, such as b'N2'")
    old, _ = check_aircraft(FLIGHTS, came(1, 4, 6))
    assert (old.holds, old.detail) == (False, "1, such as b'N2'")


def test_places_count_the_last_flight_of_each_aircraft_once() -> None:
    assert expected_places(FLIGHTS) == {"ATL": (3, 3)}
