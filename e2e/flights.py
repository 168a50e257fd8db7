"""Flights that a pod produces, day by day, as `millrace produce` reads them."""

import pyarrow as pa
import pyarrow.compute as pc
from e2e.installed import Namespace
from tests.spark_jobs.flights import FLIGHTS, Source


def produce_days(namespace: Namespace, source: Source, first: int, end: int) -> pa.Table:
    """Produce the flights of some days from the client's pod; return them as a table.

    Args:
        namespace: whose topic `flights` they go to.
        source: of the flights.
        first: of the days, from 0.
        end: the day after the last one.
    """
    begin, stop = source.days[first][0], source.days[end - 1][1]
    flights = source.flights
    keys = flights.keys.slice(begin, stop - begin)
    values = flights.values.slice(begin, stop - begin)
    lines = pc.binary_join_element_wise(keys.cast(pa.binary()), values.cast(pa.binary()), b"\t")
    text = b"\n".join([*lines.to_pylist(), b""]).decode()
    namespace.millrace(
        "produce", f"{namespace.name}/{FLIGHTS}", "--key-separator", "\t", input=text
    )
    return flights.table.slice(begin, stop - begin)
