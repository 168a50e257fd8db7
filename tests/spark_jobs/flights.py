"""The flights that the jobs read, in the order in which they were to leave, in portions of days."""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
from demo.dataset import Records, data_folder, read_flights, read_weather

from millrace.client import SyncAdmin, SyncProducer

FLIGHTS, WEATHER = "flights", "weather"
PARTITIONS = 4
REPLICAS = 3
DELIVERY_TIMEOUT_MS = 120_000
BAD = ("not a flight", '{"carrier":', "", " ")
"""Values that are no JSON, as a job may meet them."""


@dataclass(frozen=True)
class Source:
    """Flights of some days, and the weather of the year."""

    flights: Records
    weather: Records
    days: list[tuple[int, int]]
    """Of each day its first row and the one after its last."""

    def parts(self, count: int) -> list["Source"]:
        """Return the source in so many parts of as many days each."""
        size = len(self.days) // count
        parts = []
        for number in range(count):
            days = self.days[number * size : (number + 1) * size]
            begin, end = days[0][0], days[-1][1]
            flights = Records(
                self.flights.table.slice(begin, end - begin),
                self.flights.keys.slice(begin, end - begin),
                self.flights.values.slice(begin, end - begin),
            )
            bounds = [(first - begin, last - begin) for first, last in days]
            parts.append(Source(flights, self.weather, bounds))
        return parts


DAYS_OF_YEAR = 366
"""In UTC: New York's last evening is the first day of 2014."""


def read_source(days: int) -> Source:
    """Return the first days of the year.

    Raises:
        DatasetError: the data is not installed.
    """
    folder = data_folder()
    flights, weather = read_flights(folder), read_weather(folder)
    in_order = pc.sort_indices(flights.table, [("time_hour", "ascending")])
    table = flights.table.take(in_order)
    date = pc.floor_temporal(table.column("time_hour"), unit="day").combine_chunks()
    counts = pc.value_counts(date).field("counts").to_pylist()[:days]
    bounds = [0]
    for count in counts:
        bounds.append(bounds[-1] + count)
    taken = Records(
        table.slice(0, bounds[-1]),
        flights.keys.take(in_order).slice(0, bounds[-1]),
        flights.values.take(in_order).slice(0, bounds[-1]),
    )
    return Source(taken, weather, list(pairwise(bounds)))


class Feed:
    """Sends a source portion by portion.

    Each day is acknowledged before the next one is sent: so partitions differ by a day at the most,
    however long one of them is without a leader.

    Args:
        bootstrap: where the brokers are; the topics are made, and the weather is sent.
        source: what is sent.
        portions: how many.
        with_bad: whether each portion begins with values that are no flights.
    """

    def __init__(self, bootstrap: str, source: Source, portions: int, *, with_bad: bool) -> None:
        with SyncAdmin(bootstrap) as admin:
            admin.create_topic(FLIGHTS, PARTITIONS, REPLICAS)
            admin.create_topic(WEATHER, 1, REPLICAS)
        self._producer = SyncProducer(bootstrap, delivery_timeout_ms=DELIVERY_TIMEOUT_MS)
        self._producer.send_batch(WEATHER, source.weather.values, source.weather.keys).result()
        self._source = source
        days = len(source.days)
        self._portions = [
            source.days[days * number // portions : days * (number + 1) // portions]
            for number in range(portions)
        ]
        self._with_bad = with_bad
        self.bad: Counter[str] = Counter()

    @property
    def portion_rows(self) -> int:
        """About how many flights a portion has."""
        return len(self._source.flights) // len(self._portions)

    @property
    def portion_bytes(self) -> int:
        """About how large a portion is; nothing is compressed."""
        return self._source.flights.size_bytes // len(self._portions)

    def send(self, portion: int) -> None:
        """Send a portion; all of it is acknowledged when this returns."""
        if self._with_bad:
            self._producer.send_batch(FLIGHTS, pa.array(BAD, pa.binary())).result()
            self.bad.update(BAD)
        flights = self._source.flights
        for first, end in self._portions[portion]:
            values = flights.values.slice(first, end - first)
            keys = flights.keys.slice(first, end - first)
            self._producer.send_batch(FLIGHTS, values, keys).result()

    def close(self) -> None:
        """Let go of the connections."""
        self._producer.close()
