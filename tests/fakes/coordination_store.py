"""A coordination store in memory, as several processes would share it, with faults."""

import threading
from collections.abc import Callable, Sequence

from tests.fakes.controller_driver import Objects

from millrace.broker.coordination.store import CoordinationUnavailableError, always
from millrace.core.controller.lease import LeaseRecord
from millrace.core.errors import MillraceError
from millrace.core.metadata.objects.stored_object import StoredObject


class MemoryStore:
    """A store whose faults are fields that a test sets.

    Attributes:
        objects: the stored objects.
        lease: the stored lease.
        writes: number of calls that wrote objects.
        outage: the error of every call on objects, while it is set.
        refusals: number of such errors.
        lease_outage: the error of every call on the lease, while it is set.
        lost_answers: number of writes to do and then report as unavailable.
        gate: writes wait until it is set.
    """

    def __init__(self, objects: Objects | None = None) -> None:
        self.objects = Objects() if objects is None else objects
        self.lease: LeaseRecord | None = None
        self.writes = 0
        self.outage: MillraceError | None = None
        self.refusals = 0
        self.lease_outage: MillraceError | None = None
        self.lost_answers = 0
        self.gate = threading.Event()
        self.gate.set()
        self.is_closed = False

    def read_all(self, keys: Sequence[str]) -> list[StoredObject | None]:
        self._fail_if_out()
        return [self.objects.get(key) for key in keys]

    def compare_and_swap_all(
        self, writes: Sequence[tuple[str, StoredObject]], may_write: Callable[[], bool] = always
    ) -> list[bool]:
        assert self.gate.wait(60)
        self._fail_if_out()
        outcomes = [may_write() and self.objects.swap(key, new) for key, new in writes]
        self.writes += any(outcomes)
        if self.lost_answers:
            self.lost_answers -= 1
            raise CoordinationUnavailableError("the answer was lost")
        return outcomes

    def read_lease(self) -> LeaseRecord | None:
        if self.lease_outage is not None:
            raise self.lease_outage
        return self.lease

    def compare_and_swap_lease(self, new: LeaseRecord) -> bool:
        if self.lease_outage is not None:
            raise self.lease_outage
        if (0 if self.lease is None else self.lease.version) != new.version - 1:
            return False
        self.lease = new
        return True

    def lease_mark(self) -> int:
        return 0 if self.lease is None else self.lease.version

    def watch_lease(self, on_change: Callable[[], None]) -> bool:
        del on_change
        return False

    def take_lease(self, holder: str) -> None:
        """Give the lease to another holder, or to none."""
        version = 1 if self.lease is None else self.lease.version + 1
        self.lease = LeaseRecord(holder=holder, address="", duration_ms=60_000, version=version)

    def close(self) -> None:
        assert not self.is_closed
        self.is_closed = True

    def _fail_if_out(self) -> None:
        assert not self.is_closed
        if self.outage is not None:
            self.refusals += 1
            raise self.outage
