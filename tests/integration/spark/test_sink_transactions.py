"""A micro-batch, and a batch, counts once or not at all, in whatever order its parts come.

The writers are called as Spark calls them, without Spark: so what only happens now and then there
is done here in order. A writer of a stream is another object in each process of Spark's.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from tests.integration.conftest import StartBroker
from tests.integration.running_broker import RunningBroker, wait_until
from tests.integration.spark.written import create, records

pytest.importorskip("pyspark", reason="needs pyspark: sh requirements/install.sh spark")

from pyspark import TaskContext
from pyspark.sql.types import StructType

from millrace.client import (
    ConnectionFailedError,
    MessageTooLargeError,
    MillraceError,
    ProducerFencedError,
    SyncAdmin,
    SyncProducer,
    TransactionAbortedError,
    VersionConflictError,
)
from millrace.spark.cluster.worker_clients import IdleClient
from millrace.spark.errors import IncompleteWriteError, InvalidRowError
from millrace.spark.sink import transactions, writer
from millrace.spark.sink.transactions import Written
from millrace.spark.sink.writer import (
    BatchSink,
    StreamSink,
    make_batch_sink,
    make_stream_sink,
    open_producer,
)

LEASE_MS = 4_000
"""Longer than a pause of the machine between two renewals."""
SCHEMA = StructType().add("value", "string").add("partition", "integer").add("topic", "string")


def rows(*values: str, partition: int = 0, topic: str = "") -> Iterator[pa.RecordBatch]:
    """Yield one Arrow batch for each value."""
    for value in values:
        yield pa.RecordBatch.from_pydict(
            {"value": [value], "partition": pa.array([partition], pa.int32()), "topic": [topic]}
        )


class Run:
    """One run of a query, and the processes of Spark that it has."""

    def __init__(self, query: "Query", run_id: str) -> None:
        self._query = query
        self._told = {"spark.jobGroup.id": run_id, "sql.streaming.queryId": query.query_id}

    def task(self, batch: int, rows: Iterator[pa.RecordBatch]) -> Written:
        """Run one attempt of a task, in a process of its own."""
        with self.told_to_tasks(batch):
            return self._query.sink().write(rows)

    @contextmanager
    def told_to_tasks(self, batch: int) -> Iterator[None]:
        told = {**self._told, "streaming.sql.batchId": str(batch)}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TaskContext, "get", staticmethod(lambda: Task(told)))
            yield

    def commit(self, batch: int, *messages: Written | None) -> None:
        self._query.sink().commit(messages, batch)

    def abort(self, batch: int, *messages: Written | None) -> None:
        self._query.sink().abort(messages, batch)

    def write(self, batch: int, *values: str) -> None:
        """Write a micro-batch with one task."""
        self.commit(batch, self.task(batch, rows(*values)))


class Task:
    def __init__(self, told: dict[str, str]) -> None:
        self._told = told

    def getLocalProperty(self, name: str) -> str | None:  # Spark's.
        return self._told.get(name)

    def partitionId(self) -> int:  # Spark's.
        return 0


class Query:
    """A query that writes to a topic of its own."""

    def __init__(self, broker: RunningBroker, topic: str) -> None:
        self.broker, self.topic = broker, topic
        self.query_id, self.checkpoint = f"query of {topic}"[:80], "/checkpoint"
        self.options: dict[str, str] = {}
        self.rows_name_topics = False
        create(broker, topic, partitions=2)

    def sink(self) -> StreamSink:
        given = {
            "bootstrap.servers": self.broker.address,
            "checkpointlocation": self.checkpoint,
            **({} if self.rows_name_topics else {"topic": self.topic}),
            **self.options,
        }
        return make_stream_sink(given, SCHEMA)

    def run(self, run_id: str = "run 1") -> Run:
        return Run(self, run_id)

    def values(self) -> list[str]:
        return sorted((record.value or b"").decode() for record in records(self.broker, self.topic))


@pytest.fixture
def query(shared_broker: RunningBroker, topic_name: str) -> Iterator[Query]:
    yield Query(shared_broker, topic_name)
    close_idle()


def close_idle() -> None:
    """End what the processes of Spark keep for their next task."""
    writer._idle_producer.close()
    writer._idle_admin.close()


def test_what_a_task_wrote_before_it_was_tried_again_never_counts(query: Query) -> None:
    run = query.run()

    def failing() -> Iterator[pa.RecordBatch]:
        yield from rows("a", "b")
        raise OSError("the executor is lost")

    with pytest.raises(OSError, match="executor"):
        run.task(0, failing())
    other = run.task(0, rows("c", partition=1))
    again = run.task(0, rows("b", "a"))
    run.commit(0, other, again)
    assert query.values() == ["a", "b", "c"]


def test_of_two_attempts_of_a_task_one_counts(query: Query) -> None:
    """As with speculative execution: both have ended, and Spark has taken one message."""
    run = query.run()
    slow, fast = run.task(0, rows("a", "b")), run.task(0, rows("b", "a"))
    assert slow.shared == fast.shared
    run.commit(0, fast)
    assert query.values() == ["a", "b"]
    late = run.task(0, rows("a", "b"))
    assert (late.rows, late.participant) == (0, None), "it is done"


def test_a_micro_batch_that_was_committed_is_skipped_by_each_task(query: Query) -> None:
    query.run().write(0, "a")
    again = query.run("run 2")

    unread = rows("a")
    messages = [again.task(0, unread) for _ in range(2)]
    assert next(unread, None) is not None
    again.commit(0, *messages)
    again.write(1, "b")
    assert query.values() == ["a", "b"]


def test_empty_tasks_take_no_part_and_an_empty_micro_batch_is_done(query: Query) -> None:
    run = query.run()
    empty, full = run.task(0, rows()), run.task(0, rows("a"))
    assert empty.participant is None
    assert empty.shared == full.shared
    run.commit(0, empty, full)
    run.commit(1, run.task(1, rows()))
    again = query.run("run 2")
    assert again.task(1, rows("b")).rows == 0
    assert query.values() == ["a"]


def test_a_decision_is_not_reversed_by_spark_which_aborts_after_a_failed_commit(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = query.run()
    message = run.task(0, rows("a"))
    commit = transactions.commit

    def and_lose_the_answer(*arguments: Any) -> None:
        commit(*arguments)
        raise ConnectionFailedError("the answer is lost")

    monkeypatch.setattr(transactions, "commit", and_lose_the_answer)
    with pytest.raises(ConnectionFailedError):
        run.commit(0, message)
    run.abort(0, message)
    monkeypatch.undo()
    assert query.values() == ["a"]
    query.run("run 2").write(0, "a")
    assert query.values() == ["a"]


def test_a_micro_batch_whose_commit_did_not_arrive_is_written_again(query: Query) -> None:
    run = query.run()
    message = run.task(0, rows("a"))
    run.abort(0, message)
    with pytest.raises(TransactionAbortedError):
        run.commit(0, message)  # It arrives late.
    query.run("run 2").write(0, "a")
    assert query.values() == ["a"]


def test_a_driver_that_slept_is_refused_when_it_wakes(query: Query) -> None:
    asleep = query.run("run 1")
    asleep.write(0, "a")
    message = asleep.task(1, rows("b"))
    again = query.run("run 2")
    of_again = again.task(1, rows("b"))
    for late in (
        lambda: asleep.commit(1, message),
        lambda: asleep.task(1, rows("x")),
        lambda: asleep.task(2, rows("x")),
    ):
        with pytest.raises(ProducerFencedError, match="another run of the application"):
            late()
    asleep.abort(1, message)
    again.commit(1, of_again)
    with pytest.raises(ProducerFencedError):
        asleep.task(2, rows("x"))
    assert query.values() == ["a", "b"]


def test_a_driver_that_was_killed_before_its_commit_leaves_nothing(query: Query) -> None:
    query.run("run 1").task(0, rows("a", "b"))
    query.run("run 2").write(0, "b", "a")
    assert query.values() == ["a", "b"]


def test_a_late_task_that_opens_the_micro_batch_once_more_is_harmless(query: Query) -> None:
    run = query.run()
    run.abort(0, run.task(0, rows("a")))
    late = run.task(0, rows("a"))
    assert late.shared is not None
    query.run("run 2").write(0, "a")
    assert query.values() == ["a"]


def test_tasks_that_have_not_written_the_same_transaction_are_not_committed(query: Query) -> None:
    run = query.run()
    first = run.task(0, rows("a"))
    with pytest.raises(IncompleteWriteError, match="1 of 2 tasks have not told what they wrote"):
        run.commit(0, first, None)
    run.abort(0, first, None)
    second = run.task(0, rows("b"))
    with pytest.raises(IncompleteWriteError, match="have written several transactions"):
        run.commit(0, first, second)
    run.abort(0, first, second)
    assert query.values() == []


@pytest.mark.parametrize("changed", ["checkpoint", "query", "batch"])
def test_another_origin_and_an_earlier_micro_batch_are_refused_until_they_are_forgotten(
    query: Query, changed: str
) -> None:
    query.options["applicationId"] = query.topic[:100]
    run = query.run()
    for batch in range(3):
        run.write(batch, f"a{batch}")
    batch = 3
    match changed:
        case "checkpoint":
            query.checkpoint = "/copy"
        case "query":
            query.query_id = "another"
        case "batch":
            batch = 0
    other = query.run("run 2")
    application = f"{query.topic[:100]}@{query.topic}"
    with pytest.raises(VersionConflictError, match=f"forget-version {application}"):
        other.task(batch, rows("b"))
    with SyncAdmin(query.broker.address) as admin:

        def is_over() -> bool:
            found = admin.describe_transaction(application)
            return found is not None and found.state == "complete_commit"

        wait_until(is_over, "the last transaction is over everywhere", 20)
        admin.forget_version(application)
    other.write(batch, "b")
    assert query.values() == ["a0", "a1", "a2", "b"]


def test_rows_that_cannot_be_written_leave_nothing(query: Query) -> None:
    run = query.run()
    good = run.task(0, rows("a"))
    with pytest.raises(InvalidRowError, match="names partition 7"):
        run.task(0, iter([*rows("b"), *rows("c", partition=7)]))
    run.abort(0, good, None)
    assert query.values() == []


def test_a_row_that_a_broker_refuses_is_named_though_others_are_sent_after_it(
    query: Query,
) -> None:
    query.options = {"bufferBytes": "1MiB", "batchBytes": "100KiB"}
    limit = 1 << 16
    with SyncAdmin(query.broker.address) as admin:
        admin.alter_topic(query.topic, set_config={"max.message.bytes": str(limit)})

    def many() -> Iterator[pa.RecordBatch]:
        yield from rows("a", "b" * 2 * limit)
        yield from rows(*(["c" * (limit // 2)] * 500))

    run = query.run()
    with pytest.raises(MessageTooLargeError, match=f"^row 1 of task 0 for topic '{query.topic}'"):
        run.task(0, many())
    run.abort(0, None)
    query.run("run 2").write(0, "d")  # Readers wait for the first run until another one begins.
    assert query.values() == ["d"]


def test_a_task_says_it_when_spark_does_not_tell_its_micro_batch(query: Query) -> None:
    with pytest.raises(IncompleteWriteError, match=r"no spark\.jobGroup\.id.*delivery=at-least"):
        query.sink().write(rows("a"))


def test_a_micro_batch_of_which_no_task_has_written_holds_no_reader_back(
    query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver does not hear which transaction its tasks have opened. The next run ends it."""

    def failing() -> Iterator[pa.RecordBatch]:
        yield from rows()
        raise OSError("the rows cannot be computed")

    run = query.run()
    for _ in range(2):
        with pytest.raises(OSError, match="computed"):
            run.task(0, failing())
    run.abort(0, None, None)
    told = [record.getMessage() for record in caplog.records if record.name == writer.__name__]
    assert told == [
        "micro-batch 0 failed before a task of it had ended: nothing of it counts. Readers of what "
        "its tasks have written wait until the query begins again, or for transactions.lease_ms"
    ]
    transactional_id = f"{query.query_id}@{query.topic}"
    with SyncAdmin(query.broker.address) as admin:
        found = admin.describe_transaction(transactional_id)
        assert found is not None
        assert (found.state, found.participants, found.parts) == ("ongoing", (), ())
        before = found.number
        query.run("run 2").write(0, "a")
        found = admin.describe_transaction(transactional_id)
        assert found is not None
        assert (found.number, found.ended_committed) == (before + 1, True)
    assert query.values() == ["a"]


def test_a_driver_that_sleeps_for_longer_than_the_lease_commits_nothing(
    start_broker: StartBroker,
) -> None:
    """Its tasks' processes have ended, so nobody renews the lease; readers wait no longer."""
    query = Query(start_broker({"transactions.lease_ms": LEASE_MS}), "orders")
    run = query.run()
    message = run.task(0, rows("a"))
    close_idle()
    with SyncAdmin(query.broker.address) as admin:
        wait_until(
            lambda: (
                admin.list_offsets("orders")
                == admin.list_offsets("orders", isolation="read_uncommitted")
            ),
            "the lease runs out",
            20,
        )
    with pytest.raises(TransactionAbortedError, match="nobody renewed its lease"):
        run.commit(0, message)
    run.abort(0, message)
    run.write(0, "a")
    assert query.values() == ["a"]
    close_idle()


def test_a_task_that_waits_for_its_first_row_keeps_the_transaction_open(
    start_broker: StartBroker,
) -> None:
    """The others have ended long ago, and Spark has ended their idle processes."""
    query = Query(start_broker({"transactions.lease_ms": LEASE_MS}), "orders")
    run = query.run()
    first = run.task(0, rows("a"))
    close_idle()

    def late() -> Iterator[pa.RecordBatch]:
        time.sleep(2 * LEASE_MS / 1000)
        yield from rows("b")

    run.commit(0, first, run.task(0, late()))
    assert query.values() == ["a", "b"]
    close_idle()


def test_a_topic_that_is_deleted_under_the_query_is_told_and_nothing_counts_elsewhere(
    query: Query,
) -> None:
    other = f"{query.topic[:100]}-other"
    create(query.broker, other)
    query.rows_name_topics, query.options["deliveryTimeoutMs"] = True, "5s"
    run = query.run()
    run.commit(0, run.task(0, rows("a", topic=other)), run.task(0, rows("a", topic=query.topic)))
    with SyncAdmin(query.broker.address) as admin:
        admin.delete_topic(other)
    there = run.task(1, rows("b", topic=query.topic))
    with pytest.raises(MillraceError, match=other):
        run.task(1, rows("b", topic=other))
    run.abort(1, there, None)
    assert query.values() == ["a"]


def test_without_a_broker_a_task_and_a_commit_end_with_an_error(start_broker: StartBroker) -> None:
    query = Query(start_broker(), "orders")
    query.options["requestTimeoutMs"] = "1500"
    run = query.run()
    message = run.task(0, rows("a"))
    query.broker.kill()
    with pytest.raises(MillraceError):
        run.commit(0, message)
    run.abort(0, message)
    with pytest.raises(MillraceError):
        run.task(1, rows("b"))
    close_idle()
    query.broker.start()
    query.run("run 2").write(0, "a")
    assert query.values() == ["a"]
    close_idle()


class Batches:
    """Batches to one topic."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def sink(self, **options: str) -> BatchSink:
        query = self._query
        given = {"bootstrap.servers": query.broker.address, "topic": query.topic, **options}
        return make_batch_sink(given, SCHEMA, overwrite=False)

    def write(self, *values: str, **options: str) -> None:
        sink = self.sink(**options)
        sink.commit([sink.write(rows(*values))])


def test_a_batch_counts_as_a_whole_or_not_at_all(query: Query) -> None:
    batches = Batches(query)
    failed = batches.sink()
    message = failed.write(rows("a"))
    failed.abort([message, None])
    batches.write("b", "c")
    batches.write("b", "c")
    unended = batches.sink()
    with pytest.raises(IncompleteWriteError):
        unended.commit([unended.write(rows("d")), None])
    unended.abort([None])
    assert query.values() == ["b", "b", "c", "c"]


def test_batches_of_several_transactions_share_a_producer(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has its own transactional id; a producer and its connections take tens of ms."""
    opened = []

    def counted(kind: writer._ProducerKind) -> SyncProducer:
        opened.append(kind)
        return open_producer(kind.options, is_transactional=kind.is_transactional)

    monkeypatch.setattr(writer, "_idle_producer", IdleClient(counted))
    batches = Batches(query)
    batches.write("a")
    batches.write("b")
    batches.write("c", txnAppId="app", txnVersion="1")
    assert (query.values(), len(opened)) == (["a", "b", "c"], 1)


def test_a_version_of_an_application_is_written_once_to_each_target(query: Query) -> None:
    batches, application = Batches(query), query.topic[:100]
    for version in ("0", "0", "1", "1"):
        for target in ("one", "two"):
            batches.write(
                f"{version} {target}", txnAppId=application, txnVersion=version, txnTarget=target
            )
    assert query.values() == ["0 one", "0 two", "1 one", "1 two"]
    with pytest.raises(
        VersionConflictError, match="version 1 is committed, so version 0 is an old"
    ):
        batches.write("0", txnAppId=application, txnVersion="0", txnTarget="one")


def test_in_foreach_batch_a_version_is_of_its_query_and_of_the_run(query: Query) -> None:
    batches = Batches(query)
    version = {"txnAppId": query.topic[:100], "txnVersion": "0"}
    asleep, again = batches.sink(**version), batches.sink(**version)
    of_asleep = in_task(query.run("run 1"), asleep, rows("a"))
    of_again = in_task(query.run("run 2"), again, rows("a"))
    for late in (
        lambda: asleep.commit([of_asleep]),
        lambda: in_task(query.run("run 1"), batches.sink(**version), rows("x")),
    ):
        with pytest.raises(ProducerFencedError, match="another run of the application"):
            late()
    again.commit([of_again])
    query.query_id = "another"
    with pytest.raises(VersionConflictError, match="of query 'another'"):
        in_task(query.run("run 3"), batches.sink(**version), rows("x"))
    assert query.values() == ["a"]


def in_task(run: Run, sink: BatchSink, batch: Iterator[pa.RecordBatch]) -> Written:
    """Write a batch in a task of a call to `foreachBatch`."""
    with run.told_to_tasks(0):
        return sink.write(batch)


def test_of_two_writers_of_one_version_the_later_one_counts(query: Query) -> None:
    """The first one has stalled in its commit, which arrives when the second one has written."""
    batches = Batches(query)
    version = {"txnAppId": query.topic[:100], "txnVersion": "5"}
    stalled = batches.sink(**version)
    of_stalled = stalled.write(rows("a", "b"))
    again = batches.sink(**version)
    of_again = again.write(rows("b", "a"))
    with pytest.raises(ProducerFencedError):
        stalled.commit([of_stalled])
    stalled.abort([of_stalled])
    again.commit([of_again])
    with pytest.raises(ProducerFencedError):
        stalled.commit([of_stalled])
    assert query.values() == ["a", "b"]


def test_more_tasks_than_participants_are_refused_and_nothing_counts(
    start_broker: StartBroker,
) -> None:
    query = Query(start_broker({"transactions.participants_max": 2}), "orders")
    run = query.run()
    messages = [run.task(0, rows("a")) for _ in range(2)]
    with pytest.raises(Exception, match=r"transactions\.participants_max allows: write with fewer"):
        run.task(0, rows("a"))
    run.abort(0, *messages, None)
    assert query.values() == []
    close_idle()
