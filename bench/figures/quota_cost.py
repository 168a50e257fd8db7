"""The share of the throughput of `produce_1kb` that quotas cost which no client exceeds.

One producer sends as fast as it can to one broker. Meanwhile quotas are set and deleted again, in
turn, of each kind that counts for it: for its client id, its topic and the topic's namespace, of
bytes and of request time. So both sides are parts of the same run, a second each, and other load
affects them alike. The value is the median of the rounds.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from bench.loads.spec import Load, command_line
from bench.measure import Bench, Bound, Outcome, figure, say, settle
from bench.metrics_page import appended_bytes
from bench.millrace_broker import Millrace, running_millrace
from bench.processes import LoadFailedError, start, stop, until
from bench.records import write_random_records
from bench.settings import MILLRACE_PRODUCER, MILLRACE_TOPIC
from bench.sides import GRACE_S, fresh_topic

from millrace.client import SyncAdmin

RECORD_BYTES = 1000
PARTITIONS = 4
SLICE_S = 1.0
WARM_UP_S = 2.0
SHARE_MAX = 0.02
START_TIMEOUT_S = 30
SWITCH_S = 0.5
"""How long all quotas may take to be set or deleted."""
_BYTES = {"produce_bytes_per_second": 1 << 40, "fetch_bytes_per_second": 1 << 40}
QUOTAS: dict[str, dict[str, Any]] = {
    "client": {"client_id": "", "request_percent": 10_000, **_BYTES},
    "topic": {"topic": "", **_BYTES},
    "namespace": {"namespace": "", **_BYTES},
}
"""For each client, topic and namespace, the largest that there can be."""


def measure(bench: Bench) -> Outcome:
    """Let a producer run once a round, and compare its seconds with and without quotas."""
    records = write_random_records(bench.directory / "records", RECORD_BYTES)
    rounds: list[dict[str, float]] = []
    with running_millrace(bench.directory / "millrace") as broker:
        for number in range(bench.rounds):
            settle()
            rounds.append(_round(broker, str(records), bench.seconds))
            say(f"round {number + 1}/{bench.rounds} {rounds[-1]}")
    return Outcome(
        bounds=[
            Bound(
                what="share of the throughput that quotas cost",
                value=median(1 - each["with"] / each["without"] for each in rounds),
                at_most=SHARE_MAX,
            )
        ],
        detail={"rounds": rounds},
    )


def _round(broker: Millrace, records_file: str, seconds: float) -> dict[str, float]:
    """Return the bytes a second with quotas and without, each over so many seconds."""
    slices = max(1, round(seconds / SLICE_S))
    moved = {True: 0.0, False: 0.0}
    elapsed = {True: 0.0, False: 0.0}
    with (
        SyncAdmin(broker.address) as admin,
        fresh_topic(broker, PARTITIONS, MILLRACE_TOPIC["replicated"]) as topic,
        _producing(broker, topic, records_file, WARM_UP_S + 2 * slices * (SLICE_S + SWITCH_S)),
    ):
        until(lambda: _bytes(broker, topic) or None, "the first record", START_TIMEOUT_S)
        time.sleep(WARM_UP_S)
        for number in range(2 * slices):
            # In pairs of either order: with, without, without, with.
            has_quotas = number % 4 in {0, 3}
            _switch(admin, has_quotas=has_quotas)
            began_at, before = time.monotonic(), _bytes(broker, topic)
            time.sleep(SLICE_S)
            moved[has_quotas] += _bytes(broker, topic) - before
            elapsed[has_quotas] += time.monotonic() - began_at
        _switch(admin, has_quotas=False)
    return {
        "with": moved[True] / elapsed[True],
        "without": moved[False] / elapsed[False],
    }


def _bytes(broker: Millrace, topic: str) -> float:
    return appended_bytes(broker.metrics_addresses, topic)


def _switch(admin: SyncAdmin, *, has_quotas: bool) -> None:
    """Have all quotas, or none."""
    if has_quotas:
        for name, quota in QUOTAS.items():
            admin.set_quota(name, **quota)
    else:
        for name in admin.describe_quotas():
            admin.delete_quota(name)


@contextmanager
def _producing(broker: Millrace, topic: str, records_file: str, seconds: float) -> Iterator[None]:
    """Produce to a topic in the block; at its end see that all has arrived.

    Raises:
        LoadFailedError: it has not, or the block took longer.
    """
    load = Load(
        address=broker.address,
        topic=topic,
        partitions=PARTITIONS,
        seconds=seconds,
        records_file=records_file,
        way="batch",
        settings=MILLRACE_PRODUCER,
    )
    log = Path(records_file).with_suffix(".log")
    log.unlink(missing_ok=True)
    process = start(command_line("millrace_produce", load), log)
    try:
        yield
        is_early = process.poll() is not None
        process.wait(seconds + GRACE_S)
        printed = log.read_text(errors="replace")
        if is_early or process.returncode:
            raise LoadFailedError(f"the producer ended too early:\n{printed[-4000:]}")
    finally:
        stop(process, 0)


if __name__ == "__main__":
    figure("quota_cost", unit="share", goal="<= 0.02", measure=measure)
