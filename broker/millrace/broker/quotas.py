"""Delays the streams of clients that exceed their quotas.

`Quotas` follows the metadata and the controller's shares; `millrace.core.quotas` decides. A stream
has a `Throttle`: it charges what it has taken or sent, and waits before it goes on. So a client
that ignores the time that it is told is held back by the stream itself, and a new stream of it
waits for what the client owes (P73). A change of a quota wakes those that wait, and is told to
those whose client was told to wait (P74).

Brokers are exempt: only the services of clients have throttles (P72).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final
from weakref import WeakValueDictionary

from millrace.broker.telemetry.quotas import QuotaMetrics
from millrace.core.callers import Caller
from millrace.core.ids import MonotonicMs
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import ClusterState
from millrace.core.quotas.config import QuotasConfig
from millrace.core.quotas.meters import BucketState, Meter, Meters
from millrace.core.quotas.quota import Bucket, QuotaKind
from millrace.core.quotas.shares import BucketShare, BucketUse
from millrace.runtime.clock import monotonic_now

_OBSERVE_SECONDS: Final = 1.0


class Quotas:
    """The limiters of this broker, and the streams that wait for them. It belongs to the event
    loop.
    """

    def __init__(self, config: QuotasConfig, metrics: QuotaMetrics) -> None:
        self.meters = Meters(config)
        self._metrics = metrics
        self._cluster: ClusterState | None = None
        self._delayed: dict[Throttle, None] = {}
        # Of calls that cost time, by what and by the quota that they share.
        self._locks: WeakValueDictionary[tuple[str, Bucket], asyncio.Lock] = WeakValueDictionary()

    def on_image(self, image: MetadataImage) -> None:
        """Follow the metadata."""
        before, cluster = self._cluster, image.cluster
        if cluster is before:
            return
        self._cluster = cluster
        brokers = sum(not broker.is_fenced for broker in cluster.brokers.values())
        self.meters.on_quotas(cluster.quotas, brokers, monotonic_now())
        self._wake()

    @property
    def limits_requests(self) -> bool:
        """Whether any quota limits the time of requests."""
        return self.meters.table.has_request_quotas

    def throttle(
        self, kind: QuotaKind, caller: Caller, on_changed: Callable[[], None]
    ) -> "Throttle":
        """Return the throttle of a client's stream, which closes it at its end.

        Args:
            kind: what the stream does.
            caller: the client.
            on_changed: called when the delay may have become shorter.
        """
        return Throttle(self, kind, caller, on_changed)

    def lock(self, what: str, bucket: Bucket) -> asyncio.Lock:
        """Return what one call at a time holds, of those that share a quota."""
        found = self._locks.get((what, bucket))
        if found is None:
            found = self._locks[what, bucket] = asyncio.Lock()
        return found

    def uses(self) -> Sequence[BucketUse]:
        """Return what is used of shared quotas, for the controller."""
        return self.meters.uses(monotonic_now())

    def on_shares(self, shares: Iterable[BucketShare]) -> None:
        """Take up the controller's answer."""
        if self.meters.on_shares(shares, monotonic_now()):
            self._wake()

    def states(self) -> Sequence[BucketState]:
        """Return the use of all quotas at this broker, for people."""
        return self.meters.states(monotonic_now())

    async def run(self) -> None:
        """Show who is throttled, and forget who is gone, for as long as the broker runs."""
        while True:
            await asyncio.sleep(_OBSERVE_SECONDS)
            now = monotonic_now()
            self.meters.expire(now)
            self._metrics.on_states(self.meters.states(now))

    def add_delayed(self, throttle: "Throttle") -> None:
        """A stream is delayed: wake it when quotas or shares change."""
        self._delayed[throttle] = None

    def forget_delayed(self, throttle: "Throttle") -> None:
        """It is not delayed any more."""
        self._delayed.pop(throttle, None)

    def _wake(self) -> None:
        for throttle in list(self._delayed):  # Those that find themselves free leave it.
            throttle.on_changed()


class Throttle:
    """The delay of one stream. Made by `Quotas.throttle`, which has the arguments."""

    def __init__(
        self, quotas: Quotas, kind: QuotaKind, caller: Caller, on_changed: Callable[[], None]
    ) -> None:
        self._on_changed = on_changed
        self._changed = asyncio.Event()
        self._quotas = quotas
        self._meters = quotas.meters
        self._kind = kind
        self._caller = caller
        self._generation = 0  # Of the quotas in which the following were looked up; 0: of none.
        self._caller_meters: dict[QuotaKind, Sequence[Meter]] = {}
        self._topic_meters: dict[str, Sequence[Meter]] = {}
        self._debts: dict[Meter, float] = {}  # Until when this stream waits for each.

    @property
    def limits_requests(self) -> bool:
        """Whether any quota limits the time of requests."""
        return self._quotas.limits_requests

    def begin(self) -> None:
        """Let a new stream wait for what its client owes: another stream is no way around that."""
        self.charge(0)
        self.charge_time(0)

    @property
    def bucket(self) -> Bucket | None:
        """The quota that calls of this kind share; None: there is none."""
        meters = self._of_caller(self._kind, monotonic_now())
        return meters[0].bucket if meters else None

    def has_to_wait(self, what: str) -> bool:
        """Return whether it owes something, or another one is `alone`."""
        bucket = self.bucket
        return bucket is not None and (
            self.delay_ms() > 0 or self._quotas.lock(what, bucket).locked()
        )

    @asynccontextmanager
    async def alone(self, what: str) -> AsyncIterator[None]:
        """Hold up other calls whose clients share a quota with this one, if there is one."""
        bucket = self.bucket
        if bucket is None:
            yield
            return
        async with self._quotas.lock(what, bucket):
            yield

    async def in_turn(self) -> None:
        """Begin after other calls that owe time to the same quota, and let others go between."""
        if self.delay_ms():
            async with self.alone("begin"):
                await asyncio.sleep(0)

    def charge(self, size: int) -> None:
        """Charge bytes to the client."""
        if self._meters.table.has_caller_quotas:
            self._charge_caller(self._kind, size)

    def charge_time(self, nanoseconds: int) -> None:
        """Charge time of the processor to the client."""
        if self._meters.table.has_request_quotas:
            self._charge_caller(QuotaKind.REQUEST, nanoseconds // 1000)

    def charge_topic(self, topic: str, size: int) -> None:
        """Charge bytes to a topic and its namespace, for all clients together."""
        if not self._meters.table.has_topic_quotas:
            return
        now = monotonic_now()
        self._follow()
        self._charge(self._of_topic(topic, now), size, now)

    def delay_ms(self) -> int:
        """Return how long the stream has to wait; 0: not at all."""
        if not self._debts:
            return 0
        self._follow()
        now = monotonic_now()
        # What is told was reserved by this stream; a later quota may have shortened the whole debt.
        left = {
            meter: until
            for meter, until in self._debts.items()
            if min(until, meter.paid_until) > now
        }
        self._debts = left
        if not left:
            self._quotas.forget_delayed(self)
            return 0
        return round(max(min(until, meter.paid_until) for meter, until in left.items()) - now) or 1

    async def wait(self) -> None:
        """Wait until the stream may go on."""
        while (delay_ms := self.delay_ms()) > 0:
            self._changed.clear()
            timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._changed.set)
            try:
                await self._changed.wait()
            finally:
                timer.cancel()

    def on_changed(self) -> None:
        """A quota or a share has changed."""
        self._changed.set()
        self._on_changed()

    def close(self) -> None:
        """The stream has ended; what it owes stays with its client."""
        self._debts = {}
        self._quotas.forget_delayed(self)

    def _charge_caller(self, kind: QuotaKind, amount: int) -> None:
        now = monotonic_now()
        self._follow()
        self._charge(self._of_caller(kind, now), amount, now)

    def _follow(self) -> None:
        """Look quotas up again if they have changed: one that does not count delays no more."""
        if self._generation != self._meters.generation:
            self._generation = self._meters.generation
            kinds, topics = list(self._caller_meters), list(self._topic_meters)
            self._caller_meters.clear()
            self._topic_meters.clear()
            if self._debts:
                now = monotonic_now()
                counted = {
                    meter
                    for found in (
                        *(self._of_caller(kind, now) for kind in kinds),
                        *(self._of_topic(topic, now) for topic in topics),
                    )
                    for meter in found
                }
                self._debts = {
                    meter: till for meter, till in self._debts.items() if meter in counted
                }

    def _of_caller(self, kind: QuotaKind, now: MonotonicMs) -> Sequence[Meter]:
        found = self._caller_meters.get(kind)
        if found is None or any(meter.is_dropped for meter in found):
            caller = self._caller
            found = self._caller_meters[kind] = self._meters.caller(
                kind, caller.principal, caller.client_id, now
            )
        return found

    def _of_topic(self, topic: str, now: MonotonicMs) -> Sequence[Meter]:
        found = self._topic_meters.get(topic)
        if found is None or any(meter.is_dropped for meter in found):
            found = self._topic_meters[topic] = self._meters.topic(self._kind, topic, now)
        return found

    def _charge(self, meters: Sequence[Meter], size: int, now: MonotonicMs) -> None:
        for meter in meters:
            until = self._meters.charge(meter, size, now)
            if until > now:
                self._debts[meter] = until
                self._quotas.add_delayed(self)
