import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.quotas.limiter import Limiter

BURST_MS = 200
MAX_MS = 300_000


def charge(limiter: Limiter, size: int, now: float) -> float:
    """Return the delay."""
    return max(0.0, limiter.charge(size, now, BURST_MS, MAX_MS) - now)


def test_within_the_rate_nobody_waits() -> None:
    limiter = Limiter(1000)
    assert [charge(limiter, 100, now) for now in range(0, 5000, 100)] == [0] * 50


def test_who_sends_too_much_waits_until_it_is_paid() -> None:
    limiter = Limiter(1000)
    assert charge(limiter, 700, 10_000) == 500  # 200 ms were saved up.
    assert charge(limiter, 100, 10_000) == 600
    assert limiter.delay_ms(10_100) == 500
    assert charge(limiter, 100, 10_600) == 100
    assert limiter.total == 900


def test_idle_time_is_saved_up_only_so_far() -> None:
    limiter = Limiter(1000)
    charge(limiter, 1, 0)
    assert charge(limiter, 1000, 1_000_000) == 1000 - BURST_MS


def test_a_debt_beyond_the_bound_is_forgiven() -> None:
    limiter = Limiter(1000)
    assert charge(limiter, 10**9, 0) == MAX_MS
    assert charge(limiter, 10**9, 0) == MAX_MS


def test_a_debt_is_paid_at_the_new_rate() -> None:
    limiter = Limiter(1000)
    assert charge(limiter, 2200, 0) == 2000
    limiter.set_rate(4000, 0, MAX_MS)
    assert limiter.delay_ms(0) == 500
    limiter.set_rate(1000, 100, MAX_MS)
    assert limiter.delay_ms(100) == 1600


def test_a_lower_rate_does_not_lengthen_a_debt_beyond_the_bound() -> None:
    limiter = Limiter(1_000_000)
    assert charge(limiter, 10**9, 0) == MAX_MS
    limiter.set_rate(1000, 0, MAX_MS)
    assert limiter.delay_ms(0) == MAX_MS
    assert charge(limiter, 1000, 1000) == MAX_MS
    assert limiter.passed_in_debt_ms(1000) == 1000


def test_the_time_in_debt_is_counted_once() -> None:
    limiter = Limiter(1000)
    for now in (0, 100, 200):
        charge(limiter, 1000, now)
    assert limiter.throttled_ms == limiter.paid_until == 2800
    assert limiter.passed_in_debt_ms(1000) == 1000
    charge(limiter, 300, 10_000)
    assert limiter.throttled_ms == 2900
    assert limiter.passed_in_debt_ms(20_000) == 2900


def test_the_time_that_passed_in_debt_does_not_change_with_the_rate() -> None:
    limiter = Limiter(1000)
    charge(limiter, 10_200, 0)
    assert limiter.passed_in_debt_ms(3000) == 3000
    limiter.set_rate(1_000_000, 3000, MAX_MS)
    assert limiter.passed_in_debt_ms(3000) == 3000
    assert limiter.passed_in_debt_ms(20_000) == pytest.approx(3007)


def test_a_forgiven_limiter_delays_nobody() -> None:
    limiter = Limiter(1000)
    charge(limiter, 5000, 0)
    limiter.forgive()
    assert limiter.delay_ms(1) == 0


@given(
    st.integers(1024, 10**9),
    st.lists(st.tuples(st.integers(1, 2_000_000), st.integers(0, 2000)), min_size=1, max_size=60),
)
def test_no_time_has_more_than_the_rate_the_burst_and_one_request(
    rate: int, steps: list[tuple[int, int]]
) -> None:
    """A client that waits as it is told, and longer now and then."""
    limiter, now = Limiter(rate), 0.0
    sent: list[tuple[float, int]] = []
    for size, pause in steps:
        size = min(size, rate * 100)  # Nothing is forgiven.
        sent.append((now, size))
        now += charge(limiter, size, now) + pause
    largest = max(size for _, size in sent)
    for index, (begin, _) in enumerate(sent):
        total = 0
        for time, size in sent[index:]:
            total += size
            allowed = rate * (time - begin + BURST_MS) / 1000 + largest
            assert total <= allowed * (1 + 1e-9) + 1


@given(st.integers(1, 50), st.integers(10_000, 100_000))
def test_many_users_of_one_limit_get_it_together_and_no_more(users: int, size: int) -> None:
    rate, seconds = 1_000_000, 60
    limiter = Limiter(rate)
    ready = [0.0] * users
    total = 0
    while (now := min(ready)) < seconds * 1000:
        user = ready.index(now)
        total += size
        ready[user] = now + charge(limiter, size, now) + 1
    allowed = rate * seconds
    assert allowed * 0.97 <= total <= allowed * 1.01 + (users + 1) * size
