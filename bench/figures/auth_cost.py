"""CPU seconds a GB of 1 KB records, client and broker together, with identity and access over
without: to produce and to consume.

Two brokers run beside each other. One is open. The other one knows its callers by tokens, of which
its file has a thousand, and asks a file of a thousand rules what they may do. Their clients are
those of `produce_1kb` and `consume_1kb`, and run in turn: the value is the median of the rounds'
ratios.

The third value is the p99 of a decision that is cached, in this process: the slowest of a file's
and Kubernetes', over so many topics that the caches of the processor do not have them all.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from bench.measure import Bench, Outcome, cpu_seconds_per_gb, ratios, say, summaries
from bench.millrace_broker import Millrace, running_millrace
from bench.records import write_random_records
from bench.settings import MILLRACE_CONSUMER, MILLRACE_PRODUCER, MILLRACE_TOPIC
from bench.sides import Consume, Produce

from millrace.broker.guard.access_reviews import AccessReviews
from millrace.broker.guard.file_guard import FileGuard
from millrace.broker.guard.guard import Guard
from millrace.broker.guard.kubernetes_guard import KubernetesGuard
from millrace.broker.guard.service_accounts import ServiceAccountTokens
from millrace.core.guard.access import Demand, Operation, ResourceKind, named
from millrace.core.guard.identity import Identity
from millrace.core.guard.rules import parse_rules
from millrace.core.guard.token_file import new_entry, tokens_to_text
from millrace.runtime.kubernetes.resources import Kind

RECORD_BYTES = 1000
TOPIC = "filled"
PARTITIONS = 4
FILLED_RECORDS = 2_000_000
OTHERS = 999
"""Principals that have a token and a rule, beside the one that calls."""
PRINCIPAL = "bench"
_RULE = """\
[[rules]]
who = ["{who}"]
may = ["produce", "consume", "describe", "create", "delete"]
topics = ["{topics}"]
"""
DECISIONS = 200_000
TOPICS = 5_000


@dataclass(frozen=True, kw_only=True)
class _Side:
    """One of the two brokers, and what its clients need."""

    broker: Millrace
    security: Mapping[str, Any]
    records: Path

    def produce(self, way: str = "batch") -> Produce:
        return Produce(
            broker=self.broker,
            module="millrace_produce",
            way=way,
            records_file=self.records,
            topic_config=MILLRACE_TOPIC["replicated"],
            settings={**MILLRACE_PRODUCER, **self.security},
            partitions=PARTITIONS,
        )

    def consume(self) -> Consume:
        return Consume(
            broker=self.broker,
            module="millrace_consume",
            way="columns",
            topic=TOPIC,
            settings={**MILLRACE_CONSUMER, **self.security},
            log=self.records.with_suffix(".log"),
            partitions=PARTITIONS,
        )


def measure(bench: Bench) -> Outcome:
    """Measure consumers, and then producers, each interleaved; then decisions."""
    with _running(bench.directory) as sides:
        for side in sides.values():
            side.produce("batch_keyed").fill(TOPIC, FILLED_RECORDS)
        consumed = bench.interleave({name: side.consume() for name, side in sides.items()})
        for side in sides.values():
            side.broker.delete_topic(TOPIC)
        produced = bench.interleave({name: side.produce() for name, side in sides.items()})
    runs = {"produce": produced, "consume": consumed}
    costs = {
        what: {
            name: [cpu_seconds_per_gb(run) for run in of_side] for name, of_side in of_what.items()
        }
        for what, of_what in runs.items()
    }
    over = {what: ratios(cost["guarded"], cost["open"]) for what, cost in costs.items()}
    p99_ms = decisions_p99_ms()
    say(f"p99 of a cached decision: {p99_ms} ms")
    return Outcome(
        values={
            "to produce, with identity and access over without": median(over["produce"]),
            "to consume, likewise": median(over["consume"]),
            "p99 of a cached decision, ms": max(p99_ms.values()),
        },
        detail={
            "decision_p99_ms": p99_ms,
            "cpu_seconds_per_gb": costs,
            "rounds": over,
            **{what: summaries(of_what) for what, of_what in runs.items()},
        },
    )


def decisions_p99_ms() -> dict[str, float]:
    """Return the p99 of a decision that is known already, for each kind of guard."""
    return asyncio.run(_decisions_p99_ms())


async def _decisions_p99_ms() -> dict[str, float]:
    identity = Identity(PRINCIPAL, frozenset({"system:authenticated"}))
    demands = [
        Demand(Operation.PRODUCE, named(ResourceKind.TOPICS, f"shop/orders-{number}"))
        for number in range(TOPICS)
    ]
    reviewer = _NamesAllowed()
    reviews = AccessReviews(reviewer, "shop", "bench")
    for demand in demands:
        await reviews.decide(identity, demand)
    guards: dict[str, Guard] = {
        "files": FileGuard(None, parse_rules(_RULE.format(who=PRINCIPAL, topics="shop/*"))),
        "kubernetes": KubernetesGuard(ServiceAccountTokens(reviewer, "bench"), reviews),
    }
    return {
        name: quantiles(_decision_times_ms(guard, identity, demands), n=100)[98]
        for name, guard in guards.items()
    }


def _decision_times_ms(guard: Guard, identity: Identity, demands: list[Demand]) -> Iterable[float]:
    """Return how long each decision took; the first of each demand, which is kept, is left out."""
    assert all(guard.decide(identity, demand).is_allowed for demand in demands)
    times = []
    for number in range(DECISIONS):
        demand = demands[number % len(demands)]
        begun = time.perf_counter_ns()
        guard.decide(identity, demand)
        times.append((time.perf_counter_ns() - begun) / 1e6)
    return times


class _NamesAllowed:
    """An API server whose roles name each topic, so that all three questions are looked up."""

    async def review(self, kind: Kind, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        """Allow what has a name."""
        return {"allowed": bool(spec["resourceAttributes"]["name"])}

    async def read(self, path: str, accept: str = "") -> Mapping[str, Any]:
        """Publish nothing."""
        return {}


@contextmanager
def _running(directory: Path) -> Iterator[dict[str, _Side]]:
    """Run both brokers."""
    records = write_random_records(directory / "records", RECORD_BYTES)
    tokens, rules, shown = (directory / name for name in ("tokens.jsonl", "rules.toml", "token"))
    names = [f"other-{number}" for number in range(OTHERS)] + [PRINCIPAL]
    entries = [new_entry(f"{name}-{'t' * 32}", name, (), None, b"saltsalt") for name in names]
    tokens.write_text(tokens_to_text(entries))
    shown.write_text(f"{names[-1]}-{'t' * 32}\n")
    rules.write_text(
        "".join(_RULE.format(who=name, topics=f"{name}/*") for name in names[:-1])
        + _RULE.format(who=PRINCIPAL, topics="default/*")
    )
    security = {"token_file": str(shown)}
    with ExitStack() as stack:
        open_ = stack.enter_context(running_millrace(directory / "open"))
        guarded = stack.enter_context(
            running_millrace(
                directory / "guarded",
                access=f'tokens_file = "{tokens}"\nrules_file = "{rules}"',
                security=security,
            )
        )
        yield {
            "open": _Side(broker=open_, security={}, records=records),
            "guarded": _Side(broker=guarded, security=security, records=records),
        }
