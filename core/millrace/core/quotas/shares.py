"""How the controller divides the limits of the cluster among the brokers, by demand.

Each broker reports with its heartbeats what it uses of each shared bucket, and gets its share with
the answer. The shares of one bucket together are its limit, never more (P73). A broker that uses
less than its share gets that and a little more; what is left goes in equal parts to those that
would use more (max-min fairness). So the parts of brokers without demand are not lost to the
others, and a broker whose demand grows gets its part with its next heartbeat.

A round divides a limit once, for all brokers. Each broker takes its share once in a round. The
first broker that asks a second time begins the next round, which uses all reports since. A round
also begins when a broker starts or stops to want more, and when the limit or the brokers change.

A broker that has not reported to this controller yet keeps the share that it had; an equal part is
kept for it. So it is with a bucket that comes into use, until each broker has reported since: when
clients begin at several brokers, the first report would else get the parts that others use already.
Nothing of this is stored: a new controller hears the reports again.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from millrace.core.ids import BrokerId
from millrace.core.quotas.quota import Bucket, Quota

_HEADROOM: Final = 1.04
"""What a broker gets of what it uses: room to notice that it would use more."""
_LEAST_PART: Final = 0.005
"""The part of a limit that all brokers together get without any use."""


class BucketUse(NamedTuple):
    """The use of a bucket at one broker.

    Attributes:
        bytes_per_second: used, averaged over about a second.
        is_saturated: it is in debt much of the time: it would use more.
    """

    bucket: Bucket
    bytes_per_second: int
    is_saturated: bool


class BucketShare(NamedTuple):
    """A broker's share of a bucket that is shared by all brokers."""

    bucket: Bucket
    bytes_per_second: int


class Demand(NamedTuple):
    """What a broker wants of a bucket.

    Attributes:
        bytes_per_second: that it uses.
        is_saturated: it would use more, and nobody knows how much.
    """

    bytes_per_second: int
    is_saturated: bool


def divided(limit: int, demands: Mapping[BrokerId, Demand], brokers: int) -> dict[BrokerId, int]:
    """Divide a limit among brokers.

    Args:
        limit: in bytes a second.
        demands: of the brokers that want something.
        brokers: how many are to share the limit in equal parts where there is no demand; at least
            as many as there are demands. Those without one get nothing.
    """
    least = limit * _LEAST_PART / brokers
    wanted = {
        broker: float(limit)
        if demand.is_saturated
        else min(limit, demand.bytes_per_second * _HEADROOM + least)
        for broker, demand in demands.items()
    }
    left = limit - sum(wanted.values())
    if left >= 0:  # The usual case, without a sort.
        return {broker: int(share + left / len(wanted)) for broker, share in wanted.items()}
    left = float(limit)
    shares: dict[BrokerId, float] = {}
    for waiting, broker in zip(
        range(len(wanted), 0, -1),
        sorted(wanted, key=lambda broker: (wanted[broker], broker)),
        strict=True,
    ):
        shares[broker] = min(wanted[broker], left / waiting)
        left -= shares[broker]
    return {broker: int(share + left / len(shares)) for broker, share in shares.items()}


class _Division(NamedTuple):
    limit: int
    brokers: int
    untaken: dict[BrokerId, int]


class QuotaShares:
    """The demands that brokers report, and their shares. Its size is bounded by the number of
    brokers, and by what each may report.
    """

    def __init__(self) -> None:
        self._reported: dict[BrokerId, dict[Bucket, None]] = {}
        self._reports = 0
        self._reported_at: dict[BrokerId, int] = {}  # The number of each broker's last report.
        self._begun_at: dict[Bucket, int] = {}  # The number of the first report of a bucket.
        self._demands: dict[Bucket, dict[BrokerId, Demand]] = {}
        self._divisions: dict[Bucket, _Division] = {}

    @property
    def has_demand(self) -> bool:
        """Whether any broker uses anything, as far as it is known here."""
        return bool(self._demands)

    def on_report(self, broker_id: BrokerId, uses: Iterable[BucketUse]) -> None:
        """A living broker reports all that it uses."""
        before = self._reported.get(broker_id, {})
        reported = self._reported[broker_id] = {}
        self._reports += 1
        self._reported_at[broker_id] = self._reports
        for bucket, used, is_saturated in uses:
            reported[bucket] = None
            self._begun_at.setdefault(bucket, self._reports)
            demands = self._demands.setdefault(bucket, {})
            known = demands.get(broker_id)
            if known is None or known.is_saturated != is_saturated:
                self._divisions.pop(bucket, None)
            demands[broker_id] = Demand(used, is_saturated)
        self._forget(broker_id, before.keys() - reported.keys())

    def keep_only(self, living: Iterable[BrokerId]) -> None:
        """Forget all other brokers: they are gone, and others may have their parts."""
        living = {*living}
        for broker_id in [broker for broker in self._reported if broker not in living]:
            self._forget(broker_id, self._reported.pop(broker_id))
            del self._reported_at[broker_id]

    def shares_of(
        self, broker_id: BrokerId, quotas: Mapping[str, Quota], living: Sequence[BrokerId]
    ) -> list[BucketShare]:
        """Return a broker's shares of what it has reported.

        Args:
            broker_id: of the broker.
            quotas: by name.
            living: all brokers that serve clients.
        """
        count = len({broker_id, *living})
        reported_at = sorted(self._reported_at.get(broker, 0) for broker in {broker_id, *living})
        shares = []
        for bucket in self._reported.get(broker_id, ()):
            quota = quotas.get(bucket.quota)
            limit = None if quota is None else quota.limit(bucket.kind)
            if quota is not None and limit is not None and quota.is_shared(bucket.kind):
                silent = bisect_left(reported_at, self._begun_at[bucket])
                heard = limit - limit * silent // count
                shares.append(BucketShare(bucket, self._share(bucket, broker_id, heard, count)))
        return shares

    def _share(self, bucket: Bucket, broker_id: BrokerId, limit: int, brokers: int) -> int:
        division = self._divisions.get(bucket)
        if (
            division is None
            or division.limit != limit
            or division.brokers != brokers
            or broker_id not in division.untaken
        ):
            shares = divided(limit, self._demands[bucket], brokers)
            division = self._divisions[bucket] = _Division(limit, brokers, shares)
        return division.untaken.pop(broker_id)

    def _forget(self, broker_id: BrokerId, buckets: Iterable[Bucket]) -> None:
        for bucket in buckets:
            self._divisions.pop(bucket, None)
            demands = self._demands[bucket]
            del demands[broker_id]
            if not demands:
                del self._demands[bucket], self._begun_at[bucket]
