"""Lines of the log: readable or JSON, with the event's name; repeats are bounded."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from millrace.broker import events
from millrace.broker.telemetry.logs import RepeatsFilter, configure_logging
from millrace.core.broker_config import AuditScope, LogFormat, LoggingConfig
from millrace.core.events import AUDIT_LOGGER

LOGGER = logging.getLogger("millrace.broker.test")


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    """Put back what a test configures."""
    root, audit = logging.getLogger(), logging.getLogger(AUDIT_LOGGER)
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    audit.setLevel(logging.NOTSET)


def configured(**settings: Any) -> io.StringIO:
    """Configure logging; return where it writes to."""
    stream = io.StringIO()
    configure_logging(LoggingConfig(**{"format": LogFormat.JSON, **settings}), stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_has_the_name_the_text_and_the_fields_of_an_event() -> None:
    stream = configured()
    events.OUTSIDE_ADDRESS_UNREADABLE.log(LOGGER, error="100% gone")
    (line,) = lines(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "outside_address_unreadable",
        "message": "the outside address cannot be read: 100% gone",
        "error": "100% gone",
        "level": "warning",
        "logger": "millrace.broker.test",
    }


def test_json_has_the_trace_of_a_cause() -> None:
    stream = configured()
    events.CHECK_FAILED.log(LOGGER, cause=ValueError("by a bug"))
    (line,) = lines(stream)
    assert "ValueError: by a bug" in line["exception"]


def test_a_line_of_a_library_has_a_message_and_no_event() -> None:
    stream = configured()
    logging.getLogger("grpc").warning("it is %s", "old")
    (line,) = lines(stream)
    assert line["message"] == "it is old"
    assert "event" not in line


def test_people_read_the_text_and_the_name_after_it() -> None:
    stream = configured(format=LogFormat.HUMAN)
    events.BROKER_READY.log(LOGGER, address="a:1", cluster_id="c")
    text = stream.getvalue()
    assert text.index("broker is ready") < text.index("broker_ready") < text.index("address")
    assert "event_name" not in text


def test_an_event_that_goes_on_is_for_debugging() -> None:
    stream = configured()
    events.FETCHING_ENDED.log(LOGGER, leader=1, error="gone", is_repeat=True)
    assert not lines(stream)
    stream = configured(level="debug")
    events.FETCHING_ENDED.log(LOGGER, leader=1, error="gone", is_repeat=True)
    assert lines(stream)[0]["level"] == "debug"


@pytest.mark.parametrize(
    ("audit", "written"),
    [
        (AuditScope.ALL, ["audit_left_out", "object_changed"]),
        (AuditScope.REFUSALS, ["audit_left_out"]),
        (AuditScope.NONE, []),
    ],
)
def test_the_audit_log_has_a_switch_of_its_own(audit: AuditScope, written: list[str]) -> None:
    stream = configured(audit=audit, level="error")
    logger = logging.getLogger(AUDIT_LOGGER)
    events.AUDIT_LEFT_OUT.log(logger, lines=1)
    logger.info("an act", extra={"event_name": "object_changed"})
    assert [line["event"] for line in lines(stream)] == written


def record(event: str, at_s: float, logger: str = "millrace.broker.test") -> logging.LogRecord:
    made = logging.makeLogRecord({"name": logger, "event_name": event})
    made.created = at_s
    return made


def test_repeats_of_an_event_are_bounded_and_the_next_line_counts_them() -> None:
    bounded = RepeatsFilter(3)
    assert sum(bounded.filter(record("a", 1000 + n / 1000)) for n in range(10_000)) == 3
    assert bounded.filter(record("b", 1011)), "another event"
    later = record("a", 1060)
    assert bounded.filter(later)
    assert vars(later)["left_out"] == 9997
    last = record("a", 1061)
    assert bounded.filter(last)
    assert "left_out" not in vars(last)


def test_a_clock_that_is_set_back_keeps_no_line_away() -> None:
    bounded = RepeatsFilter(1)
    assert bounded.filter(record("a", 5000))
    assert not bounded.filter(record("a", 5001))
    assert bounded.filter(record("a", 1000))


def test_the_audit_log_is_not_bounded_by_repeats() -> None:
    bounded = RepeatsFilter(1)
    assert all(bounded.filter(record("a", 1000, AUDIT_LOGGER)) for _ in range(10))
