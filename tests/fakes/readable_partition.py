"""Partitions to be read whose disk answers when the test says so."""

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from millrace.core.ids import LeaderEpoch, Offset, ProducerId, TopicId, TopicPartition
from millrace.core.records.markers import AbortedTransaction

TOPIC = TopicId(b"t" * 16)
EPOCH = LeaderEpoch(0)


@dataclass
class Plan:
    length: int
    end_offset: Offset
    log_dir = "/log"

    @property
    def segment(self) -> "Plan":
        return self


class Partition:
    """A partition of batches of ten bytes and one record."""

    def __init__(self, *, is_cold: bool) -> None:
        self.topic = "topic"
        self.topic_partition = TopicPartition(TOPIC, 0)
        self.leader = SimpleNamespace(
            high_watermark=0,
            last_stable_offset=0,
            check_epoch=lambda epoch: None,
            check_readable=lambda offset, start: None,
            diverging=lambda offset, epoch, epochs: None,
            diverging_follower=lambda life, offset, epoch, epochs, start: None,
            maximal_isr=(),
            written_offset=0,
            compacted_offset=0,
        )
        self.size_bytes = self.fetched_bytes = 0
        self.log = self.reader = self
        self.log_dir_of = lambda offset: "/log"
        self.log_start_offset = 0
        self.leader_epoch = EPOCH
        self.leader_epochs = SimpleNamespace(epoch_of=lambda offset: EPOCH)
        self._is_cold = is_cold
        self.is_index_cold = False
        self.undecided = 0
        """Records before the high watermark whose transaction is open."""
        self._readers: set[tuple[Any, int]] = set()

    @property
    def replica(self) -> Any:
        return SimpleNamespace(
            role=self.leader,
            leader=self.leader,
            require_leader=lambda: self.leader,
            follower=None,
            high_watermark=self.leader.high_watermark,
            last_stable_offset=self.leader.high_watermark - self.undecided,
            may_yet_lead=lambda epoch: epoch > self.leader_epoch,
        )

    def plan_read(self, offset: int, size: int, end: int, *, may_block: bool = True) -> Plan:
        if self._is_cold and not may_block:
            raise BlockingIOError
        return Plan((end - offset) * 10, Offset(end))

    def aborted(self, start: int, end: int, *, may_block: bool = True) -> list[AbortedTransaction]:
        """Every transaction has one record."""
        if self.is_index_cold and not may_block:
            raise BlockingIOError
        return [
            AbortedTransaction(ProducerId(7), Offset(offset), Offset(offset))
            for offset in range(start, end)
        ]

    def follow(self, reader: Any, handle: int, *, to_log_end: bool = False) -> None:
        self._readers.add((reader, handle))

    def leave(self, reader: Any, handle: int) -> None:
        self._readers.discard((reader, handle))

    @property
    def is_followed(self) -> bool:
        """Whether anybody waits for news."""
        return bool(self._readers)

    def advance(self) -> None:
        """Append a record."""
        self.leader.high_watermark += 1
        self.concern()

    def decide(self) -> None:
        """Let all transactions end."""
        self.undecided = 0
        self.concern()

    def concern(self) -> None:
        """Have the readers look."""
        for reader, handle in list(self._readers):
            reader.on_advanced(handle)


class Disk:
    """Reads that may not block wait here until they are let go."""

    def __init__(self) -> None:
        self.waiting: asyncio.Queue[tuple[asyncio.Future[Any], Callable[[], Any]]] = asyncio.Queue()

    def of(self, owner: Hashable) -> "Disk":
        return self

    def call(self, log_dir: str, job: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.waiting.put_nowait((future, lambda: job(*args)))
        return future

    def read_cached(self, reads: list[tuple[Any, Plan]]) -> list[bytes]:
        return [bytes(plan.length) for _, plan in reads]
