"""Which transaction a task opens, and what the driver commits of what tasks have told."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: sh requirements/install.sh spark")

from pyspark import TaskContext

from millrace.client import (
    ApplicationVersion,
    ConnectionFailedError,
    Participant,
    SharedTransaction,
    TransactionalIdAuthorizationFailedError,
)
from millrace.spark.errors import IncompleteWriteError
from millrace.spark.options.option import Use
from millrace.spark.options.sink_options import parse_sink_options
from millrace.spark.sink import transactions
from millrace.spark.sink.transactions import Written

LEAST = {"bootstrap.servers": "nowhere:1", "topic": "clicks"}
STREAM = {
    "spark.jobGroup.id": "run",
    "sql.streaming.queryId": "query",
    "streaming.sql.batchId": "7",
}


class Admin:
    """Opens the transaction 1, and answers with what it was given."""

    def __init__(self, *states: str, error: Exception | None = None) -> None:
        self.opened: list[tuple[Any, ...]] = []
        self.committed: list[Participant] = []
        self.asked = 0
        self._states, self._error = states, error

    def open_shared_transaction(
        self,
        transactional_id: str,
        run_id: str,
        version: ApplicationVersion | None = None,
        *,
        may_attach: bool = False,
    ) -> SharedTransaction:
        self.opened.append((transactional_id, run_id, version, may_attach))
        return shared()

    def commit_shared_transaction(
        self, shared: SharedTransaction, participants: list[Participant]
    ) -> None:
        self.committed = participants

    def abort_shared_transaction(self, shared: SharedTransaction) -> None:
        if self._error is not None:
            raise self._error

    def describe_transaction(self, transactional_id: str) -> Any:
        if self._error is not None:
            raise self._error
        state = self._states[min(self.asked, len(self._states) - 1)]
        self.asked += 1
        return SimpleNamespace(number=1, state=state)


def shared(number: int = 1, *, is_done: bool = False) -> SharedTransaction:
    return SharedTransaction("etl@clicks", 1, number, is_done, 20_000)


def written(number: int = 1, producer_id: int | None = None, *, is_done: bool = False) -> Written:
    participant = None if producer_id is None else Participant(producer_id, 0)
    return Written(1, 10, 0.0, shared(number, is_done=is_done), participant)


@pytest.fixture
def in_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task of a micro-batch."""

    class Task:
        @staticmethod
        def getLocalProperty(name: str) -> str | None:  # Spark's.
            return STREAM.get(name)

    monkeypatch.setattr(TaskContext, "get", staticmethod(Task))


@pytest.mark.usefixtures("in_stream")
@pytest.mark.parametrize(
    ("given", "name"),
    [({}, "default/query@clicks"), ({"applicationId": "etl"}, "default/etl@clicks")],
)
def test_a_task_opens_the_micro_batch_of_its_query_and_run(
    given: dict[str, str], name: str
) -> None:
    admin: Any = Admin()
    options = parse_sink_options({**LEAST, **given}, Use.STREAM)
    transactions.open_for_micro_batch(admin, options, "/checkpoint")
    assert admin.opened == [(name, "run", ApplicationVersion(7, "query", "/checkpoint"), True)]


@pytest.mark.usefixtures("in_stream")
def test_a_version_in_foreach_batch_is_of_the_query_and_its_run() -> None:
    admin: Any = Admin()
    options = parse_sink_options({**LEAST, "txnAppId": "etl", "txnVersion": "3"}, Use.BATCH)
    transactions.open_for_version(admin, options, "run of a batch")
    assert admin.opened == [("default/etl@clicks", "run", ApplicationVersion(3, "query"), True)]


def test_a_batch_outside_of_a_stream_is_a_run_of_its_own() -> None:
    admin: Any = Admin()
    options = parse_sink_options({**LEAST, "txnAppId": "etl", "txnVersion": "3"}, Use.BATCH)
    transactions.open_for_version(admin, options, "run of a batch")
    assert admin.opened == [("default/etl@clicks", "run of a batch", ApplicationVersion(3), True)]
    for _ in range(2):
        transactions.open_for_batch(admin, parse_sink_options(LEAST, Use.BATCH))
    (one, run, version, may_attach), (two, other_run, *_) = admin.opened[1:]
    assert one != two
    assert run != other_run
    assert (version, may_attach) == (None, False)


def test_what_the_tasks_have_told_must_be_whole_and_the_same() -> None:
    assert transactions.transaction_of([written(), written(1, 5)]) == shared()
    assert transactions.transaction_of([written(is_done=True)]).is_done
    message = written()
    assert message.shared is not None
    other = replace(message, shared=replace(message.shared, renew_ms=7))
    assert transactions.transaction_of([message, other]) == shared(), "a setting is being changed"
    for messages, told in (
        ([written(), None], "1 of 2 tasks have not told"),
        ([], "0 of 0 tasks"),
        ([written(1), written(2)], "several transactions"),
        ([written(1), written(1, is_done=True)], "several transactions"),
    ):
        with pytest.raises(IncompleteWriteError, match=told):
            transactions.transaction_of(messages)


def test_the_participants_that_have_told_are_committed() -> None:
    admin: Any = Admin()
    transactions.commit(admin, shared(), [written(1, 5), written(), None, written(1, 6)])
    assert admin.committed == [Participant(5, 0), Participant(6, 0)]


def test_a_failed_abort_is_told_and_not_raised() -> None:
    error = ConnectionFailedError("no broker")
    failing: Any = Admin(error=error)
    fine: Any = Admin()
    assert transactions.abort(failing, {shared(1), shared(2)}) is error
    assert transactions.abort(fine, {shared(1)}) is None


def test_it_waits_until_all_partitions_know_of_the_commit_but_not_for_long() -> None:
    admin: Any = Admin("prepare_commit", "prepare_commit", "complete_commit")
    assert transactions.wait_until_over(admin, shared(), 60) == ""
    assert admin.asked == 3
    stuck: Any = Admin("prepare_commit")
    assert "not been told of it for 0.05 s" in transactions.wait_until_over(stuck, shared(), 0.05)
    assert stuck.asked < 10
    refused: Any = Admin(error=TransactionalIdAuthorizationFailedError("may not describe it"))
    assert "may not describe it" in transactions.wait_until_over(refused, shared(), 60)
