"""A program that reads a log with transactions: the consumer's machine, and a broker's answers."""

from typing import Protocol

from millrace.core.client.consumer.fetcher import Fetcher
from millrace.core.client.consumer.read_partition import Reset
from millrace.core.client.consumer.sessions import ChangeSession, FetchedPartition
from millrace.core.client.routing.router import Connect, Router
from millrace.core.ids import (
    BrokerId,
    Leader,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    TopicId,
    TopicPartition,
)
from millrace.core.records.batch import open_batch
from millrace.core.records.markers import AbortedTransaction

BROKER = BrokerId(1)
OTHER = TopicPartition(TopicId(b"u" * 16), 0)
WINDOW = 100_000


class ServedLog(Protocol):
    """What the broker's answers are made of: see `TransactionLog`."""

    @property
    def place(self) -> TopicPartition: ...
    @property
    def end_offset(self) -> Offset: ...
    @property
    def last_stable_offset(self) -> Offset: ...
    def read(self, offset: int, end_offset: int, batches_max: int) -> tuple[bytes, Offset]: ...
    def aborted(self, start: int, end: int) -> list[AbortedTransaction]: ...


class ReadingProgram:
    """A fetcher of two partitions, a broker that answers it, and what was handed out."""

    def __init__(
        self,
        log: ServedLog,
        start: int = 0,
        *,
        read_committed: bool = True,
        end: Offset | None = None,
    ) -> None:
        self.log, self.read_committed = log, read_committed
        self.now = 0
        router = Router(100, 1_000, 300_000, MonotonicMs(0))
        self.fetcher = Fetcher(Reset.EARLIEST, WINDOW, router, read_committed=read_committed)
        leader = Leader(BROKER, LeaderEpoch(9))
        self.fetcher.on_leaders({self.log.place: leader, OTHER: leader})
        self.fetcher.assign("t", self.log.place, Offset(start), end)
        self.fetcher.assign("u", OTHER, Offset(0))
        self.credit = 0
        self.handles: dict[TopicPartition, int] = {}
        self.fetch_offset = Offset(-1)
        """From where the broker sends next."""
        self.seen: list[tuple[int, bytes]] = []
        self.step()

    def step(self) -> None:
        """Let the fetcher do what is due, as the shell and the broker would."""
        self.now += 1_000
        for _ in range(3):
            for effect in self.fetcher.poll(MonotonicMs(self.now)):
                if isinstance(effect, Connect):
                    self.credit = 0
                    self.fetcher.on_connected(BROKER)
                elif isinstance(effect, ChangeSession):
                    self.credit += effect.credit_bytes
                    for added in effect.added:
                        self.handles[added.topic_partition] = added.handle
                        if added.topic_partition == self.log.place:
                            self.fetch_offset = added.fetch_offset

    @property
    def end_offset(self) -> Offset:
        return self.log.last_stable_offset if self.read_committed else self.log.end_offset

    def answer(self, batches_max: int, *, early: int = 0) -> bool:
        """Let the broker answer; return whether there was something to send.

        Args:
            batches_max: whole batches at the most.
            early: with `read_committed`, name the transactions of so many more offsets.
        """
        start = self.fetch_offset
        if start >= self.end_offset:
            return False
        data, end = self.log.read(start, self.end_offset, batches_max)
        news = FetchedPartition(
            self.handles[self.log.place],
            data,
            self.log.end_offset,
            self.log.last_stable_offset,
            Offset(0),
            start,
        )
        if self.read_committed:
            news.aborted = self.log.aborted(start, end + early)
        self.credit -= len(data)
        self.fetch_offset = end
        self.fetcher.on_fetched(BROKER, [news], MonotonicMs(self.now))
        return True

    def other_comes(self, offset: int, data: bytes) -> None:
        """Let the broker send a batch of the other partition."""
        end = Offset(offset + 1)
        news = FetchedPartition(self.handles[OTHER], data, end, end, Offset(0), Offset(offset))
        self.credit -= len(data)
        self.fetcher.on_fetched(BROKER, [news], MonotonicMs(self.now))

    def lose_connection(self) -> None:
        self.fetcher.on_disconnected(BROKER, "reset", MonotonicMs(self.now))
        self.step()
        self.step()

    def take(self, batches_max: int = 1_000_000) -> None:
        """Take batches, and open them."""
        for _ in range(batches_max):
            batch = self.fetcher.take()
            if batch is None:
                return
            assert not batch.is_passed
            if batch.topic == "u":
                continue
            rows = open_batch(self.log.place, batch.header, batch.data, 1 << 20)
            self.seen += [
                (offset, value)
                for offset, value in zip(
                    rows.column("offset").to_pylist(), rows.column("value").to_pylist(), strict=True
                )
                if offset >= batch.start_offset
            ]

    def read_all(self) -> None:
        while self.answer(3):
            self.take()
            self.step()

    @property
    def position(self) -> int | None:
        return self.fetcher.partition(self.log.place).known_position
