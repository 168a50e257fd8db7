"""The share of the queries of all dashboards that return data from a real Prometheus.

Three brokers work under load (writers, a group, a slow reader, a quota, compaction, retention,
refusals), and one of them is killed. Every query of every panel runs before and after that, with
the variables as Grafana resolves them. The pages of the operator and of a Spark job come from their
own registries, with numbers that are made up.
"""

import time
from collections.abc import Callable

from bench.measure import Bench, Outcome, say
from bench.processes import LoadFailedError
from tests.watching import prometheus
from tests.watching.cluster import watched_cluster
from tests.watching.panels import PanelQuery, panel_queries, without_data

TIMEOUT_S = 60


def measure(bench: Bench) -> Outcome:
    """Run all queries until they return data or the time is up, before and after a kill."""
    if not prometheus.is_there():
        raise LoadFailedError(prometheus.WHY_NOT)
    with watched_cluster(bench.directory, []) as watched:
        asked = watched.prometheus
        _wait(asked.is_up)
        before = _missing(asked)
        watched.kill_one()
        after = _missing(asked)
        count = len(list(panel_queries(asked)))
    share = 1 - len({str(query) for query in (*before, *after)}) / count
    say(f"{count} queries")
    return Outcome(
        values={"share of queries with data": share},
        detail={
            "queries": count,
            "without_data": [str(query) for query in before],
            "without_data_after_the_kill": [str(query) for query in after],
        },
    )


def _missing(asked: prometheus.RunningPrometheus) -> list[PanelQuery]:
    """Return the queries that return nothing of what comes from now on."""
    since = time.time()
    found: list[PanelQuery] = []

    def is_complete() -> bool:
        found[:] = without_data(asked, since)
        return not found

    _wait(is_complete)
    return found


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.2)
