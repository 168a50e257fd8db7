"""Records whose processing has failed: pauses, attempts, and the end of both."""

from millrace.core.client.consumer.retries import Retries

HERE = ("orders", 0)
THERE = ("orders", 1)


def fail(retries: Retries, offset: int, now: int = 0) -> int | None:
    """Fail one attempt; return the pause."""
    pause_ms = retries.pause_ms(retries.on_failed(HERE, offset))
    if pause_ms is not None:
        retries.on_paused(HERE, now + pause_ms)
    return pause_ms


def test_pauses_double_up_to_the_longest_and_the_last_attempt_has_none() -> None:
    retries = Retries(attempts_max=6, backoff_ms=100, backoff_ms_max=500)
    assert [fail(retries, 7) for _ in range(6)] == [100, 200, 400, 500, 500, None]


def test_one_attempt_means_that_nothing_is_tried_again() -> None:
    assert fail(Retries(1, 100, 500), 7) is None


def test_a_very_late_attempt_has_the_longest_pause() -> None:
    assert Retries(10**6, 1000, 60_000).pause_ms(10**6 - 1) == 60_000


def test_each_record_has_its_own_attempts() -> None:
    retries = Retries(2, 100, 500)
    assert fail(retries, 7) == 100
    assert fail(retries, 7) is None
    assert fail(retries, 8) == 100
    retries.on_done(HERE)
    assert fail(retries, 8) == 100, "it was done, and is read again"


def test_a_partition_is_due_once_when_its_pause_is_over() -> None:
    retries = Retries(3, 100, 500)
    assert retries.next_due() is None
    fail(retries, 7, now=1_000)
    assert retries.on_failed(THERE, 2) == 1
    retries.on_paused(THERE, 1_050)
    assert retries.next_due() == 1_050
    assert retries.take_due(1_049) == []
    assert retries.take_due(1_050) == [THERE]
    assert retries.next_due() == 1_100
    assert retries.take_due(1_200) == [HERE]
    assert retries.take_due(1_200) == []
    assert retries.on_failed(HERE, 7) == 2, "its attempts are not forgotten"


def test_a_record_that_is_done_is_due_no_more() -> None:
    retries = Retries(3, 100, 500)
    fail(retries, 7)
    retries.on_done(HERE)
    retries.on_done(THERE)
    assert retries.next_due() is None
    assert retries.take_due(10**9) == []
