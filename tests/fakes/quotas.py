"""The quotas of a broker in tests."""

from millrace.broker.runtime.quotas import Quotas
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.broker_config import QuotasConfig


def no_quotas() -> Quotas:
    """Return those of a broker whose cluster has none."""
    return Quotas(QuotasConfig(), BrokerMetrics().quotas)
