"""What the data says: the busiest routes, and how much the weather delays them."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class Route:
    """One route of the year, joined with the weather at its origin in the hour of departure."""

    origin: str
    destination: str
    flights: int
    cancelled: int
    mean_delay: float
    """Minutes late at departure, of the flights that left."""
    mean_delay_in_rain: float | None
    """The same, when it rained or snowed; None: it never did."""
    mean_wind: float | None
    """Miles per hour; None: no weather is known."""


def busiest_routes(flights: pa.Table, weather: pa.Table, count: int) -> list[Route]:
    """Return the routes with most flights, the busiest first."""
    hours = weather.select(["origin", "time_hour", "precip", "wind_speed"])
    hours = hours.group_by(["origin", "time_hour"]).aggregate(  # One row an hour, for certain.
        [("precip", "max"), ("wind_speed", "mean")]
    )
    joined = flights.select(["origin", "dest", "time_hour", "dep_delay"]).join(
        hours, ["origin", "time_hour"], join_type="left outer"
    )
    rain = pc.fill_null(pc.greater(joined.column("precip_max"), 0), False)
    delay = joined.column("dep_delay")
    joined = joined.append_column(
        "rain_delay", pc.if_else(rain, delay, pa.scalar(None, delay.type))
    )
    routes = joined.group_by(["origin", "dest"]).aggregate(
        [
            ("dest", "count"),
            ("dep_delay", "count"),
            ("dep_delay", "mean"),
            ("rain_delay", "mean"),
            ("wind_speed_mean", "mean"),
        ]
    )
    routes = routes.sort_by([("dest_count", "descending"), ("origin", "ascending")])
    return [
        Route(
            origin=row["origin"],
            destination=row["dest"],
            flights=row["dest_count"],
            cancelled=row["dest_count"] - row["dep_delay_count"],
            mean_delay=row["dep_delay_mean"],
            mean_delay_in_rain=row["rain_delay_mean"],
            mean_wind=row["wind_speed_mean_mean"],
        )
        for row in routes.slice(0, count).to_pylist()
    ]
