"""How long a user of a bucket must wait: a rate limit as one time, without a clock.

`paid_until` is the time at which everything charged so far is paid for at the rate. While it lies
in the future the bucket is in debt, and its users wait until the debt is paid. Charging never
fails: the data was sent already, and the sender waits afterwards. A user waits for its own charge
and for all charges before it, so the users of one bucket share the rate in the order of their
charges. An idle bucket saves up `burst_ms` at the most: that much may come at once.

Over any time the bytes charged exceed the rate by no more than the burst and what each of those
that charge at the same time has charged last (P73). A later rate counts for a debt, too (P74).

Source: the generic cell rate algorithm (ITU-T I.371), as a leaky bucket of one variable.
"""

from dataclasses import dataclass
from typing import Final

_MS: Final = 1000
_NEVER: Final = float("-inf")


@dataclass(slots=True, eq=False)
class Limiter:
    """The debt of one bucket. Times are in ms of one clock that never goes back.

    Attributes:
        rate: bytes a second; positive.
        paid_until: when everything charged so far is paid for.
        total: bytes charged.
        throttled_ms: how long it was in debt, all in all; the present debt is counted already.
        charged_at: when it was charged last.
    """

    rate: float
    paid_until: float = _NEVER
    total: int = 0
    throttled_ms: float = 0.0
    charged_at: float = _NEVER

    def charge(self, size: int, now: float, burst_ms: int, throttle_ms_max: int) -> float:
        """Charge bytes that were sent; return until when the sender waits, in the past for no wait.

        Args:
            size: bytes.
            now: the time.
            burst_ms: how much an idle bucket saves up.
            throttle_ms_max: the largest debt. The rest is forgiven.
        """
        before = max(self.paid_until, now - burst_ms)
        until = min(before + size * _MS / self.rate, now + throttle_ms_max)
        if until > now:
            self.throttled_ms += until - max(before, now)
        self.paid_until = until
        self.total += size
        self.charged_at = now
        return until

    def set_rate(self, rate: float, now: float, throttle_ms_max: int) -> None:
        """Change the rate: a debt is paid at the new one, as far as it is not forgiven."""
        if rate == self.rate:
            return
        debt = self.paid_until - now
        if debt > 0:
            self.paid_until = now + min(debt * self.rate / rate, throttle_ms_max)
            self.throttled_ms += self.paid_until - now - debt
        self.rate = rate

    def forgive(self) -> None:
        """Drop the debt: nobody waits for it any more."""
        self.paid_until = _NEVER

    def passed_in_debt_ms(self, now: float) -> float:
        """Return how long it has been in debt, all in all, without the debt that lies ahead."""
        return self.throttled_ms - self.delay_ms(now)

    def delay_ms(self, now: float) -> float:
        """Return how long it is in debt; 0: it is not."""
        return max(0.0, self.paid_until - now)
