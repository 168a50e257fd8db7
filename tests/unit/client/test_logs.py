"""What the clients' own thread logs, another one logs: it never waits for a lock of `logging`."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import millrace.client
from millrace.client._sync.loop_thread import LoopThread
from millrace.client._threads import logs
from millrace.client._threads.logs import Log
from millrace.core.events import Event, Level

HAPPENED = Event(
    name="it_happened",
    level=Level.WARNING,
    text="it happened to %(client)s",
    meaning="It happened.",
    action="Nothing.",
    fields=("client",),
)
_log = Log("millrace.test")
LIBRARY = logging.getLogger("grpc._cython.cygrpc")


class Recorder(logging.Handler):
    """Keeps records, and the names of the threads in which they came."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[tuple[str, logging.LogRecord]] = []
        self.has_all = threading.Event()
        self.expected = 1

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append((threading.current_thread().name, record))
        if len(self.records) >= self.expected:
            self.has_all.set()


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    LoopThread.shared()  # Its loop logs when it begins.
    recorder = Recorder()
    root = logging.getLogger()
    level = root.level
    root.addHandler(recorder)
    root.setLevel(logging.DEBUG)
    yield recorder
    root.removeHandler(recorder)
    root.setLevel(level)


async def log_event() -> int:
    HAPPENED.log(_log, client="producer")
    return threading.get_ident()


async def log_as_library(times: int) -> None:
    for number in range(times):
        LIBRARY.debug("line %d", number)


def test_an_event_of_the_clients_thread_is_logged_with_its_place_by_another(
    recorder: Recorder,
) -> None:
    ident = LoopThread.shared().call(log_event())
    assert recorder.has_all.wait(10)
    ((thread, record),) = [line for line in recorder.records if line[1].name == "millrace.test"]
    assert record.getMessage() == "it happened to producer"
    assert (record.funcName, record.pathname) == ("log_event", __file__)
    assert (record.thread, thread) == (ident, "millrace-log")


def test_an_event_of_any_other_thread_is_logged_at_once_with_its_place(recorder: Recorder) -> None:
    ident = asyncio.run(log_event())
    ((thread, record),) = [line for line in recorder.records if line[1].name == "millrace.test"]
    assert (record.funcName, record.pathname) == ("log_event", __file__)
    assert (record.thread, thread) == (ident, threading.current_thread().name)


def test_the_clients_thread_goes_on_while_a_handler_is_held(recorder: Recorder) -> None:
    thread = LoopThread.shared()
    with recorder.lock:  # type: ignore[union-attr]  # As `logging.shutdown` does around `close()`.
        thread.call(log_as_library(3), limit_s=10)
        thread.call(log_event(), limit_s=10)
        assert recorder.records == []
        recorder.expected = 4
    assert recorder.has_all.wait(10)
    assert {line[0] for line in recorder.records} == {"millrace-log"}


def test_the_clients_thread_goes_on_while_logging_is_being_configured(recorder: Recorder) -> None:
    thread = LoopThread.shared()
    logging.getLogger().setLevel(logging.INFO)  # It makes loggers forget their levels.
    with logging._lock:  # type: ignore[attr-defined]  # As `dictConfig` does.
        thread.call(log_as_library(1), limit_s=10)
    assert recorder.records == []


def test_lines_that_handlers_are_too_slow_for_are_counted(recorder: Recorder) -> None:
    thread = LoopThread.shared()
    recorder.expected = logs._LINES_MAX + 1
    with recorder.lock:  # type: ignore[union-attr]
        thread.call(log_as_library(logs._LINES_MAX + 100), limit_s=30)
    assert recorder.has_all.wait(30)
    last = recorder.records[-1][1]
    assert vars(last)["event_name"] == "client_lines_left_out"
    assert 99 <= vars(last)["lines"] <= 100  # The first may be on its way already.


def test_all_parts_of_the_client_log_through_its_own_log() -> None:
    """A logger of `logging` itself can make the clients' thread wait for a lock of the program."""
    sources = Path(millrace.client.__path__[0]).rglob("*.py")
    users = {source.name for source in sources if "getLogger" in source.read_text(encoding="utf-8")}
    assert users == {"logs.py"}
