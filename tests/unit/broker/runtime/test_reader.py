"""What is read from the page cache, by whom it is asked for in turn."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from millrace.broker.runtime.mailbox import Mailbox
from millrace.broker.runtime.reader import LogReader
from millrace.broker.storage.segment import ReadPlan
from millrace.core.ids import Offset


@dataclass
class Log:
    """A log whose bytes are their position; `cold` plans are not in the page cache."""

    reads: list[tuple[int, int]] = field(default_factory=list)
    cold: bool = False

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


async def _asked() -> None:
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
        assert asked.read(other, (1, 3)) is None  # The buffer may be half of anything.
        asked.log.cold = False
        assert asked.read(one, (0, 11)) is None  # It is larger than the buffer.
    finally:
        await asyncio.to_thread(asked.reader.close)


def test_what_was_read_last_is_not_read_again() -> None:
    asyncio.run(_asked())
