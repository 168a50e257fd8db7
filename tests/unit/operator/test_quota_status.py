"""The use of a quota, as the status of its resource tells it."""

from typing import Any

from millrace.client import QuotaUse
from millrace.client._admin.quotas import described
from millrace.core.ids import BrokerId
from millrace.core.quotas.quota import Quota, QuotaEntity
from millrace.operator.reconcile.quota_status import DELAYS_MAX, FIELDS, use_status


def use(kind: Any, used: int, *, broker: int = 0, client: str = "a", delay_ms: int = 0) -> QuotaUse:
    return QuotaUse(kind, "", client, "", "", BrokerId(broker), used, 10_000, delay_ms, 0)


def status(*uses: QuotaUse, **limits: Any) -> Any:
    quota = Quota(name="q", entity=QuotaEntity(client_id=""), **limits)
    found = use_status(described(quota, uses))
    assert set(found) == set(FIELDS)
    return found


def test_bytes_are_added_and_request_time_is_of_the_busiest_broker() -> None:
    found = status(
        use("produce", 1_000_000),
        use("produce", 234_567, broker=1),
        use("produce", 1_000_000, client="b"),
        use("request", 300_000),
        use("request", 100_000, client="b"),
        use("request", 350_000, broker=1),
        produce_bytes_per_second=5_000_000,
        fetch_bytes_per_second=5_000_000,
        request_percent=100,
    )
    assert found["use"] == {
        "summary": "produce 2.2 MB/s, fetch 0 B/s, request 40%",
        "produceBytesPerSecond": 2_200_000,
        "fetchBytesPerSecond": 0,
        "requestPercent": 40,
    }
    assert (found["throttled"], found["longestDelays"]) == (0, None)


def test_those_that_are_delayed_are_counted_and_the_first_of_them_named() -> None:
    count = DELAYS_MAX + 3
    delayed = [
        use("fetch", 1, client=f"c{number:02}", delay_ms=number + 1) for number in range(count)
    ]
    again = use("fetch", 1, broker=1, client="c00", delay_ms=4567)
    found = status(use("fetch", 1), *delayed, again, fetch_bytes_per_second=5000)
    assert found["throttled"] == count
    assert len(found["longestDelays"]) == DELAYS_MAX
    assert found["longestDelays"][:2] == [
        {"subject": "client id c00", "delayMs": 4600},
        {"subject": "client id c12", "delayMs": 13},
    ]
    others = status(use("fetch", 1, client="", delay_ms=5), fetch_bytes_per_second=5000)
    assert others["longestDelays"] == [{"subject": "others", "delayMs": 5}]
