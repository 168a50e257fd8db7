"""Writes the dashboards, and the rules for Prometheus, from their values: `make dashboards`.

A test fails when what is checked in is not what this would write.
"""

from pathlib import Path
from typing import Final

from dashboards import (
    brokers,
    groups,
    kubernetes_operator,
    overview,
    quotas,
    replication,
    spark,
    storage,
    topics,
    transactions,
)
from dashboards.alerts import rules_yaml
from dashboards.grafana import grafana_json

FOLDER: Final = Path(__file__).with_name("json")
RULES: Final = Path(__file__).with_name("rules") / "millrace.yaml"
BOARDS: Final = (
    overview.BOARD,
    brokers.BOARD,
    topics.BOARD,
    replication.BOARD,
    groups.BOARD,
    transactions.BOARD,
    quotas.BOARD,
    storage.BOARD,
    kubernetes_operator.BOARD,
    spark.BOARD,
)


def files() -> dict[Path, str]:
    """Return the files with their content."""
    dashboards = {FOLDER / f"{board.uid}.json": grafana_json(board) for board in BOARDS}
    return {**dashboards, RULES: rules_yaml()}


def main() -> None:
    """Write the files."""
    for path, content in files().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
