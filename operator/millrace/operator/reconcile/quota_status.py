"""The use of a quota, as its resource's status tells it. Pure.

Numbers are rounded to two digits: a status that is as it was is not written again.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from millrace.client import QuotaDescription, QuotaUse
from millrace.core.ids import BrokerId
from millrace.core.quotas.quota import QuotaEntity

DELAYS_MAX: Final = 10
"""How many of those that are delayed are named."""
FIELDS: Final = ("use", "throttled", "longestDelays")
"""Fields of the status that tell of the use."""
_OTHERS: Final = "others"
"""Those that a broker counts together, as there are too many to tell them apart."""
_MICROSECONDS_IN_PERCENT: Final = 10_000


def use_status(quota: QuotaDescription) -> Mapping[str, Any]:
    """Return the fields `FIELDS` of the status."""
    use: dict[str, Any] = {}
    told = []
    for kind, limit in (
        ("produce", quota.produce_bytes_per_second),
        ("fetch", quota.fetch_bytes_per_second),
    ):
        if limit is not None:
            rate = _rounded(sum(use.used_per_second for use in quota.uses if use.kind == kind))
            use[f"{kind}BytesPerSecond"] = rate
            told.append(f"{kind} {_in_words(rate)}")
    if quota.request_percent is not None:
        percent = _rounded(_of_busiest(quota.uses) // _MICROSECONDS_IN_PERCENT)
        use["requestPercent"] = percent
        told.append(f"request {percent}%")
    delays = _delays(quota.uses)
    longest = sorted(delays.items(), key=lambda delayed: (-delayed[1], delayed[0]))[:DELAYS_MAX]
    return {
        "use": {"summary": ", ".join(told), **use},
        "throttled": len(delays),
        "longestDelays": [
            {"subject": subject, "delayMs": _rounded(delay)} for subject, delay in longest
        ]
        or None,
    }


def _of_busiest(uses: Iterable[QuotaUse]) -> int:
    """Return the request time at the broker that has the most."""
    of_brokers: defaultdict[BrokerId, int] = defaultdict(int)
    for use in uses:
        if use.kind == "request":
            of_brokers[use.broker_id] += use.used_per_second
    return max(of_brokers.values(), default=0)


def _delays(uses: Iterable[QuotaUse]) -> dict[str, int]:
    """Return who is delayed, with the longest delay of each."""
    delays: dict[str, int] = {}
    for use in uses:
        if use.delay_ms:
            entity = QuotaEntity(
                principal=use.principal or None,
                client_id=use.client_id or None,
                topic=use.topic or None,
                namespace=use.namespace or None,
            )
            who = str(entity) or _OTHERS
            delays[who] = max(delays.get(who, 0), use.delay_ms)
    return delays


def _rounded(number: int) -> int:
    step: int = 10 ** max(0, len(str(number)) - 2)
    return round(number / step) * step


def _in_words(rate: int) -> str:
    for unit, size in (("GB/s", 10**9), ("MB/s", 10**6), ("kB/s", 1000)):
        if rate >= size:
            return f"{rate / size:g} {unit}"
    return f"{rate} B/s"
