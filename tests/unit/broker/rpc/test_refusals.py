"""Who is refused is counted, and named in the log, but not each time."""

import logging
from dataclasses import replace
from typing import Any

import pytest
from tests.fakes.call_context import CALLER

from millrace.broker.rpc.refusals import Refusals
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.callers import Caller
from millrace.core.errors import BrokerBusyError, CorruptBatchError, MillraceError, NotLeaderError
from millrace.core.ids import MonotonicMs


class Stage:
    """Refusals whose clock the test sets."""

    def __init__(self) -> None:
        self.now = 1000
        self.metrics = BrokerMetrics()
        self.refusals = Refusals(self.metrics, clock=lambda: MonotonicMs(self.now))

    def refuse(self, error: MillraceError, caller: Caller = CALLER) -> None:
        """Let a caller be refused."""
        self.refusals.on_refused(error, caller, "Produce")

    def counted(self, error: str) -> float | None:
        """Return how often."""
        return self.metrics.registry.get_sample_value("millrace_refusals_total", {"error": error})


def named(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """Return what the log said since this was asked last."""
    records = list(caplog.records)
    caplog.clear()
    assert all(each.levelno == logging.WARNING for each in records)
    return records


def test_a_flood_of_refusals_is_counted_and_some_of_it_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage()
    for _ in range(1000):
        stage.refuse(CorruptBatchError("damaged\n" + "x" * 1000))
    (first,) = named(caplog)
    assert (first.principal, first.client_id) == ("anonymous", "test")
    assert (first.address, first.listener) == ("10.0.0.1:4711", "clients")
    assert (first.software, first.method, first.others_since_the_last) == ("own/7", "Produce", 0)
    assert first.error.startswith("damaged?x")
    assert len(first.error) == 300
    stage.now += 9999
    stage.refuse(BrokerBusyError("too many"))
    assert not named(caplog)
    stage.now += 1
    stage.refuse(BrokerBusyError("too many"), replace(CALLER, client_id=""))
    (second,) = named(caplog)
    assert (second.client_id, second.others_since_the_last) == ("", 1000)
    assert stage.counted("CORRUPT_BATCH") == 1000
    assert stage.counted("BROKER_BUSY") == 2


def test_what_is_no_fault_of_the_client_is_counted_alone(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    stage.refuse(NotLeaderError("it moved"))
    assert not named(caplog)
    assert stage.counted("NOT_LEADER") == 1
