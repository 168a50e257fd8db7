"""Election of the controller over one lease record of the coordination store.

The record is replaced by compare-and-swap. No candidate relies on a time in it: a candidate takes
over when it has not seen the record change for the lease's duration, by its own clock, which runs
while the machine sleeps. The holder renews well before that, and stops acting as controller when it
could not renew for the shorter renew deadline (P38).

A candidate is its broker's name, its address and its process. A broker that restarts at the same
address soon after its crash takes its lease back without waiting for the end. On one machine no
other process can listen there, and the store does not record processes. In Kubernetes an address is
a name that may move to another node, so the earlier process may live on for a while: the candidate
waits until it has missed a few renewals. Under the same name at another address the lease has to
run out. A holder that let the lease run out, or crashed, is most likely gone as a broker, too
(`Deposed`).

The lease only keeps the number of controllers at one most of the time. Safety comes from epochs and
compare-and-swap on the metadata objects (P34). Source: the election of Kubernetes' client-go.
"""

from dataclasses import dataclass, replace
from typing import Final

from millrace.core.ids import MonotonicMs

NOBODY: Final = ""

_NAMESAKE_RETRIES: Final = 3
"""Missed renewals after which the earlier process counts as gone."""
_SESSION_MS: Final = 150
"""Time in which a broker that knows the new controller opens a session and sends a heartbeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """The lease as it is stored.

    Attributes:
        holder: name of a broker; `NOBODY` when it was given back.
        address: where the holder's controller can be reached.
        duration_ms: how long others wait for a renewal.
        version: grows with every write, renewals included; 0 is not stored yet.
        incarnation: the holder's process; empty if the store does not keep it, or an earlier
            release wrote it.
        tls_address: where the holder's controller can be reached by TLS; empty: only at `address`,
            or an earlier release wrote it.
    """

    holder: str
    address: str
    duration_ms: int
    version: int
    incarnation: str = ""
    tls_address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """How the lease is held; each time is longer than the next, or as long as it at the end.

    Attributes:
        duration_ms: how long others wait for a renewal.
        renew_deadline_ms: how long the holder acts without having renewed.
        retry_ms: how often it renews.
        watch_ms: how often others look.
    """

    duration_ms: int
    renew_deadline_ms: int
    retry_ms: int
    watch_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Deposed:
    """The holder before: it let the lease run out, gave it back because it stops, or crashed.

    Most likely its broker is gone, and not only slow.

    Attributes:
        holder: its name.
        since: when the lease was taken: from then on it could find the new controller.
        grace_ms: time in which a living broker does so: it reads the lease once more, and opens a
            session.
    """

    holder: str
    since: MonotonicMs
    grace_ms: int

    def until(self, active_at: MonotonicMs, grace_ms: int) -> MonotonicMs:
        """Return by when it has sent a heartbeat, if it lives.

        Args:
            active_at: when the new controller began to take sessions.
            grace_ms: of a broken connection, the lower bound.
        """
        found_at = self.since + max(self.grace_ms, grace_ms)
        return MonotonicMs(max(found_at, active_at + _SESSION_MS))


class LeaseElection:
    """One candidate's view. The shell reads the record every `pause_ms`, and writes when told.

    Args:
        holder: the broker's name.
        address: where its controller can be reached.
        incarnation: of the process: no other one has it.
        tls_address: where its controller can be reached by TLS; empty: only at `address`.

    Attributes:
        seen: the record as it was read or written last.
        deposed: the holder before us: another broker, or an earlier process of this one; None when
            no holder is known.
    """

    def __init__(
        self,
        holder: str,
        address: str,
        times: LeaseTimes,
        incarnation: str = "",
        tls_address: str = "",
    ) -> None:
        assert holder != NOBODY
        assert times.watch_ms <= times.retry_ms < times.renew_deadline_ms < times.duration_ms
        self.times = times
        self._holder = holder
        self._address = address
        self._incarnation = incarnation
        self._tls_address = tls_address
        self.seen = LeaseRecord(holder=NOBODY, address="", duration_ms=0, version=0)
        self._seen_at = MonotonicMs(0)
        self._held_until: MonotonicMs | None = None
        self._held_before = NOBODY
        self._was_held = False
        self.deposed: Deposed | None = None

    def is_held(self, now: MonotonicMs) -> bool:
        """Whether this candidate may act as controller. To be asked before each write."""
        return self._held_until is not None and now < self._held_until

    def on_read(self, record: LeaseRecord | None, now: MonotonicMs) -> LeaseRecord | None:
        """Return the record to write with compare-and-swap on its version, if it is our turn."""
        if record is None:
            if self.seen.version:  # Deleted; its holder may act on for a while.
                self.seen, self._seen_at = replace(self.seen, version=0), now
        elif record != self.seen:  # A recreated lease may have the same version.
            self.seen, self._seen_at = record, now
            if record.holder != NOBODY:
                self._held_before = record.holder
        if not self._is_free:
            self._held_until = None  # Another candidate took it.
            if now - self._seen_at < self._patience_ms:
                return None
        return LeaseRecord(
            holder=self._holder,
            address=self._address,
            duration_ms=self.times.duration_ms,
            version=self.seen.version + 1,
            incarnation=self._incarnation,
            tls_address=self._tls_address,
        )

    @property
    def _is_free(self) -> bool:
        """Whether no other candidate holds the lease, as of the last read."""
        return self.seen.holder == NOBODY or self._is_own(self.seen)

    @property
    def _patience_ms(self) -> int:
        """How long the lease must be seen unchanged before it is taken from its holder."""
        if self._is_namesakes(self.seen):
            return min(self.seen.duration_ms, _NAMESAKE_RETRIES * self.times.retry_ms)
        return self.seen.duration_ms

    def _is_own(self, record: LeaseRecord) -> bool:
        return self._is_namesakes(record) and record.incarnation in ("", self._incarnation)

    def _is_namesakes(self, record: LeaseRecord) -> bool:
        return (record.holder, record.address) == (self._holder, self._address)

    def pause_ms(self, now: MonotonicMs) -> int:
        """Return the pause before the next read: shorter when another's lease runs out before."""
        if self._is_own(self.seen):
            return self.times.retry_ms
        left_ms = self._seen_at + self._patience_ms - now
        if self.seen.holder == NOBODY or left_ms <= 0:
            return self.times.watch_ms
        return max(1, min(self.times.watch_ms, left_ms))

    def on_written(self, record: LeaseRecord, sent_at: MonotonicMs) -> None:
        """Our write was confirmed. The lease counts from when the write was sent, not answered."""
        if not self.is_held(sent_at):
            before = self._held_before
            is_gone = before != NOBODY and (before != self._holder or not self._was_held)
            grace_ms = self.times.watch_ms + _SESSION_MS
            self.deposed = (
                Deposed(holder=before, since=sent_at, grace_ms=grace_ms) if is_gone else None
            )
        self._was_held = True
        self._held_before = self._holder
        self.seen, self._seen_at = record, sent_at
        self._held_until = MonotonicMs(sent_at + self.times.renew_deadline_ms)

    def give_back(self, record: LeaseRecord | None) -> LeaseRecord | None:
        """Stop holding the lease, which was just read; return what to write, if it is ours.

        Then no candidate has to wait for its end.
        """
        self._held_until = None
        if record is None or not self._is_own(record):
            return None
        return replace(record, holder=NOBODY, version=record.version + 1)
