"""What each job should have written, computed without Spark: from the flights that were sent."""

import json
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from demo.flights import consume
from tests.spark_jobs.flights import FLIGHTS, WEATHER
from tests.spark_jobs.topics import in_one_way, read_all

from millrace.client import Record

LATENESS = timedelta(days=7)
"""As by default in the jobs."""
HOUR = timedelta(hours=1)
GAP = timedelta(hours=12)
INGESTED = (
    "carrier", "flight", "tailnum", "origin", "dest", "time_hour", "dep_delay", "arr_delay",
    "air_time", "distance",
)  # fmt: skip


def carrier_delays(flights: pa.Table) -> pa.Table:
    """Return the hours that the latest flight has closed."""
    hours = pc.floor_temporal(flights.column("time_hour"), unit="hour")
    grouped = (
        flights.append_column("start", hours)
        .group_by(["start", "carrier"])
        .aggregate(
            [([], "count_all"), ("dep_delay", "count"), ("dep_delay", "mean"), ("dep_delay", "max")]
        )
        .rename_columns(["start", "carrier", "flights", "departed", "mean_delay", "max_delay"])
    )
    watermark = pc.max(flights.column("time_hour")).as_py() - LATENESS
    return grouped.filter(pc.less_equal(grouped.column("start"), watermark - HOUR))


def aircraft_sessions(flights: pa.Table) -> pa.Table:
    """Return the sessions that the latest flight has closed."""
    known = flights.filter(pc.is_valid(flights.column("tailnum")))
    known = known.sort_by([("tailnum", "ascending"), ("time_hour", "ascending")])
    rows: list[dict[str, Any]] = []
    columns = (known.column(name).to_pylist() for name in ("tailnum", "time_hour", "distance"))
    for aircraft, time, miles in zip(*columns, strict=True):
        last = rows[-1] if rows else None
        if last is None or last["tailnum"] != aircraft or time - last["last"] > GAP:
            rows.append({"tailnum": aircraft, "first": time, "flights": 0, "miles": 0})
        rows[-1].update(last=time, flights=rows[-1]["flights"] + 1, miles=rows[-1]["miles"] + miles)
    watermark = pc.max(known.column("time_hour")).as_py() - LATENESS
    return pa.Table.from_pylist([row for row in rows if row["last"] + GAP <= watermark])


def flights_with_weather(flights: pa.Table, weather: pa.Table) -> pa.Table:
    """Return every flight, with the weather of its hour where there is one."""
    ours = ["carrier", "flight", "origin", "dest", "time_hour", "dep_delay"]
    theirs = ["origin", "time_hour", "temp", "wind_speed", "precip", "visib"]
    return flights.select(ours).join(
        weather.select(theirs), ["origin", "time_hour"], join_type="left outer"
    )


def ingest_flights(flights: pa.Table, bad: Counter[str], bootstrap: str, topic: str) -> pa.Table:
    """Return what the log holds, read by a plain consumer; it must be what was sent.

    Args:
        flights: that were sent.
        bad: values that were sent and are no flights.
        bootstrap: where the brokers are.
        topic: which was sent to.
    """
    came = consume(bootstrap, topic)
    rows: list[dict[str, Any]] = []
    for partition, offset, value in zip(
        came.partitions.to_pylist(), came.offsets.to_pylist(), came.values.to_pylist(), strict=True
    ):
        text = value.decode()
        known = bad[text] > 0
        parsed = {"unparsed": text} if known else {**json.loads(text), "unparsed": None}
        rows.append(
            {"partition": partition, "offset": offset}
            | {name: parsed.get(name) for name in (*INGESTED, "unparsed")}
        )
    names = ("partition", "offset", *INGESTED, "unparsed")
    log = pa.table({name: [row[name] for row in rows] for name in names})
    times = pc.strptime(log.column("time_hour"), "%Y-%m-%dT%H:%M:%SZ", "s").cast(
        pa.timestamp("us", "UTC")
    )
    log = log.set_column(log.column_names.index("time_hour"), "time_hour", times)
    assert Counter(row["unparsed"] for row in rows if row["unparsed"] is not None) == bad
    sent = log.filter(pc.is_null(log.column("unparsed"))).select(INGESTED)
    assert difference(sent, flights.select(INGESTED)) == "", "the log is not what was sent"
    return log


def airport_events(bad: Counter[str], read: Callable[[str], list[Record]]) -> pa.Table:
    """Return the events of both topics and what is none, as `topics.event` reads them.

    Args:
        bad: values that were sent and are no flights.
        read: returns all records of a topic.
    """
    taken = {
        FLIGHTS: ("a flight", "carrier", "flight", "origin", "dest", "time_hour", "dep_delay"),
        WEATHER: ("weather", "origin", "time_hour", "temp", "wind_speed", "precip", "visib"),
    }
    rows: list[dict[str, Any]] = []
    rejected: Counter[str] = Counter()
    for topic, (kind, *names) in taken.items():
        for record in read(topic):
            text = record.value.decode()
            row: dict[str, Any] = {"source": f"{topic}/{record.partition}/{record.offset}"}
            if bad[text]:
                rejected[text] += 1
                row |= {"to": "rejected", "key": record.key, "value": record.value}
                row |= {"error.reason": f"no JSON of {kind}", "event": None, "kind": None}
            else:
                fields = {name: v for name, v in json.loads(text).items() if name in names}
                row |= {"to": "airport-events", "key": fields["origin"].encode(), "value": None}
                row |= {"error.reason": None, "event": in_one_way(fields), "kind": kind}
            rows.append(row)
    assert rejected == bad
    return pa.Table.from_pylist(rows)


def routes(flights: pa.Table) -> pa.Table:
    """Return each route of each day."""
    days = pc.floor_temporal(flights.column("time_hour"), unit="day")
    return (
        flights.select(["origin", "dest", "dep_delay", "arr_delay"])
        .append_column("day", days)
        .group_by(["day", "origin", "dest"])
        .aggregate([([], "count_all"), ("dep_delay", "count"), ("arr_delay", "mean")])
        .rename_columns(["day", "origin", "dest", "flights", "departed", "mean_arr_delay"])
    )


def shuffled(bootstrap: str, output: str) -> pa.Table:
    """Return each flight that was sent, and to which topic it goes."""
    return pa.Table.from_pylist(
        [
            {
                "to": f"{output}-b" if record.offset % 3 else f"{output}-a",
                "source": f"{record.topic}/{record.partition}/{record.offset}".encode(),
                "value": record.value,
            }
            for record in read_all(bootstrap, FLIGHTS)
        ]
    )


def difference(found: pa.Table, wanted: pa.Table) -> str:
    """Return how two tables differ, whatever the order of their rows; empty: not at all."""
    if sorted(found.column_names) != sorted(wanted.column_names):
        return f"columns {found.column_names}, not {wanted.column_names}"
    names = wanted.column_names
    ours = Counter(zip(*(_cells(found, name) for name in names), strict=True))
    theirs = Counter(zip(*(_cells(wanted, name) for name in names), strict=True))
    if ours == theirs:
        return ""
    missing, extra = theirs - ours, ours - theirs
    return (
        f"{found.num_rows} rows, {wanted.num_rows} wanted; {missing.total()} are missing, such as "
        f"{next(iter(missing), None)}; {extra.total()} are too many, such as "
        f"{next(iter(extra), None)}"
    )


def _cells(table: pa.Table, name: str) -> list[Any]:
    column = table.column(name)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", "UTC"))
    cells: list[Any] = column.to_pylist()
    return cells
