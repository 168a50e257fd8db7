"""The quotas of a broker in tests."""

from types import SimpleNamespace
from typing import Any, Final

from millrace.broker.quotas import Quotas
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.callers import Caller
from millrace.core.ids import BrokerId
from millrace.core.quotas.config import QuotasConfig
from millrace.core.quotas.quota import EACH, Quota, QuotaEntity, QuotaKind


def no_quotas() -> Quotas:
    """Return those of a broker whose cluster has none."""
    return Quotas(QuotasConfig(burst_ms=1), BrokerMetrics().quotas)


_EACH_CLIENT: Final = QuotaEntity(client_id=EACH)


def limit(
    name: str = "q",
    *,
    produce: int | None = None,
    fetch: int | None = None,
    entity: QuotaEntity = _EACH_CLIENT,
) -> Quota:
    """Return a quota."""
    return Quota(
        name=name,
        entity=entity,
        produce_bytes_per_second=produce,
        fetch_bytes_per_second=fetch,
    )


def follow(quotas: Quotas, *changed: Quota, brokers: int = 1) -> None:
    """Let a broker hear of all quotas of its cluster."""
    registered = {BrokerId(number): SimpleNamespace(is_fenced=False) for number in range(brokers)}
    cluster = SimpleNamespace(brokers=registered, quotas={quota.name: quota for quota in changed})
    image: Any = SimpleNamespace(cluster=cluster)
    quotas.on_image(image)


def owe(quotas: Quotas, kind: QuotaKind, caller: Caller, size: int, topic: str = "t") -> None:
    """Let another stream of a client exceed its quota, and that of a topic."""
    other = quotas.throttle(kind, caller, lambda: None)
    other.charge(size)
    other.charge_topic(topic, size)
    other.close()
