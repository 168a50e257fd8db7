"""Housekeeping of many partitions and disks: what is asked of them, how often, what is shown."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.broker.upkeep.housekeeping import Housekeeping
from millrace.core.broker_config import StorageConfig
from millrace.core.errors import (
    CorruptLogError,
    LogDirFailedError,
    MillraceError,
    StorageBusyError,
    StorageError,
    StorageFullError,
)
from millrace.core.ids import MonotonicMs, Offset, WallMs
from millrace.core.media import Media
from millrace.core.replica.replication.effects import Change
from millrace.core.replica.replication.events import Changed, Corrupt
from millrace.core.replica.replication.replica_moves import ReplicaMoves

MANY = 3000
KEPT = {"checkpoint", "empty_trash", "take_ballast", "scrub"}


class AppendThread:
    """Does what it is asked, at once, and counts."""

    def __init__(self) -> None:
        self.calls = 0
        self.failures: list[LogDirFailedError] = []

    async def call(self, job: Callable[..., Any], *args: Any) -> Any:
        self.calls += 1
        return job(*args)

    call_beside = call

    def fail(self, error: LogDirFailedError) -> None:
        self.failures.append(error)


class HangingThread:
    """Does nothing that it is asked for."""

    def call(self, job: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    call_beside = call


class ReadThreads:
    """Do what they are asked, at once, unless the disk of the log directory hangs."""

    def __init__(self, *, hanging: str = "") -> None:
        self.hanging = hanging

    def call(self, log_dir: str, job: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if log_dir != self.hanging:
            try:
                future.set_result(job(*args))
            except (StorageError, OSError) as error:
                future.set_exception(error)
        return future


class Log:
    """A log whose oldest segments are old."""

    def __init__(self, outcome: int | MillraceError = 0) -> None:
        self.outcome = outcome
        self.retention = self
        self.limits: list[Offset] = []
        self.expired = 0

    def notice_clock(self, now: WallMs) -> None:
        pass

    def expire_producers(self, seen_before: WallMs) -> int:
        self.expired += 1
        return 0

    def apply(self, now: WallMs, limit_offset: Offset) -> int:
        self.limits.append(limit_offset)
        if isinstance(self.outcome, MillraceError):
            raise self.outcome
        return self.outcome


class Held:
    """A partition, and who was told what."""

    def __init__(self, number: int, appender: AppendThread, log: Log, *, leads: bool) -> None:
        self.topic_partition = number
        self.appender = appender
        self.log = log
        self.replica = SimpleNamespace(leader=None, leads=leads, high_watermark=Offset(7))
        self.told = 0
        self.damage: list[CorruptLogError] = []

    def on_readers_concerned(self) -> None:
        self.told += 1

    def changed(self, change: Change) -> Changed:
        return Changed(change, Offset(0), Offset(0))


class Directory:
    """A log directory; `error` is what its disk says to everything."""

    def __init__(self, error: Exception | None = None, path: str = "/0") -> None:
        self.error = error
        self.path = path
        self.media = Media.HDD
        self.retired = self
        self.damaged: list[str] = []
        self.corrupt: dict[Any, CorruptLogError] = {}
        self.done: list[str] = []
        self.ballast = SimpleNamespace(take=lambda: self._do("take_ballast"))

    def checkpoint(self, now: MonotonicMs) -> None:
        self._do("checkpoint")

    def look_again_for_damaged(self) -> None:
        self._do("look_again_for_damaged")

    def empty_trash(self, now: WallMs) -> None:
        self._do("empty_trash")

    def scrub(self, max_bytes: int) -> None:
        self._do("scrub")

    def space(self) -> tuple[int, int]:
        self._do("space")
        return 7, 9

    def _do(self, what: str) -> None:
        if self.error is not None:
            raise self.error
        self.done.append(what)


class Partitions:
    """The partitions of one directory, beside others."""

    def __init__(self, held: list[Held], appender: AppendThread, *directories: Directory) -> None:
        self.directories = [
            SimpleNamespace(appender=appender, directory=directory, failure=None)
            for directory in directories or [Directory()]
        ]
        self.held = {partition.topic_partition: partition for partition in held}
        self.gone: set[int] = set()
        self.image = None
        self.replicas = SimpleNamespace(unopened=SimpleNamespace(errors=()))
        self.placement = SimpleNamespace(moves=ReplicaMoves(1))

    def __len__(self) -> int:
        return len(self.held)

    def all(self) -> list[Held]:
        return list(self.held.values())

    def on_disk(self, partition: Held, event: Changed | Corrupt) -> None:
        if isinstance(event, Corrupt):
            partition.damage.append(event.error)
        else:
            assert event.change is Change.ADVANCE_START
            partition.on_readers_concerned()

    def find(self, number: int) -> Held | None:
        return None if number in self.gone else self.held.get(number)


def keeping(
    partitions: Partitions, threads: ReadThreads | None = None, metrics: BrokerMetrics | None = None
) -> Housekeeping:
    """Housekeeping of these."""
    return Housekeeping(
        partitions,  # type: ignore[arg-type]
        threads or ReadThreads(),  # type: ignore[arg-type]
        StorageConfig(retention_check_interval_ms=10),
        metrics or BrokerMetrics(),
        is_controller=lambda: False,
        hanging_ms=1_200_000,
    )


def retain(partitions: Partitions) -> None:
    """Run the duty once."""
    opened: Any = partitions.directories[0]
    asyncio.run(keeping(partitions).retain(opened))


def run_until(duty: Callable[[], Awaitable[None]], *steps: Callable[[], bool | None]) -> None:
    """Run a duty until each step has been true in turn; what returns nothing is done once."""

    async def main() -> None:
        running = asyncio.ensure_future(duty())
        deadline = time.monotonic() + 60
        for step in steps:
            while step() is False:
                assert time.monotonic() < deadline
                assert not running.done()
                await asyncio.sleep(0.01)
        running.cancel()

    asyncio.run(main())


def test_thousands_of_logs_are_retained_in_few_calls() -> None:
    appender = AppendThread()
    held = [Held(number, appender, Log(), leads=number % 3 == 0) for number in range(MANY)]
    retain(Partitions(held, appender))
    assert appender.calls < MANY // 20
    assert all(partition.log.expired == 1 for partition in held)
    assert [partition.log.limits for partition in held] == [
        [7] if partition.replica.leads else [] for partition in held
    ]


def test_who_reads_hears_of_deleted_segments_and_one_bad_log_does_not_stop_the_others() -> None:
    appender = AppendThread()
    outcomes: list[int | MillraceError] = [
        0,
        CorruptLogError("damaged"),
        StorageFullError("full"),
        2,
    ]
    held = [Held(n, appender, Log(outcome), leads=True) for n, outcome in enumerate(outcomes)]
    retain(Partitions(held, appender))
    assert [partition.told for partition in held] == [0, 0, 0, 1]
    assert [len(partition.damage) for partition in held] == [0, 1, 0, 0]


def test_a_log_that_lacks_a_descriptor_does_not_hide_what_became_of_the_others() -> None:
    appender = AppendThread()
    outcomes: list[int | MillraceError] = [2, StorageBusyError("too many open files"), 1]
    held = [Held(n, appender, Log(outcome), leads=True) for n, outcome in enumerate(outcomes)]
    retain(Partitions(held, appender))
    assert [partition.told for partition in held] == [1, 0, 1]


def test_a_partition_that_is_gone_meanwhile_is_left_alone() -> None:
    appender = AppendThread()
    held = [Held(number, appender, Log(), leads=True) for number in range(3)]
    partitions = Partitions(held, appender)
    partitions.gone = {1}
    retain(partitions)
    assert [partition.log.expired for partition in held] == [1, 0, 1]


def test_a_log_that_moves_to_another_directory_meanwhile_is_left_to_that_one() -> None:
    class Moving(AppendThread):
        async def call(self, job: Callable[..., Any], *args: Any) -> Any:
            held[-1].appender = target
            return await super().call(job, *args)

    appender, target = Moving(), AppendThread()
    held = [Held(number, appender, Log(), leads=True) for number in range(300)]
    retain(Partitions(held, appender))
    assert [partition.log.expired for partition in held] == [1] * 299 + [0]
    assert held[-1].log.limits == []


@pytest.mark.parametrize("job", ["scrub", "empty_trash"])
def test_a_disk_that_fails_under_a_thread_that_reads_fails_its_directory(job: str) -> None:
    class Failing(Directory):
        def _do(self, what: str) -> None:
            if what == job:
                raise error

    async def keep() -> None:
        with pytest.raises(LogDirFailedError):
            await (housekeeping.scrub if job == "scrub" else housekeeping.retain)(opened)

    appender, error = AppendThread(), LogDirFailedError("it refused")
    partitions = Partitions([], appender, Failing())
    housekeeping, opened = keeping(partitions), cast("Any", partitions.directories[0])
    asyncio.run(keep())
    assert appender.failures == [error]


def test_appends_and_flushes_do_not_wait_until_the_files_of_a_deleted_topic_are_gone() -> None:
    class Threads(AppendThread):
        async def call(self, job: Callable[..., Any], *args: Any) -> Any:
            jobs.append(job)
            return await super().call(job, *args)

        call_beside = call

    jobs: list[Callable[..., Any]] = []
    directory = Directory()
    retain(Partitions([], Threads(), directory))
    assert "empty_trash" in directory.done
    assert directory.empty_trash not in jobs


@pytest.mark.parametrize("error", [StorageFullError("full"), LogDirFailedError("failed")])
def test_a_disk_that_refuses_does_not_keep_the_others_from_being_kept_in_order(
    error: StorageError,
) -> None:
    directories = [Directory(error), Directory()]
    run_until(
        keeping(Partitions([], AppendThread(), *directories)).run,
        lambda: set(directories[1].done) >= KEPT,
    )


def test_a_disk_that_hangs_does_not_keep_the_others_from_being_kept_in_order() -> None:
    sound = Directory(path="/1")
    partitions = Partitions([], AppendThread(), Directory(), sound)
    partitions.directories[0].appender = HangingThread()
    run_until(
        keeping(partitions, ReadThreads(hanging="/0")).run,
        lambda: set(sound.done) >= KEPT and sound.done.count("checkpoint") > 1,
    )


def test_a_disk_that_hangs_does_not_freeze_what_is_shown() -> None:
    metrics = BrokerMetrics()
    partitions = Partitions([], AppendThread(), Directory(), Directory(path="/1"))

    def shown(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"millrace_{name}", labels)

    def fail_one() -> None:
        partitions.directories[1].failure = LogDirFailedError("failed")

    run_until(
        keeping(partitions, ReadThreads(hanging="/0"), metrics).observe,
        lambda: (
            shown("log_dir_free_bytes", log_dir="/1", media="hdd") == 7
            and shown("log_dir_size_bytes", log_dir="/1", media="hdd") == 9
            and shown("log_dir_free_bytes", log_dir="/0", media="hdd") is None
        ),
        fail_one,
        lambda: shown("offline_log_dirs") == 1,
    )


def test_a_disk_that_cannot_be_asked_any_more_is_not_taken_for_a_full_one() -> None:
    metrics = BrokerMetrics()
    directory = Directory()
    partitions = Partitions([], AppendThread(), directory)
    labels = {"log_dir": "/0", "media": "hdd"}

    def free() -> float | None:
        return metrics.registry.get_sample_value("millrace_log_dir_free_bytes", labels)

    def fail() -> None:
        directory.error = OSError("input/output error")

    run_until(
        keeping(partitions, metrics=metrics).observe,
        lambda: free() == 7,
        fail,
        lambda: free() is None,
    )
