"""Transactions with participants, with real brokers: T19 to T24 as programs meet them."""

import pickle
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from tests.integration.conftest import StartBroker
from tests.integration.running_broker import RunningBroker, wait_until

from millrace.client import (
    AbortedError,
    ApplicationVersion,
    InvalidTransactionStateError,
    MillraceError,
    Participant,
    ProducerFencedError,
    SharedTransaction,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
    TransactionAbortedError,
    UnknownTopicOrPartitionError,
    VersionConflictError,
)

ID = "etl@orders"
TOPIC = "orders"
LEASE_MS = 3_000
"""Of transactions in the test about it. In the others it is a minute: a pause of the machine may be
longer than one that a test can wait for."""


class Stage:
    """A broker, an application, and processes of it."""

    def __init__(self, broker: RunningBroker, stack: ExitStack) -> None:
        self.broker, self._stack = broker, stack
        self.admin = stack.enter_context(SyncAdmin(broker.address))

    def open(self, number: int, run: str = "run", checkpoint: str = "here") -> SharedTransaction:
        """Open a transaction, as another process gets it."""
        version = ApplicationVersion(number, "query", checkpoint)
        shared = self.admin.open_shared_transaction(ID, run, version)
        copied: SharedTransaction = pickle.loads(pickle.dumps(shared))
        return copied

    def producer(self) -> SyncProducer:
        """Return the producer of another process."""
        producer = SyncProducer(self.broker.address, transactional_id=ID)
        return self._stack.enter_context(producer)

    def write(self, shared: SharedTransaction, *values: str) -> Participant:
        """Write a part, in a process of its own."""
        with SyncProducer(self.broker.address, transactional_id=ID) as producer:
            producer.join_transaction(shared)
            for value in values:
                producer.send(TOPIC, value.encode())
            return producer.leave_transaction()

    def write_again(self, producer: SyncProducer) -> None:
        """Let a producer join the version that was aborted, opened again, and commit that."""
        again = self.open(0)
        producer.join_transaction(again)
        producer.send(TOPIC, b"again")
        self.admin.commit_shared_transaction(again, [producer.leave_transaction()])

    def is_over(self) -> bool:
        """Whether all partitions know what was decided."""
        described = self.admin.describe_transaction(ID)
        return described is not None and described.state in ("complete_commit", "complete_abort")

    def is_decided(self) -> bool:
        """Whether no transaction is open in the topic, also none of another id."""
        every = self.admin.list_offsets(TOPIC, isolation="read_uncommitted")
        return self.admin.list_offsets(TOPIC) == every

    def committed(self) -> list[str]:
        """Return what readers see, sorted."""
        wait_until(self.is_over, "the transaction is over")
        wait_until(self.is_decided, "nobody waits for another one")
        found: list[str] = []
        with SyncConsumer(self.broker.address) as consumer:
            consumer.assign([TOPIC], start="beginning")
            while any(consumer.lag().values()):
                for batch in consumer.poll_batches(1000):
                    found += [value.decode() for value in batch.records["value"].to_pylist()]
        return sorted(found)


@pytest.fixture
def stage(start_broker: StartBroker, request: pytest.FixtureRequest) -> Iterator[Stage]:
    with ExitStack() as stack:
        broker = start_broker(getattr(request, "param", None))
        broker.create_topic(TOPIC, partitions=3)
        yield Stage(broker, stack)


def test_the_parts_that_are_named_count_and_no_others(stage: Stage) -> None:
    shared = stage.open(0)
    parts = [stage.write(shared, f"{number}") for number in range(3)]
    stage.write(shared, "tried again")
    late = stage.producer()
    late.join_transaction(shared)
    late.send(TOPIC, b"too slow").result()
    stage.admin.commit_shared_transaction(shared, parts)
    stage.admin.commit_shared_transaction(shared, parts)
    with pytest.raises(MillraceError):  # noqa: PT012  # Whichever of the two is refused.
        late.send(TOPIC, b"later").result()
        late.leave_transaction()
    with suppress(ProducerFencedError):  # Or it is told that the transaction is over.
        late.abort_transaction()
    assert stage.committed() == ["0", "1", "2"]
    assert stage.admin.find_hanging_transactions() == []


def test_a_version_is_written_once_whichever_run_asks(stage: Stage) -> None:
    shared = stage.open(0)
    stage.admin.commit_shared_transaction(shared, [stage.write(shared, "0")])
    again = stage.open(0, "another run")
    assert again.is_done
    with pytest.raises(ProducerFencedError):
        stage.open(1, "run")
    with pytest.raises(VersionConflictError, match="forget-version"):
        stage.open(1, "another run", "elsewhere")
    following = stage.open(1, "another run")
    stage.admin.commit_shared_transaction(following, [stage.write(following, "1")])
    assert stage.committed() == ["0", "1"]


def test_a_run_that_slept_cannot_commit_what_another_one_writes(stage: Stage) -> None:
    slept = stage.open(0, "slept")
    part = stage.write(slept, "slept")
    awake = stage.open(0, "awake")
    other = stage.write(awake, "awake")
    with pytest.raises(ProducerFencedError):
        stage.admin.commit_shared_transaction(slept, [part])
    with pytest.raises(InvalidTransactionStateError, match="has not joined"):
        stage.admin.commit_shared_transaction(awake, [part])
    with pytest.raises(ProducerFencedError):
        stage.write(slept, "late")
    stage.admin.commit_shared_transaction(awake, [other])
    with pytest.raises(InvalidTransactionStateError, match="a decision stands"):
        stage.admin.abort_shared_transaction(awake)
    assert stage.committed() == ["awake"]


def test_a_producer_writes_one_part_after_another(stage: Stage) -> None:
    producer = stage.producer()
    for number in range(4):
        shared = stage.open(number)
        producer.join_transaction(shared)
        with pytest.raises(InvalidTransactionStateError, match="leave_transaction"):
            producer.commit_transaction()
        producer.send_batch(TOPIC, [b"%d" % number])
        part = producer.leave_transaction()
        with pytest.raises(InvalidTransactionStateError):
            producer.send(TOPIC, b"between two transactions")
        if number == 2:
            stage.admin.abort_shared_transaction(shared)
        else:
            stage.admin.commit_shared_transaction(shared, [part])
    assert stage.committed() == ["0", "1", "3"]


@pytest.mark.parametrize("knows_marker", [False, True])
def test_a_producer_whose_transaction_was_aborted_joins_the_next_one(
    stage: Stage, *, knows_marker: bool
) -> None:
    """An abort is no fence, whether a leader or the coordinator tells it (T17)."""
    producer = stage.producer()
    first = stage.open(0)
    producer.join_transaction(first)
    producer.send(TOPIC, b"aborted", partition=0).result()
    stage.admin.abort_shared_transaction(first)
    wait_until(stage.is_over, "the partition knows it")
    with pytest.raises(AbortedError):  # noqa: PT012  # Whichever of the two is refused.
        producer.send(TOPIC, b"too late", partition=0 if knows_marker else 1)
        producer.leave_transaction()
    stage.write_again(producer)
    assert stage.committed() == ["again"]


def test_a_producer_whose_part_failed_joins_the_next_transaction(stage: Stage) -> None:
    producer = stage.producer()
    first = stage.open(0)
    producer.join_transaction(first)
    producer.send(TOPIC, b"kept back")
    producer.send("no-such-topic", b"fails")
    with pytest.raises(UnknownTopicOrPartitionError):
        producer.leave_transaction()
    stage.admin.abort_shared_transaction(first)
    stage.write_again(producer)
    assert stage.committed() == ["again"]


def test_a_producer_takes_part_in_transactions_of_any_id_and_has_its_own(stage: Stage) -> None:
    """So a process that writes for many applications keeps one producer and its connections."""
    producer = stage.producer()
    for application in ("first", "second", "first"):
        shared = stage.admin.open_shared_transaction(application, "run")
        producer.join_transaction(shared)
        producer.send_batch(TOPIC, [application.encode()])
        stage.admin.commit_shared_transaction(shared, [producer.leave_transaction()])
    for _ in range(2):
        producer.begin_transaction()
        producer.send(TOPIC, b"own")
        producer.commit_transaction()
    assert stage.committed() == ["first", "first", "own", "own", "second"]


@pytest.mark.parametrize(
    "stage", [{"transactions.lease_ms": LEASE_MS}], indirect=True, ids=["short"]
)
def test_a_lease_lasts_while_a_producer_is_there(stage: Stage) -> None:
    """T23: also when its part is written, and readers wait no longer than it for a lost one."""
    shared = stage.open(0)
    with SyncProducer(stage.broker.address, transactional_id=ID) as producer:
        producer.join_transaction(shared)
        producer.send(TOPIC, b"kept").result()
        part = producer.leave_transaction()
        longest = 2 * LEASE_MS / 1000
        with pytest.raises(AssertionError, match="not within"):
            wait_until(stage.is_over, "nobody aborts it", longest)
        stage.admin.commit_shared_transaction(shared, [part])
    lost = stage.open(1)
    stage.write(lost, "lost")
    wait_until(stage.is_over, "its lease runs out")
    with pytest.raises(TransactionAbortedError, match="lease"):
        stage.admin.commit_shared_transaction(lost, [])
    assert stage.committed() == ["kept"]


def test_what_was_written_and_decided_survives_kill_9(stage: Stage) -> None:
    shared = stage.open(0)
    part = stage.write(shared, "before")
    stage.broker.kill()
    stage.broker.start()
    stage.admin.commit_shared_transaction(shared, [part])
    stage.broker.kill()
    stage.broker.start()
    assert stage.open(0).is_done
    assert stage.committed() == ["before"]
