"""The end of a process: each producer that is still open is flushed, or its records are counted."""

import asyncio
import logging
import signal
import threading

import pytest

from millrace.client._threads import unclosed
from millrace.runtime import host


class Producer:
    """One that a program left open, with a record."""

    def __init__(self, loop: asyncio.AbstractEventLoop, error: Exception | None = None) -> None:
        self.loop, self.is_closed, self.made_in = loop, False, unclosed.here()
        self._error = error
        self.acknowledged = 0

    def untold_records(self) -> int:
        return 1 - self.acknowledged

    def acknowledged_records(self) -> int:
        return self.acknowledged

    async def flush(self) -> None:
        if self._error is not None:
            raise self._error
        self.acknowledged = 1


@pytest.fixture(scope="module")
def loop() -> asyncio.AbstractEventLoop:
    return host.current.start_loop("test")


def test_a_producer_that_fails_keeps_no_other_from_its_delivery(
    loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    failing, good = Producer(loop, ValueError("a bug")), Producer(loop)
    with caplog.at_level(logging.WARNING):
        unclosed.deliver([failing, good])
    assert good.acknowledged
    assert [record.message for record in caplog.records if "a bug" in record.message]


def test_ctrl_c_ends_the_wait_for_one_producer_and_is_no_error(
    loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    class Stuck(Producer):
        async def flush(self) -> None:
            while True:  # One that comes just before Python waits does not end the wait.
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                await asyncio.sleep(1)

    good = Producer(loop)
    with caplog.at_level(logging.WARNING):
        unclosed.deliver([Stuck(loop), good])
    assert good.acknowledged
    assert len(caplog.records) == 1
