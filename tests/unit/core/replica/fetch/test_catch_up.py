"""A follower that catches up gets its rate, and what is appended meanwhile."""

from millrace.core.ids import MonotonicMs
from millrace.core.replica.fetch.catch_up import CatchUpAllowance

RATE = 1_000_000


def sent_within(seconds: int, response: int, appended_per_ms: int = 0) -> int:
    """Return what is sent by somebody who sends responses whenever he may."""
    allowance = CatchUpAllowance(RATE, MonotonicMs(0))
    sent = now = appended = 0
    while now < seconds * 1000:
        pause_ms = allowance.pause_ms(MonotonicMs(now), appended)
        appended = appended_per_ms * pause_ms
        now += pause_ms
        if pause_ms:
            continue
        allowance.on_sent(response)
        sent += response
    return sent


def test_what_is_sent_is_the_rate_whatever_the_size_of_a_response() -> None:
    for response in (1_000, 70_000, 3_000_000):
        assert abs(sent_within(20, response) - 20 * RATE) <= response + RATE // 10


def test_what_is_appended_meanwhile_comes_on_top() -> None:
    assert sent_within(20, 70_000, appended_per_ms=3_000) >= 20 * (RATE + 3_000_000) * 0.98


def test_a_pause_is_long_enough() -> None:
    allowance = CatchUpAllowance(RATE, MonotonicMs(0))
    allowance.on_sent(10 * RATE)
    pause_ms = allowance.pause_ms(MonotonicMs(5))
    assert allowance.pause_ms(MonotonicMs(5 + pause_ms)) == 0
    assert allowance.pause_ms(MonotonicMs(5 + pause_ms)) == 0


def test_a_quiet_time_is_not_saved_up() -> None:
    allowance = CatchUpAllowance(RATE, MonotonicMs(0))
    allowance.on_sent(1)
    assert allowance.pause_ms(MonotonicMs(60_000)) == 0
    allowance.on_sent(RATE)
    assert allowance.pause_ms(MonotonicMs(60_000)) > 800
