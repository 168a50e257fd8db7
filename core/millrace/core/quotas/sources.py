"""How often each address may do something that costs the broker work before it knows who asks.

Each address has a bucket (`limiter`) that is charged for each time. Beyond `_SOURCES_MAX` of them
the one that was quiet for longest is forgotten: who has as many addresses gains a burst of each.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from millrace.core.ids import MonotonicMs
from millrace.core.quotas.limiter import Limiter

_SOURCES_MAX: Final = 10_000


@dataclass(slots=True)
class SourceRates:
    """The buckets of all addresses.

    Args:
        rate: times a second; positive.
        burst_ms: how much of it an idle address saves up.
        debt_ms_max: how long an address may have to wait; beyond, it is refused, and not charged.
    """

    rate: float
    burst_ms: int
    debt_ms_max: int
    _limiters: OrderedDict[str, Limiter] = field(default_factory=OrderedDict)

    def charge(self, source: str, now: MonotonicMs) -> float | None:
        """Charge one time; return for how many ms it should wait; None: it is refused."""
        limiter = self._limiters.get(source)
        if limiter is None:
            if len(self._limiters) >= _SOURCES_MAX:
                self._limiters.popitem(last=False)
            limiter = self._limiters[source] = Limiter(self.rate)
        self._limiters.move_to_end(source)
        if limiter.delay_ms(now) >= self.debt_ms_max:
            return None
        limiter.charge(1, now, self.burst_ms, self.debt_ms_max + 1000)
        return limiter.delay_ms(now)
