"""Compacting the same log side by side: records of equal size, drawn from a tenth as many keys.

Each round fills a topic of one partition on one side, holds its compaction back until all is there,
and then lets the cleaner thread of the broker clean it in one pass. Time is from the change of the
topic's setting to the end of the pass, which both brokers begin within a tenth of a second. MB are
those of keys and values, so that neither side gains by its format.
"""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from bench.measure import Bench, Outcome, say, settle
from bench.metrics_page import samples
from bench.millrace_broker import Millrace, running_millrace
from bench.peers.kafka import ADMIN_TIMEOUT_S, Kafka, running_kafka
from bench.processes import LoadFailedError, reset_peak, status_bytes
from bench.records import KEY_BYTES, SEED, read_records, write_random_records
from bench.settings import CONFLUENT_PRODUCER, MILLRACE_TOPIC
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from millrace.client import SyncAdmin, SyncProducer

RECORDS = 10_000_000
KEYS = 1_000_000
LARGE_RECORDS = 2_000_000
LARGE_KEYS = 200_000
"""Of 1 KB: 10 M of them would take a disk longer to write than all else together."""
SEGMENT_BYTES = 32 << 20
CLEAN_TIMEOUT_S = 600
HELD = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "min.compaction.lag.ms": str(10**12),
    "segment.bytes": str(SEGMENT_BYTES),
}
"""A topic that is not compacted yet."""
FREE = {"min.compaction.lag.ms": "0"}
BACKOFF_MS = 100
DIRTIEST = "millrace_cleaner_dirtiest_ratio"
_AT_ONCE = 10_000


@dataclass(frozen=True, kw_only=True)
class Cleaned:
    """One cleaning: how fast it was, and what it took."""

    mb_per_second: float
    seconds: float
    memory_mb: float
    extra_disk_mb: float
    passes: int = 1


class Side(Protocol):
    """A broker that compacts."""

    def clean(self, cells: Iterator[tuple[list[bytes], list[bytes]]], user_bytes: int) -> Cleaned:
        """Fill a topic with keys and values, compact it, delete it."""


def cells(
    records: int, keys: int, values: list[bytes]
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Yield keys and values, some at a time, the same ones at every call."""
    rng = np.random.default_rng(SEED)
    for start in range(0, records, _AT_ONCE):
        count = min(_AT_ONCE, records - start)
        drawn: npt.NDArray[np.int64] = rng.integers(0, keys, count)
        yield (
            [b"%0*d" % (KEY_BYTES, key) for key in drawn.tolist()],
            [values[(start + number) % len(values)] for number in range(count)],
        )


def numbered_cells(records: int, values: list[bytes]) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Yield keys that are all different, and values, some at a time."""
    for start in range(0, records, _AT_ONCE):
        numbers = range(start, min(start + _AT_ONCE, records))
        yield (
            [b"%0*d" % (KEY_BYTES, number) for number in numbers],
            [values[number % len(values)] for number in numbers],
        )


@dataclass(kw_only=True)
class MillraceSide:
    """Ours."""

    millrace: Millrace
    directory: Path

    def clean(self, cells: Iterator[tuple[list[bytes], list[bytes]]], user_bytes: int) -> Cleaned:
        """Implement `Side`."""
        topic = "compacted"
        self.millrace.create_topic(topic, 1, {**MILLRACE_TOPIC["replicated"], **HELD})
        with SyncProducer(self.millrace.address) as producer:
            for keys, values in cells:
                producer.send_batch(topic, values, keys=keys)
            producer.flush()
        settle()
        name = "millrace_cleaner_cleanings_total"
        before, points = samples(self.millrace.metrics_addresses)[name], self._cleaner_points()
        idle = status_bytes(self.millrace.pid, "VmRSS")
        reset_peak(self.millrace.pid)
        watch = _Disk(self.directory)
        with SyncAdmin(self.millrace.address) as admin:
            began_at = time.perf_counter()
            admin.alter_topic(topic, set_config=FREE)
        while self._cleaner_points() == points:  # A look at the metrics would slow the broker.
            watch.look()
        while (now := samples(self.millrace.metrics_addresses))[name] == before or now[
            DIRTIEST
        ] > 0:
            watch.look()
        seconds = time.perf_counter() - began_at
        peak = status_bytes(self.millrace.pid, "VmHWM")
        self.millrace.delete_topic(topic)
        return Cleaned(
            mb_per_second=user_bytes / seconds / 1e6,
            seconds=seconds,
            memory_mb=(peak - idle) / 1e6,
            extra_disk_mb=watch.extra / 1e6,
            passes=int(now[name] - before),
        )

    def _cleaner_points(self) -> set[tuple[int, int]]:
        """Return files that say how far a log is cleaned: each cleaning replaces one."""
        found = _files(self.directory, "**/cleaner-point")
        return {(file.st_ino, file.st_mtime_ns) for file in found}


@dataclass(kw_only=True)
class KafkaSide:
    """Kafka's."""

    kafka: Kafka
    directory: Path

    def clean(self, cells: Iterator[tuple[list[bytes], list[bytes]]], user_bytes: int) -> Cleaned:
        """Implement `Side`."""
        topic = f"compacted-{time.monotonic_ns()}"  # A deleted one's name is free only later.
        self.kafka.create_topic(topic, 1, HELD)
        producer = Producer({"bootstrap.servers": self.kafka.address, **CONFLUENT_PRODUCER})
        for keys, values in cells:
            for key, value in zip(keys, values, strict=True):
                producer.produce(topic, value, key)
            producer.poll(0)
            while len(producer) > 500_000:
                producer.poll(0.1)
        producer.flush()
        settle()
        pid = self.kafka.pids[0]
        idle = status_bytes(pid, "VmRSS")
        reset_peak(pid)
        admin = AdminClient({"bootstrap.servers": self.kafka.address})
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in FREE.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        watch = _Disk(self.directory)
        began_at = time.perf_counter()
        admin.incremental_alter_configs([resource])[resource].result(ADMIN_TIMEOUT_S)
        checkpoint = self.directory / "data-1" / "cleaner-offset-checkpoint"
        while not checkpoint.exists() or topic not in checkpoint.read_text():
            watch.look()
        seconds = time.perf_counter() - began_at
        peak = status_bytes(pid, "VmHWM")
        self.kafka.delete_topic(topic)
        return Cleaned(
            mb_per_second=user_bytes / seconds / 1e6,
            seconds=seconds,
            memory_mb=(peak - idle) / 1e6,
            extra_disk_mb=watch.extra / 1e6,
        )


class _Disk:
    """Watches how large the segments of a directory become, beyond what they were."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._before = self._size()
        self._until = time.monotonic() + CLEAN_TIMEOUT_S
        self.extra = 0

    def look(self) -> None:
        """Look again, after a moment."""
        if time.monotonic() > self._until:
            raise LoadFailedError(f"nothing was compacted in {CLEAN_TIMEOUT_S} s")
        time.sleep(0.05)
        self.extra = max(self.extra, self._size() - self._before)

    def _size(self) -> int:
        return sum(file.st_size for file in _files(self._directory, "**/0*.log*"))


def _files(directory: Path, pattern: str) -> Iterator[os.stat_result]:
    """Yield what is known of each file, but for those that are removed meanwhile."""
    for path in directory.glob(pattern):
        with suppress(FileNotFoundError):
            yield path.stat()


def measure(bench: Bench) -> Outcome:
    """Compact logs of 100 B and of 1 KB on both sides, in turn."""
    small = _clean_side_by_side(bench, 100)
    large = _clean_side_by_side(bench, 1000, LARGE_RECORDS, LARGE_KEYS)
    return _outcome(small, large)


def _clean_side_by_side(
    bench: Bench, record_bytes: int, records: int = RECORDS, keys: int = KEYS
) -> dict[str, list[Cleaned]]:
    """Compact in turn, once on each side in each round."""
    directory = bench.directory / f"of-{record_bytes}"
    directory.mkdir()
    values = read_records(write_random_records(directory / "records", record_bytes))
    if not bench.is_full:
        records, keys = records // 10, keys // 10
    found: dict[str, list[Cleaned]] = {"millrace": [], "kafka": []}
    with ExitStack() as stack:
        kafka = stack.enter_context(
            running_kafka(directory / "kafka", properties=f"log.cleaner.backoff.ms={BACKOFF_MS}")
        )
        millrace = stack.enter_context(
            running_millrace(directory / "millrace", storage=f"cleaner_backoff_ms = {BACKOFF_MS}")
        )
        sides: Mapping[str, Side] = {
            "millrace": MillraceSide(millrace=millrace, directory=directory / "millrace"),
            "kafka": KafkaSide(kafka=kafka, directory=directory / "kafka"),
        }
        for number in range(bench.rounds):
            for name in list(sides)[:: 1 if number % 2 else -1]:
                made = sides[name].clean(
                    cells(records, keys, values), records * (record_bytes + KEY_BYTES)
                )
                found[name].append(made)
                say(f"round {number + 1}/{bench.rounds} {record_bytes} B {name:9} {made}")
    return found


def _outcome(small: Mapping[str, list[Cleaned]], large: Mapping[str, list[Cleaned]]) -> Outcome:
    """Return the ratios for records of 100 B and of 1 KB."""

    def ratio(found: Mapping[str, list[Cleaned]]) -> float:
        pairs = zip(found["millrace"], found["kafka"], strict=True)
        return median(ours.mb_per_second / theirs.mb_per_second for ours, theirs in pairs)

    def detail(found: Mapping[str, list[Cleaned]]) -> dict[str, Any]:
        return {
            f"{name}_{what}": median(getattr(run, what) for run in runs)
            for name, runs in found.items()
            for what in ("mb_per_second", "seconds", "memory_mb", "extra_disk_mb")
        }

    return Outcome(
        values={"100 B over Kafka": ratio(small), "1 KB over Kafka": ratio(large)},
        detail={"100_b": detail(small), "1_kb": detail(large)},
    )
