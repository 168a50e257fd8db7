"""All buckets of one broker: what they may use, what they use, and what they are told.

`Meters` has a limiter for each bucket in use. The rate of a bucket follows from its quota: the
limit itself where that is for each broker; else this broker's share of it, which the controller
sends (`shares`). Without a share, as at first, the limit is divided by the number of brokers. A
share outlasts the loss of the controller, but not its use (P73).

A stream keeps its limiters (`caller`, `topic`) until `generation` changes (P74). A bucket that
nobody has charged for a while is dropped (`expire`), and says so to streams that keep its limiter
(`is_dropped`). There are never more than `quotas.buckets_max`: beyond it, others of one quota share
one bucket, so that no client can fill the memory with client ids, and none escapes its quota.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from millrace.core.ids import MonotonicMs
from millrace.core.quotas.config import QuotasConfig
from millrace.core.quotas.limiter import Limiter
from millrace.core.quotas.precedence import Found, QuotaTable
from millrace.core.quotas.quota import Bucket, Quota, QuotaKind
from millrace.core.quotas.shares import BucketShare, BucketUse

IDLE_MS: Final = 60_000
"""How long nobody has charged a bucket that is dropped; longer than any debt that still counts."""
REPORTED_MAX: Final = 1000
"""Buckets in one report to the controller."""
_QUIET_MS: Final = 1000
"""How long nobody has charged a bucket that counts as not used."""
_SMOOTHING_MS: Final = 500
"""Over how long a rate is averaged."""
_SATURATED_SHARE: Final = 0.2
"""The part of the time in debt from which on a bucket counts as wanting more."""
_EXPIRE_PAUSE_MS: Final = 5_000
"""Pause between two looks for buckets to drop."""
_RATE_MIN: Final = 1.0


class BucketState(NamedTuple):
    """What people are told of a bucket at one broker.

    Attributes:
        used: a second, averaged over about one; bytes, or microseconds of request time.
        limit: likewise, of this broker alone.
        delay_ms: how long the next user would wait now.
        throttled_ms: how long it was in debt, all in all.
    """

    bucket: Bucket
    used: int
    limit: int
    delay_ms: int
    throttled_ms: int


@dataclass(slots=True, eq=False)
class Meter(Limiter):
    """The limiter of one bucket, and what it takes to measure its use.

    Attributes:
        is_dropped: streams must look for another one.
    """

    bucket: Bucket = field(kw_only=True)
    is_dropped: bool = False
    share: float | None = None
    used: float = 0.0
    is_saturated: bool = False
    _measured_at: float = 0.0
    _total_then: int = 0
    _throttled_then: float = 0.0

    def begin(self, now: float) -> None:
        """It comes into use: the idle time before is not averaged over."""
        self._measured_at, self._total_then = now, self.total
        self._throttled_then = self.passed_in_debt_ms(now)

    def measure(self, now: float) -> None:
        """Update `used` and `is_saturated` by what came since the last time."""
        elapsed = now - self._measured_at
        if elapsed <= 0:
            return
        rate = (self.total - self._total_then) * 1000 / elapsed
        weight = min(1.0, elapsed / _SMOOTHING_MS)
        self.used += (rate - self.used) * weight
        throttled = self.passed_in_debt_ms(now)
        self.is_saturated = throttled - self._throttled_then > elapsed * _SATURATED_SHARE
        self._measured_at, self._total_then, self._throttled_then = now, self.total, throttled


class Meters:
    """The limiters of one broker, by bucket.

    Attributes:
        generation: grows with every change of the quotas.
        table: the quotas.
    """

    def __init__(self, config: QuotasConfig) -> None:
        self.generation = 0
        self.table = QuotaTable()
        self._config = config
        self._quotas: Mapping[str, Quota] = {}
        self._brokers = 1
        self._meters: dict[Bucket, Meter] = {}
        self._active: dict[Bucket, Meter] = {}  # Those in use.
        self._expired_at = MonotonicMs(0)

    def on_quotas(self, quotas: Mapping[str, Quota], brokers: int, now: MonotonicMs) -> None:
        """Follow the metadata.

        Args:
            quotas: by name.
            brokers: how many can serve clients.
            now: the time.
        """
        before, self._quotas = self._quotas, quotas
        self._brokers = max(1, brokers)
        if quotas != before:
            self.generation += 1
            self.table = QuotaTable(quotas.values())
        for bucket, meter in list(self._meters.items()):
            quota = quotas.get(bucket.quota)
            limit = None if quota is None else quota.limit(bucket.kind)
            if limit is None or quota is None or quota.entity != before[bucket.quota].entity:
                self._drop(meter)
                continue
            then = before[bucket.quota].limit(bucket.kind) or limit
            if meter.share is not None:
                # Until the controller has divided the new limit.
                meter.share = meter.share * limit / then if quota.is_shared(bucket.kind) else None
            self._set_rate(meter, quota, now)

    def caller(
        self, kind: QuotaKind, principal: str, client_id: str, now: MonotonicMs
    ) -> Sequence[Meter]:
        """Return the meters to charge for a client: one, or none."""
        found = self.table.of_caller(kind, principal, client_id)
        return () if found is None else (self._meter(found, now),)

    def topic(self, kind: QuotaKind, topic: str, now: MonotonicMs) -> Sequence[Meter]:
        """Return the meters to charge for a topic beside it."""
        return [self._meter(quota, now) for quota in self.table.of_topic(kind, topic)]

    def charge(self, meter: Meter, size: int, now: MonotonicMs) -> float:
        """Charge a meter; return until when the caller waits."""
        config = self._config
        if meter.bucket not in self._active:
            self._active[meter.bucket] = meter
            meter.begin(now)
        return meter.charge(size, now, config.burst_ms, config.throttle_ms_max)

    def expire(self, now: MonotonicMs) -> None:
        """Drop what nobody has used for a while; to be called now and then."""
        if now - self._expired_at < _EXPIRE_PAUSE_MS:
            return
        self._expired_at = now
        for meter in list(self._meters.values()):
            if max(meter.charged_at, meter.paid_until) + IDLE_MS < now:
                self._drop(meter)

    def uses(self, now: MonotonicMs) -> list[BucketUse]:
        """Measure all use; return that of shared buckets, as many as one report may have.

        Those that want more come first, then the largest. The others are unknown to the controller,
        which may give their shares away: they get an equal part.
        """
        shared = []
        for bucket, meter in list(self._active.items()):
            meter.measure(now)
            quota = self._quotas[bucket.quota]
            if max(meter.charged_at, meter.paid_until) + _QUIET_MS < now:
                del self._active[bucket]
                meter.used = 0
                meter.share = None  # Others get the share; the next user begins without one.
                self._set_rate(meter, quota, now)
            elif quota.is_shared(bucket.kind):
                shared.append(BucketUse(bucket, round(meter.used), meter.is_saturated))
        shared.sort(key=lambda use: (use.is_saturated, use.bytes_per_second), reverse=True)
        for bucket, _, _ in shared[REPORTED_MAX:]:
            meter = self._active[bucket]
            meter.share = None
            self._set_rate(meter, self._quotas[bucket.quota], now)
        return shared[:REPORTED_MAX]

    def on_shares(self, shares: Iterable[BucketShare], now: MonotonicMs) -> bool:
        """Take up the controller's shares; return whether a limit has changed."""
        has_changed = False
        for bucket, share in shares:
            meter, quota = self._meters.get(bucket), self._quotas.get(bucket.quota)
            limit = None if quota is None else quota.limit(bucket.kind)
            # The controller may know a later quota, or an earlier one, than this broker.
            if meter is None or quota is None or limit is None or not quota.is_shared(bucket.kind):
                continue
            meter.share = min(share, limit)
            has_changed |= self._set_rate(meter, quota, now)
        return has_changed

    def states(self, now: MonotonicMs) -> list[BucketState]:
        """Return the state of every bucket, for people."""
        return [
            BucketState(
                bucket,
                round(meter.used),
                round(meter.rate),
                round(meter.delay_ms(now)),
                round(meter.passed_in_debt_ms(now)),
            )
            for bucket, meter in self._meters.items()
        ]

    def _meter(self, found: Found, now: MonotonicMs) -> Meter:
        quota, bucket = found
        meter = self._meters.get(bucket)
        if meter is None and len(self._meters) >= self._config.buckets_max:
            self.expire(now)
            if len(self._meters) >= self._config.buckets_max:
                bucket = Bucket(quota.name, bucket.kind)
                meter = self._meters.get(bucket)
        if meter is None:
            meter = self._meters[bucket] = Meter(
                self._rate(quota, bucket.kind, None),
                paid_until=now,  # A new client has saved up nothing.
                bucket=bucket,
            )
        meter.charged_at = now  # It is about to be: the next look-up must not drop it before.
        return meter

    def _set_rate(self, meter: Meter, quota: Quota, now: MonotonicMs) -> bool:
        """Let a meter follow its quota and its share; return whether its rate has changed."""
        before, rate = meter.rate, self._rate(quota, meter.bucket.kind, meter.share)
        meter.set_rate(rate, now, self._config.throttle_ms_max)
        return rate != before

    def _rate(self, quota: Quota, kind: QuotaKind, share: float | None) -> float:
        limit = quota.limit(kind)
        assert limit is not None
        if not quota.is_shared(kind):
            return limit
        return max(_RATE_MIN, limit / self._brokers if share is None else share)

    def _drop(self, meter: Meter) -> None:
        del self._meters[meter.bucket]
        self._active.pop(meter.bucket, None)
        meter.is_dropped = True
        meter.forgive()
