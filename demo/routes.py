"""The busiest routes of the data, and their delays by weather."""

from dataclasses import dataclass

import pyarrow as pa
from demo.weather import with_weather


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
    """The same, in rain or snow; None: there was none."""
    mean_wind: float | None
    """Miles per hour; None: no weather is known."""


def busiest_routes(flights: pa.Table, weather: pa.Table, count: int) -> list[Route]:
    """Return the routes with most flights, the busiest first."""
    joined = with_weather(flights, weather, ["origin", "dest", "time_hour", "dep_delay"])
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
