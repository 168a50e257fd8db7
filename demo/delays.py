"""The expected sums of the pipeline, computed without Spark, and a picture of them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
from demo.weather import with_weather

SUMS = ("flights", "departed", "delay", "departed_in_rain", "delay_in_rain")
Row = tuple[int, ...]
"""In the order of `SUMS`; delays in minutes."""
Table = Mapping[tuple[str, int], Row]
"""By carrier and hour of the day."""


def expected(flights: pa.Table, weather: pa.Table) -> Table:
    """Return the expected result of the job."""
    columns = ["carrier", "hour", "origin", "time_hour", "dep_delay"]
    sums = (
        with_weather(flights, weather, columns)
        .group_by(["carrier", "hour"])
        .aggregate(
            [
                ("origin", "count"),
                ("dep_delay", "count"),
                ("dep_delay", "sum"),
                ("rain_delay", "count"),
                ("rain_delay", "sum"),
            ]
        )
    )
    names = (
        "origin_count",
        "dep_delay_count",
        "dep_delay_sum",
        "rain_delay_count",
        "rain_delay_sum",
    )
    return {
        (row["carrier"], row["hour"]): tuple(row[name] or 0 for name in names)
        for row in sums.to_pylist()
    }


def table_of(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Return rows by key; the last row of a key counts."""
    return {(row["carrier"], row["hour"]): tuple(row[name] for name in SUMS) for row in rows}


def by_carrier(table: Table) -> list[tuple[str, int, float, float | None, int]]:
    """Return a row for each carrier, the one with most flights first.

    Returns:
        Carrier, flights, mean delay, mean delay in rain or None, and the worst hour.
    """
    found = []
    for carrier in {carrier for carrier, _ in table}:
        hours = {hour: row for (of, hour), row in table.items() if of == carrier}
        flights, departed, delay, wet, wet_delay = (
            sum(column) for column in zip(*hours.values(), strict=True)
        )
        worst = max(hours, key=lambda hour: hours[hour][2] / max(hours[hour][1], 1))
        in_rain = wet_delay / wet if wet else None
        found.append((carrier, flights, delay / max(departed, 1), in_rain, worst))
    return sorted(found, key=lambda row: (-row[1], row[0]))


def draw(table: Table, path: Path) -> None:
    """Write a picture: mean delays by carrier and hour, and what rain adds."""
    carriers = [row[0] for row in by_carrier(table)]
    hours = sorted({hour for _, hour in table})
    grid = np.full((len(carriers), len(hours)), np.nan)
    for (carrier, hour), (_, departed, delay, _, _) in table.items():
        if departed:
            grid[carriers.index(carrier), hours.index(hour)] = delay / departed
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(13, 6), width_ratios=(3, 1), layout="constrained"
    )
    figure.suptitle("Departures from New York City, 2013: the later the day, the later the flight")
    image = left.imshow(grid, aspect="auto", cmap="viridis", vmin=-5, vmax=60)
    left.set_xticks(range(len(hours)), [f"{hour}" for hour in hours])
    left.set_yticks(range(len(carriers)), carriers)
    left.set_xlabel("hour of the scheduled departure")
    left.set_ylabel("carrier, most flights first")
    figure.colorbar(image, ax=left, label="mean delay in minutes", extend="both")
    dry, wet = _dry_and_wet(table, carriers)
    places = np.arange(len(carriers))
    right.barh(places - 0.2, dry, 0.4, label="dry", color="#c9b458")
    right.barh(places + 0.2, wet, 0.4, label="rain or snow", color="#31688e")
    right.set_yticks(places, carriers)
    right.invert_yaxis()
    right.set_xlabel("mean delay in minutes")
    right.legend(loc="lower right")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _dry_and_wet(table: Table, carriers: list[str]) -> tuple[list[float], list[float]]:
    dry, wet = [], []
    for carrier in carriers:
        rows = [row for (of, _), row in table.items() if of == carrier]
        _, departed, delay, rainy, delay_in_rain = (
            sum(column) for column in zip(*rows, strict=True)
        )
        dry.append((delay - delay_in_rain) / max(departed - rainy, 1))
        wet.append(delay_in_rain / max(rainy, 1))
    return dry, wet
