from datetime import UTC, datetime

import pyarrow as pa
from demo.routes import Route, busiest_routes

NINE, TEN = (datetime(2013, 1, 1, hour, tzinfo=UTC) for hour in (9, 10))
HOUR = pa.timestamp("s", "UTC")

FLIGHTS = pa.table(
    {
        "origin": ["JFK", "JFK", "JFK", "EWR"],
        "dest": ["LAX", "LAX", "LAX", "ORD"],
        "time_hour": pa.array([NINE, TEN, TEN, NINE], HOUR),
        "dep_delay": pa.array([10, 40, None, 6], pa.int64()),
    }
)
WEATHER = pa.table(
    {
        "origin": ["JFK", "JFK", "EWR"],
        "time_hour": pa.array([NINE, TEN, TEN], HOUR),
        "precip": [0.0, 0.2, 0.0],
        "wind_speed": [6.0, 12.0, 3.0],
    }
)


def test_routes_are_joined_with_the_weather_at_the_hour_of_departure() -> None:
    assert busiest_routes(FLIGHTS, WEATHER, 1) == [
        Route(
            origin="JFK",
            destination="LAX",
            flights=3,
            cancelled=1,
            mean_delay=25.0,
            mean_delay_in_rain=40.0,
            mean_wind=10.0,
        )
    ]


def test_a_route_without_weather_is_listed_all_the_same() -> None:
    quiet = busiest_routes(FLIGHTS, WEATHER, 9)[1]
    assert (quiet.origin, quiet.flights, quiet.mean_delay) == ("EWR", 1, 6.0)
    assert quiet.mean_delay_in_rain is None
    assert quiet.mean_wind is None
