"""A coordinator of transactions at the head of its log, as a leader's shell keeps it."""

from typing import TypeVar

from millrace.core.coordinator.contract import Result
from millrace.core.coordinator.transactions.config import EPOCH_MAX, TransactionsConfig
from millrace.core.coordinator.transactions.machine import TransactionCoordinator
from millrace.core.coordinator.transactions.records import TransactionRecord, decode, encode
from millrace.core.coordinator.transactions.transaction import (
    Decision,
    Ending,
    Over,
    Producer,
    State,
    Transaction,
)
from millrace.core.ids import Offset, ProducerEpoch, ProducerId, TopicId, TopicPartition, WallMs
from millrace.core.records.markers import BUMPING

ResponseT = TypeVar("ResponseT")

ID = "default/copy"
NOW = WallMs(1_700_000_000_000)
MINUTE = 60_000
ORDERS = TopicId(b"orders".ljust(16))
CLICKS = TopicId(b"clicks".ljust(16))


def at(partition: int, topic_id: TopicId = ORDERS) -> TopicPartition:
    """Return a partition."""
    return TopicPartition(topic_id, partition)


def producer(producer_id: int, epoch: int) -> Producer:
    """Return a producer."""
    return Producer(ProducerId(producer_id), ProducerEpoch(epoch))


class TransactionsLog:
    """The log, its machine, and the time.

    Attributes:
        machine: has replayed all records.
        records: of the log, encoded.
        now: the time of the next request.
        epoch_max: the largest epoch, where a test names none; tests also run with one of 2.
    """

    epoch_max = EPOCH_MAX

    def __init__(self, *, slack_records: int = 1000, **config: int) -> None:
        self.config = TransactionsConfig(**{"epoch_max": self.epoch_max, **config})
        self.slack_records = slack_records
        self.records: list[tuple[bytes, bytes | None, WallMs]] = []
        self.start = 0
        self.now = NOW
        self.next_producer_id = 100
        self.machine = self.new_machine()

    def new_machine(self, start: Offset | None = None) -> TransactionCoordinator:
        """Return a machine for a log that starts at an offset; None: at the start of this one."""
        return TransactionCoordinator(
            self.config,
            Offset(self.start) if start is None else start,
            slack_records=self.slack_records,
        )

    @property
    def end(self) -> Offset:
        """The end of the log."""
        return Offset(self.start + len(self.records))

    def take(self, result: Result[TransactionRecord, ResponseT]) -> ResponseT:
        """Append and replay."""
        for record in result.records:
            self.machine.replay(record, self.end)
            self.records.append((*encode(record), record.timestamp))
        return result.response

    def advance_start(self) -> None:
        """Delete the records that the state does not need."""
        gone = self.machine.oldest_offset - self.start
        del self.records[:gone]
        self.start += gone

    def replayed(
        self, end: Offset | None = None, start: Offset | None = None
    ) -> TransactionCoordinator:
        """Return another machine that has replayed the log, from and up to an offset."""
        machine = self.new_machine(start)
        for offset, record in enumerate(self.records, self.start):
            if machine.next_offset <= offset and (end is None or offset < end):
                machine.replay(decode(*record), Offset(offset))
        return machine

    def next_id(self) -> ProducerId:
        """Return a producer id that nobody has had."""
        self.next_producer_id += 1
        return ProducerId(self.next_producer_id - 1)

    # --- Requests ----------------------------------------------------------------------------

    def init(
        self, expected: Producer | None = None, *, name: str = ID, timeout_ms: int = MINUTE
    ) -> Producer | None:
        """Begin with an id."""
        return self.take(
            self.machine.handle_init(name, timeout_ms, self.now, self.next_id, expected)
        )

    def begun(self, expected: Producer | None = None, *, name: str = ID) -> Producer:
        """Begin with an id that has no open transaction."""
        begun = self.init(expected, name=name)
        assert begun is not None
        return begun

    def join(
        self,
        writer: Producer,
        *partitions: TopicPartition,
        groups: tuple[str, ...] = (),
        name: str = ID,
        protocol: int = BUMPING,
        over: Over | None = None,
    ) -> None:
        """Take partitions and groups into the transaction of a producer."""
        self.take(
            self.machine.handle_join(
                name, writer, partitions, groups, self.now, protocol=protocol, over=over
            )
        )

    def end_with(
        self,
        writer: Producer,
        *,
        is_commit: bool,
        name: str = ID,
        protocol: int = BUMPING,
    ) -> Producer:
        """Decide a transaction."""
        return self.take(
            self.machine.handle_end(
                name, writer, self.now, self.next_id, is_commit=is_commit, protocol=protocol
            )
        )

    def commit(self, writer: Producer, *, name: str = ID, protocol: int = BUMPING) -> Producer:
        """Commit."""
        return self.end_with(writer, is_commit=True, name=name, protocol=protocol)

    def abort(self, writer: Producer, *, name: str = ID, protocol: int = BUMPING) -> Producer:
        """Abort."""
        return self.end_with(writer, is_commit=False, name=name, protocol=protocol)

    def expire(self, later_ms: int = 0) -> None:
        """Look at all ids, so much later."""
        self.now = WallMs(self.now + later_ms)
        records = self.machine.ids_after("", 1000)
        overdue = [
            (record.transactional_id, found)
            for record in records
            if (found := record.transaction) is not None
            and found.state is State.ONGOING
            and self.now - found.began_at > found.timeout_ms
        ]
        self.take(self.machine.handle_time_out(overdue, self.now))
        unused = self.machine.unused(self.now)
        self.take(self.machine.handle_expire(unused, self.now))

    def complete(self, *deleted: TopicPartition, name: str = ID) -> Decision:
        """Note that all partitions have the marker; return the decision."""
        decision = self.machine.decisions(name)[0]
        over = Over(decision.decided_at, deleted)
        self.take(self.machine.handle_complete({name: over}, self.now))
        return decision

    # --- What is known -----------------------------------------------------------------------

    def transaction(self, name: str = ID) -> Transaction:
        """Return what is known of an id."""
        transaction = self.machine.get(name).transaction
        assert transaction is not None
        return transaction

    def state(self) -> State:
        """What has become of the transaction."""
        return self.transaction().state

    def ending(self) -> Ending | None:
        """Who ended the last one."""
        ended = self.transaction().ended
        return None if ended is None else ended.ending
