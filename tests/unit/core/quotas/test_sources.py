"""How often each address may do something."""

from millrace.core.ids import MonotonicMs
from millrace.core.quotas import sources
from millrace.core.quotas.sources import SourceRates


def test_an_address_waits_and_is_refused_beyond_its_debt_and_no_other_is() -> None:
    rates = SourceRates(rate=10, burst_ms=500, debt_ms_max=1000)
    found = [rates.charge("a", MonotonicMs(0)) for _ in range(16)]
    assert found == [0, 0, 0, 0, 0, *range(100, 1001, 100), None]
    assert rates.charge("b", MonotonicMs(0)) == 0
    assert rates.charge("a", MonotonicMs(100)) == 1000, "what is refused is not charged"
    assert rates.charge("a", MonotonicMs(10_000)) == 0


def test_who_goes_on_is_not_forgotten_for_the_sake_of_many_others() -> None:
    rates = SourceRates(rate=0.001, burst_ms=1_000_000, debt_ms_max=1)
    assert rates.charge("busy", MonotonicMs(0)) == 0
    rates.charge("busy", MonotonicMs(0))
    for number in range(sources._SOURCES_MAX + 5):
        rates.charge(str(number), MonotonicMs(0))
        assert rates.charge("busy", MonotonicMs(0)) is None


def test_the_address_that_was_quiet_for_longest_is_forgotten_beyond_the_bound() -> None:
    rates = SourceRates(rate=1, burst_ms=1000, debt_ms_max=1)
    for number in range(sources._SOURCES_MAX + 5):
        rates.charge(str(number), MonotonicMs(0))
    assert len(rates._limiters) == sources._SOURCES_MAX
