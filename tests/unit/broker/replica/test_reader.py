"""What is read from the page cache, by whom it is asked for in turn."""

import asyncio
import threading
from dataclasses import dataclass, field
from typing import Any

from millrace.broker.replica.reader import LogReader, Read
from millrace.broker.storage.segment import ReadPlan
from millrace.core.ids import Offset
from millrace.runtime.mailbox import Mailbox


@dataclass
class Log:
    """A log whose bytes are their position; `cold` plans are not in the page cache."""

    reads: list[tuple[int, int]] = field(default_factory=list)
    cold: bool = False

    @property
    def reader(self) -> "Log":
        return self

    def read_cached(self, plan: ReadPlan, buffer: memoryview) -> int:
        if self.cold:
            return -1
        self.reads.append((plan.position, plan.length))
        buffer[:] = bytes(range(plan.position, plan.position + plan.length))
        return plan.length


class Asked:
    """A reader of a log."""

    def __init__(self) -> None:
        self.log = Log()
        self.reader = LogReader(Mailbox(asyncio.get_running_loop()), threads=1, buffer_bytes=10)

    def read(self, segment: object, *places: tuple[int, int]) -> list[bytes] | None:
        """Read so many bytes at each of these places."""
        log: Any = self.log
        found: Any = segment
        reads = [(log, ReadPlan(found, at, size, Offset(0))) for at, size in places]
        views = self.reader.read_cached(reads)
        return None if views is None else [bytes(view) for view in views]  # type: ignore[arg-type]


async def test_what_was_read_last_is_not_read_again() -> None:
    asked = Asked()
    one, other = object(), object()
    try:
        first = asked.read(one, (0, 3), (5, 2))
        assert first == [bytes((0, 1, 2)), bytes((5, 6))]
        assert asked.read(one, (0, 3), (5, 2)) == first
        assert len(asked.log.reads) == 2  # They were still there.
        assert asked.read(one, (0, 3)) == [bytes((0, 1, 2))]
        assert asked.read(one, (1, 3)) == [bytes((1, 2, 3))]
        assert asked.read(other, (1, 3)) == [bytes((1, 2, 3))]  # As after the log was cut.
        assert len(asked.log.reads) == 5
        asked.log.cold = True
        assert asked.read(one, (4, 3)) is None
        assert asked.read(other, (1, 3)) == [bytes((1, 2, 3))]  # Nothing was written over it.
        asked.log.cold = False
        assert asked.read(one, (0, 11)) is None  # It is larger than the buffer.
    finally:
        await asyncio.to_thread(asked.reader.close)


class Disk:
    """The disk of a log directory; reads of its logs wait until it answers."""

    def __init__(self, log_dir: str, content: bytes) -> None:
        self.log_dir = log_dir
        self.answers = threading.Event()
        self._content = content
        self.reader = self

    def read(self, plan: ReadPlan) -> bytes:
        assert self.answers.wait(60)
        return self._content[plan.position : plan.position + plan.length]


async def test_a_disk_that_hangs_keeps_no_reads_of_another_waiting() -> None:
    first, second = Disk("/0", b"abcdef"), Disk("/1", b"123456")
    reader = LogReader(Mailbox(asyncio.get_running_loop()), threads=2, buffer_bytes=10)

    def read(disk: Any, at: int) -> Read:
        # The disk stands for the log and for its segment: they may lie on two disks.
        return disk, ReadPlan(disk, at, 1, Offset(0))

    try:
        second.answers.set()
        hanging = [asyncio.create_task(reader.read([read(first, 0)])) for _ in range(5)]
        for _ in range(5):
            assert await asyncio.wait_for(reader.read([read(second, 1)]), 60) == [b"2"]
        assert not any(task.done() for task in hanging)
        first.answers.set()
        assert await asyncio.gather(*hanging) == [[b"a"]] * 5
        mixed = [read(first, 3), read(second, 4), read(first, 5), read(second, 0)]
        assert await reader.read(mixed) == [b"d", b"5", b"f", b"1"]
        assert await reader.read([]) == []
    finally:
        first.answers.set()
        await asyncio.to_thread(reader.close)


async def test_readers_of_one_disk_take_turns_whatever_one_of_them_waits_for() -> None:
    disk: Any = Disk("/0", b"abcdef")
    reader = LogReader(Mailbox(asyncio.get_running_loop()), threads=1, buffer_bytes=10)
    ended: list[str] = []

    async def read(owner: str) -> None:
        await reader.of(owner).read([(disk, ReadPlan(disk, 0, 1, Offset(0)))])
        ended.append(owner)

    try:
        busy = [asyncio.create_task(read("busy")) for _ in range(20)]
        await asyncio.sleep(0)  # They have begun.
        other = asyncio.create_task(read("other"))
        await asyncio.sleep(0)
        disk.answers.set()
        await asyncio.gather(*busy, other)
        assert ended.index("other") <= 2
    finally:
        disk.answers.set()
        await asyncio.to_thread(reader.close)
