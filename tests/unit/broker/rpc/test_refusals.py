"""Refusals are counted; the audit log has those that are the fault of the caller."""

import pytest
from tests.fakes.call_context import CALLER

from millrace.broker.rpc.audit import AuditLog
from millrace.broker.rpc.refusals import Refusals
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.errors import BrokerBusyError, CorruptBatchError, MillraceError, NotLeaderError


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (CorruptBatchError("damaged"), 1),
        (BrokerBusyError("too many"), 1),
        (NotLeaderError("it moved"), 0),
    ],
)
def test_a_refusal_is_counted_and_named_if_it_is_the_fault_of_the_caller(
    error: MillraceError, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = BrokerMetrics()
    Refusals(metrics, AuditLog(lines_max=100)).on_refused(error, CALLER, "Produce")
    labels = {"error": error.name(), "method": "Produce"}
    assert metrics.registry.get_sample_value("millrace_refusals_total", labels) == 1
    assert len(caplog.records) == lines
