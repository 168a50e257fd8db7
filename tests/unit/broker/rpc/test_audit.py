"""The audit log names who did what; repeats are summed up, and hostile names are harmless."""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.fakes.call_context import CALLER

from millrace.broker.rpc.audit import AuditLine, AuditLog
from millrace.core.callers import Caller
from millrace.core.errors import (
    Appended,
    BrokerBusyError,
    ControllerNotAvailableError,
    CorruptBatchError,
    InvalidTopicError,
    MillraceError,
    TopicAlreadyExistsError,
)
from millrace.core.events import AUDIT_LOGGER


class Stage:
    """An audit log, and what it has written."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.audit = AuditLog(lines_max=40)
        self._caplog = caplog

    def act(
        self, *entries: str, outcomes: list[object], request: str = "create_topics"
    ) -> list[Any]:
        """Let a request be answered; return the lines."""
        line = AuditLine(self.audit, CALLER, request)
        line.name(entries)
        line.on_answered(outcomes)
        return self.lines()

    def refuse(self, error: MillraceError, caller: Caller = CALLER) -> list[Any]:
        """Let a caller be refused; return the lines."""
        self.audit.on_refused(caller, "Produce", error)
        return self.lines()

    def sums(self) -> list[Any]:
        """Let ten seconds pass; return the lines."""
        self.audit.tell_sums()
        return self.lines()

    def lines(self) -> list[Any]:
        """Return what was written since this was asked last."""
        records = list(self._caplog.records)
        self._caplog.clear()
        assert all(record.name == AUDIT_LOGGER for record in records)
        return records


@pytest.fixture
def stage(caplog: pytest.LogCaptureFixture) -> Iterator[Stage]:
    with caplog.at_level(logging.INFO, AUDIT_LOGGER):
        yield Stage(caplog)


def test_an_act_says_who_from_where_what_and_the_outcome(stage: Stage) -> None:
    (line,) = stage.act("orders", "flights", outcomes=[None, TopicAlreadyExistsError("there")])
    assert line.event_name == "administrative_request"
    assert line.levelno == logging.INFO
    assert (line.principal, line.client_id) == ("anonymous", "test")
    assert (line.address, line.listener, line.software) == ("10.0.0.1:4711", "clients", "own/7")
    assert (line.request, line.entries, line.entry_count) == ("create_topics", "orders, flights", 2)
    assert (line.outcome, line.refused) == ("partly refused", "flights: TOPIC_ALREADY_EXISTS")
    assert (line.refused_count, line.error, line.appended) == (1, "", "")


@pytest.mark.parametrize(
    ("outcomes", "outcome"),
    [
        ([None, None], "done"),
        ([], "done"),
        ([InvalidTopicError("no")], "refused"),
        ([InvalidTopicError("no"), None], "partly refused"),
    ],
)
def test_the_outcome_is_that_of_all_entries(
    stage: Stage, outcomes: list[object], outcome: str
) -> None:
    (line,) = stage.act("a", "b", outcomes=outcomes)
    assert line.outcome == outcome


def test_a_request_that_fails_as_a_whole_may_have_been_done(stage: Stage) -> None:
    line = AuditLine(stage.audit, CALLER, "set_quotas")
    line.name(["slow"])
    line.on_failed(ControllerNotAvailableError("it went away", appended=Appended.MAYBE))
    (written,) = stage.lines()
    assert (written.outcome, written.appended) == ("failed", "MAYBE")
    assert "it went away" in written.error


def test_many_entries_are_counted_and_the_first_of_them_named(stage: Stage) -> None:
    names = [f"topic-{number}" for number in range(10_000)]
    (line,) = stage.act(*names, outcomes=[InvalidTopicError("no")] * 10_000)
    assert line.entries == ", ".join(names[:20])
    assert (line.entry_count, line.refused_count) == (10_000, 10_000)


def test_hostile_names_are_escaped_and_cut(stage: Stage) -> None:
    (line,) = stage.act('a\n{"event": "x"}\x1b[31m' + "x" * 10_000, outcomes=[None])
    assert line.entries.startswith('a?{"event": "x"}?[31mxxx')
    assert len(line.entries) == 300
    (line,) = stage.refuse(CorruptBatchError("damaged\n" + "x" * 10_000))
    assert line.error.startswith("damaged?x")
    assert len(line.error) == 300


def test_a_flood_of_refusals_is_summed_up(stage: Stage) -> None:
    (first,) = stage.refuse(CorruptBatchError("damaged"))
    assert (first.event_name, first.levelno) == ("caller_refused", logging.WARNING)
    assert (first.client_id, first.method) == ("test", "Produce")
    for port in range(10_000):  # Each from another connection.
        assert not stage.refuse(
            CorruptBatchError(f"damaged {port}"), replace(CALLER, address=f"10.0.0.1:{port}")
        )
    (total,) = stage.sums()
    assert (total.event_name, total.event_repeated) == ("audit_repeated", "caller_refused")
    assert (total.repeats, total.address, total.method) == (10_000, "10.0.0.1", "Produce")
    assert not stage.sums()
    (again,) = stage.refuse(CorruptBatchError("damaged"))
    assert again.event_name == "caller_refused"


def test_other_callers_and_other_errors_have_lines_of_their_own(stage: Stage) -> None:
    assert stage.refuse(CorruptBatchError("damaged"))
    assert stage.refuse(BrokerBusyError("too many"))
    (other,) = stage.refuse(BrokerBusyError("too many"), replace(CALLER, client_id=""))
    assert other.client_id == ""


def test_a_flood_of_different_refusals_is_bounded_and_hides_no_act(stage: Stage) -> None:
    callers = [replace(CALLER, client_id=f"hostile-{number}") for number in range(1000)]
    written = [line for caller in callers for line in stage.refuse(CorruptBatchError("no"), caller)]
    assert len(written) == 4, "a tenth of lines_max"
    for number in range(1000):
        stage.act(f"bad {number}", outcomes=[InvalidTopicError("no")])
    (done,) = stage.act("orders", outcomes=[None])
    assert done.outcome == "done"
    (left_out,) = stage.sums()
    assert (left_out.event_name, left_out.lines) == ("audit_left_out", 1996)


@pytest.mark.parametrize("error", [InvalidTopicError("no"), None])
def test_a_request_of_which_a_part_may_be_done_is_never_taken_for_a_repeat(
    stage: Stage, error: MillraceError | None
) -> None:
    for number in range(1000):
        stage.act("absent", outcomes=[InvalidTopicError("no")], request=f"bad {number}")
    for name in ("orders", "flights"):
        if error is not None:
            (line,) = stage.act(name, "absent", outcomes=[None, error])
            assert line.outcome == "partly refused"
        else:
            act = AuditLine(stage.audit, CALLER, "delete_topics")
            act.name([name])
            act.on_failed(ControllerNotAvailableError("it went away", appended=Appended.MAYBE))
            (line,) = stage.lines()
            assert (line.outcome, line.appended) == ("failed", "MAYBE")
        assert (line.event_name, line.levelno) == ("administrative_request", logging.INFO)
        assert line.entries.startswith(name)


def test_refusals_for_other_reasons_have_lines_of_their_own_however_long_the_request(
    stage: Stage,
) -> None:
    names = [f"topic-{number}" for number in range(30)]
    for last in (InvalidTopicError("no"), TopicAlreadyExistsError("there")):
        outcomes: list[object] = [*[InvalidTopicError("no")] * 29, last]
        (line,) = stage.act(*names, outcomes=outcomes)
        assert line.event_name == "administrative_request_refused"
        assert line.levelno == logging.WARNING
    assert not stage.act(*names, outcomes=[InvalidTopicError("no")] * 30)


def test_equal_acts_are_summed_up_and_different_ones_are_bounded(stage: Stage) -> None:
    lines = [
        line
        for number in range(100)
        for line in stage.act("orders", outcomes=[None]) + stage.act(str(number), outcomes=[None])
    ]
    assert len(lines) == 40, "lines_max"
    repeated, left_out = stage.sums()
    assert (repeated.event_repeated, repeated.repeats) == ("administrative_request", 99)
    assert (left_out.event_name, left_out.lines) == ("audit_left_out", 61)


def test_what_was_not_told_is_told_at_the_end(stage: Stage) -> None:
    async def flood() -> None:
        duty = asyncio.create_task(stage.audit.run())
        await asyncio.sleep(0)
        stage.audit.on_refused(CALLER, "Produce", CorruptBatchError("damaged"))
        stage.audit.on_refused(CALLER, "Produce", CorruptBatchError("damaged"))
        duty.cancel()
        await asyncio.gather(duty, return_exceptions=True)

    asyncio.run(flood())
    assert [line.event_name for line in stage.lines()] == ["caller_refused", "audit_repeated"]
