"""The comparison as a picture: one group of bars for each case, one bar for each client."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # To a file, without a window.

from bench.report.tables import CONSUMERS, PRODUCERS, case_name
from matplotlib import pyplot
from matplotlib.axes import Axes

COLOURS = {
    "millrace": "#1b6ca8",
    "millrace arrow": "#7fb3d9",
    "confluent": "#e08e2b",
    "java": "#9a9a9a",
}
INCHES = (14, 9)
DOTS_PER_INCH = 110


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw producers above and consumers below, with the wire's ceiling."""
    figure, (above, below) = pyplot.subplots(2, 1, figsize=INCHES, layout="constrained")
    _panel(above, report, "produce", PRODUCERS, "Producing, thousand records/s")
    _panel(below, report, "consume", CONSUMERS, "Consuming, thousand records/s")
    figure.savefig(path, dpi=DOTS_PER_INCH)
    pyplot.close(figure)


def _panel(
    axes: Axes, report: dict[str, Any], what: str, clients: Sequence[str], title: str
) -> None:
    rows = [row for row in report["rows"] if row["what"] == what]
    width = 0.8 / len(clients)
    for number, client in enumerate(clients):
        axes.bar(
            [place + number * width for place in range(len(rows))],
            [row["clients"][client]["records_per_second"] / 1000 for row in rows],
            width,
            label=client,
            color=COLOURS[client],
        )
    ceiling = _ceiling(report, "produce" if what == "produce" else "fetch")
    axes.axhline(ceiling / 1000, color="black", linestyle=":", label="raw gRPC, uncompressed")
    axes.set_title(title, loc="left")
    axes.set_xticks(
        [place + 0.4 - width / 2 for place in range(len(rows))],
        [case_name(row).replace(" ", "\n") for row in rows],
    )
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)


def _ceiling(report: dict[str, Any], direction: str) -> float:
    """Return the record rate at the bytes per second of raw streaming."""
    (row,) = [row for row in report["rows"] if row["what"] == f"grpc {direction}"]
    best = max(cells["mb_per_second"] for cells in row["clients"].values())
    ceiling: float = best * 1e6 / report["record_bytes"]
    return ceiling
