"""Flights with the weather at their origin in the hour of departure."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc


def with_weather(flights: pa.Table, weather: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return these columns of each flight with the weather.

    Returns:
        Beside them `wind_speed_mean` in miles per hour, null where no weather is known, and
        `rain_delay`: `dep_delay`, or null if it did not rain or snow.
    """
    hours = weather.select(["origin", "time_hour", "precip", "wind_speed"])
    hours = hours.group_by(["origin", "time_hour"]).aggregate(  # One row an hour, for certain.
        [("precip", "max"), ("wind_speed", "mean")]
    )
    joined = flights.select(columns).join(hours, ["origin", "time_hour"], join_type="left outer")
    rain = pc.fill_null(pc.greater(joined.column("precip_max"), 0), False)
    delay = joined.column("dep_delay")
    return joined.append_column("rain_delay", pc.if_else(rain, delay, pa.scalar(None, delay.type)))
