"""The share of alerts that were silent while all was well, and fired for what they are about.

Three brokers work under load, a real operator looks after a Cluster at a real API server, and the
page of a Spark job comes from its own registry, its query being made up. A real Prometheus has the
real rules, in which all times are divided by 60 (`tests/watching/quick_rules.py`): what an alert
holds for, ranges, and bounds of ages. Counts and shares are not. First all is well for `--seconds`,
which is longer than any alert holds for. Then each cause (`tests/watching/causes.py`) lasts until
its alerts are `firing`, or the time is up. There is one round. An alert that the machine cannot
cause has not fired; `detail` has the reason.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

from bench.measure import Bench, Outcome, say
from bench.processes import LoadFailedError
from dashboards.alerts import ALERTS
from dashboards.generate import RULES
from tests.api_server import binaries
from tests.watching import prometheus
from tests.watching.causes import STAGES, Cause, Scene
from tests.watching.cluster import wait_until, watched_cluster
from tests.watching.disks import faulty_brokers
from tests.watching.operator import running_operator
from tests.watching.quick_rules import FACTOR, quick_rules

from millrace.core.errors import MillraceError

FIRES_SECONDS_MAX = 120.0
SILENT_SECONDS_MAX = 30.0
_PREFIX = "Millrace"


def measure(bench: Bench) -> Outcome:
    """Let all be well for a while; then cause all alerts, stage by stage."""
    if not prometheus.is_there():
        raise LoadFailedError(prometheus.WHY_NOT)
    if not binaries.PROGRAMS.are_built():
        raise LoadFailedError("kube-apiserver and etcd are not built yet: make api-server")
    with ExitStack() as opened:
        operator = opened.enter_context(running_operator(bench.directory / "api-server"))
        faulty = opened.enter_context(faulty_brokers(bench.directory))
        watched = opened.enter_context(
            watched_cluster(
                bench.directory,
                [quick_rules(RULES, bench.directory / "rules")],
                brokers=faulty.cluster,
                operator=lambda: nullcontext(operator.address),
            )
        )
        scene = Scene(watched=watched, faulty=faulty, operator=operator)
        scene.prepare()
        wait_until(scene.is_whole, "all replicas are in sync")
        wait_until(watched.prometheus.is_up, "all pages are scraped")
        loud = _fired_while_well(watched.prometheus, bench.seconds)
        say(f"while all was well: {', '.join(sorted(loud)) or 'silent'}")
        outcomes: dict[str, dict[str, Any]] = {}
        for stage in STAGES:
            outcomes |= _caused(scene, stage)
    for alert in ALERTS:
        outcome = outcomes.setdefault(alert.name, {"fired": False, "why_not": "it has no cause"})
        outcome["silent_while_well"] = alert.name not in loud
    right = [
        outcome
        for outcome in outcomes.values()
        if outcome["fired"] and outcome["silent_while_well"]
    ]
    share = len(right) / len(ALERTS)
    return Outcome(
        values={"share of alerts that are right": share},
        detail={
            "alerts": len(ALERTS),
            "times_divided_by": FACTOR,
            "not_fired": sorted(name for name, outcome in outcomes.items() if not outcome["fired"]),
            "fired_while_well": sorted(loud),
            "each": outcomes,
        },
    )


def _fired_while_well(asked: prometheus.RunningPrometheus, seconds: float) -> set[str]:
    """Return the alerts that fire in so many seconds without a fault."""
    time.sleep(seconds)
    expr = f'count_over_time(ALERTS{{alertstate="firing"}}[{round(seconds)}s])'
    found = asked.ask("query", query=expr)["result"]
    return {alert["metric"]["alertname"].removeprefix(_PREFIX) for alert in found}


def _caused(scene: Scene, stage: Sequence[Cause]) -> dict[str, dict[str, Any]]:
    """Let the causes of a stage last until their alerts fire; return what came of each alert."""
    outcomes: dict[str, dict[str, Any]] = {}
    due: dict[str, float] = {}
    asked = scene.watched.prometheus
    wanted = {name for cause in stage for name in cause.alerts}
    _until(lambda: not wanted & _firing(asked), SILENT_SECONDS_MAX)
    were_firing = wanted & _firing(asked)
    try:
        with ExitStack() as causes:
            for cause in stage:
                outcome = {"cause": cause.what, "fired": False}
                outcomes |= {name: {**outcome} for name in cause.alerts}
                lacks = [scene.faulty.missing.get(need) for need in cause.needs]
                why_not = "; ".join(reason for reason in lacks if reason)
                if not why_not:
                    try:
                        causes.enter_context(cause.begin(scene))
                    except (AssertionError, MillraceError, OSError, RuntimeError) as error:
                        why_not = f"it could not be caused: {error!r}"
                if why_not:
                    for name in cause.alerts:
                        outcomes[name]["why_not"] = why_not
                    continue
                due |= dict.fromkeys(cause.alerts, time.monotonic())

            def have_fired() -> bool:
                for name in due.keys() & _firing(asked):
                    if not outcomes[name]["fired"]:
                        after = time.monotonic() - due[name]
                        outcomes[name] |= {"fired": True, "after_s": after}
                        say(f"{name} fired after {after:.0f} s")
                return all(outcomes[name]["fired"] for name in due)

            _until(have_fired, FIRES_SECONDS_MAX)
    finally:
        for name, outcome in outcomes.items():
            if name in were_firing:
                outcome |= {"fired": False, "why_not": "it fired before it was caused"}
            elif not outcome["fired"]:
                outcome.setdefault("why_not", f"not within {FIRES_SECONDS_MAX:.0f} s")
                say(f"{name} did not fire: {outcome['why_not']}")
        scene.wait_until_whole()
    return outcomes


def _firing(asked: prometheus.RunningPrometheus) -> set[str]:
    return {
        alert["labels"]["alertname"].removeprefix(_PREFIX)
        for alert in asked.ask("alerts")["alerts"]
        if alert["state"] == "firing"
    }


def _until(condition: Callable[[], bool], seconds: float) -> None:
    """Return once it is so, or the time is up."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.2)
