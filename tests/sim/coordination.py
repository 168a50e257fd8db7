"""The coordination store as brokers meet it: over a network, late, throttled, answers lost.

The semantics are those of `CoordinationStore` (objects by version and controller epoch, a lease,
waiting for changes). Every call is two messages. A call may fail before it was done, be done and
its answer lost, be done after the caller gave up, or not be answered for an outage. What the caller
hears then is `CoordinationUnavailableError`, which says nothing about whether it was done.

Somebody may also delete objects, steal the lease, or restore all of it to an earlier revision.

Reads of objects are never stale, because neither real store serves them from a cache; news of
changes may be late, doubled, and name objects that did not change.
"""

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from tests.sim.network import Link, Network, NetworkEvent
from tests.sim.world import MILLISECOND, SECOND, Event, Micros, Violation, World

from millrace.broker.coordination.store import (
    BEGINNING,
    CoordinationUnavailableError,
    Revision,
    StoreChanges,
)
from millrace.core.metadata.lease import NOBODY, LeaseRecord
from millrace.core.metadata.stored import StoredObject

NAME: Final = "coordination"

Answered = Callable[[object], None]
"""Is given the method's result, or `CoordinationUnavailableError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreWeather:
    """How the store behaves.

    Attributes:
        service_us: how long it works on one call; calls are done one after another.
        refusals: share of calls that it throttles: not done, and said so.
        lost_answers: share of calls that are done without an answer.
        late_calls: share that are done only after the caller gave up.
        repeated_calls: share that the transport sends twice; the caller hears the second answer,
            which for a write that was done is a refusal.
        false_conflicts: share of writes that are refused though nobody wrote: something that is no
            part of the object had changed.
        news_delay_us: how late waiters hear of changes.
        repeats_news: whether they are also told of what they know.
        is_out: nothing is done or answered.
    """

    service_us: int = 500
    refusals: float = 0.0
    lost_answers: float = 0.0
    late_calls: float = 0.0
    repeated_calls: float = 0.0
    false_conflicts: float = 0.0
    news_delay_us: int = 0
    repeats_news: bool = False
    is_out: bool = False


class Written(NamedTuple):
    """One write that was done, for checkers."""

    at: Micros
    key: str
    stored: StoredObject
    writer: str


@dataclass(slots=True)
class _Waiter:
    since: int
    answer: Callable[[object], None]
    timeout: Event | None = None
    is_told: bool = False


class SimulatedStore:
    """See the module.

    Attributes:
        weather: replaced by faults.
        objects: what is stored.
        lease: as it is stored.
        writes: every write of an object that was done, oldest first.
        timeout_us: when callers give up.
        checks_writers: whether only the holder of the lease may try to write, as is so while clocks
            are sound and nobody steals the lease (P38).
    """

    name = NAME
    is_powered = True
    is_listening = True

    def __init__(self, world: World, network: Network) -> None:
        self.world = world
        self.weather = StoreWeather()
        self.objects: dict[str, StoredObject] = {}
        self.lease: LeaseRecord | None = None
        self.writes: list[Written] = []
        self.timeout_us = SECOND
        self.checks_writers = False
        self.dice = world.random(NAME)
        self.network = network
        self._revision = 0
        self._changes: list[tuple[int, str]] = []  # Ascending by revision.
        self._undo: list[tuple[int, str, StoredObject | None]] = []
        self._waiters: list[_Waiter] = []
        self._busy_until = 0
        network.attach(self)

    def handle(self, owner: str, guard: Callable[[Answered], Answered]) -> "StoreHandle":
        """Return the store as one machine sees it.

        Args:
            owner: the machine's name.
            guard: makes of what a process wants called what may be called at any time, such as
                after the process ended.
        """
        return StoreHandle(self, owner, guard)

    def deliver(self, event: NetworkEvent) -> None:
        """The store talks through handles only."""

    # --- What others do to it ----------------------------------------------------------------

    @property
    def revision(self) -> int:
        return self._revision

    def delete(self, key: str) -> None:
        """Remove an object behind everybody's back."""
        self._put(key, None)

    def restore(self, revision: int) -> None:
        """Put every object back to what it was at a revision, as from a backup."""
        while self._undo and self._undo[-1][0] > revision:
            _, key, old = self._undo.pop()
            if old is None:
                self.objects.pop(key, None)
            else:
                self.objects[key] = old
        del self._changes[bisect.bisect_right(self._changes, (revision, "\uffff")) :]
        self._revision = min(revision, self._revision)

    def steal_lease(self, holder: str = NOBODY, address: str = "") -> None:
        """Let somebody write another holder into the lease."""
        if self.lease is not None:
            self.lease = replace(
                self.lease, holder=holder, address=address, version=self.lease.version + 1
            )

    def delete_lease(self) -> None:
        """Remove the lease, versions and all."""
        self.lease = None

    # --- The calls ---------------------------------------------------------------------------

    def read_all(self, keys: Sequence[str]) -> list[StoredObject | None]:
        return [self.objects.get(key) for key in keys]

    def compare_and_swap_all(
        self, writes: Sequence[tuple[str, StoredObject]], writer: str = ""
    ) -> list[bool]:
        return [self._swap(key, new, writer) for key, new in writes]

    def keys(self, prefix: str) -> list[str]:
        return sorted(key for key in self.objects if key.startswith(prefix))

    def read_lease(self) -> LeaseRecord | None:
        return self.lease

    def compare_and_swap_lease(self, new: LeaseRecord) -> bool:
        if (0 if self.lease is None else self.lease.version) != new.version - 1:
            return False
        self.lease = new
        return True

    def wait(self, since: Revision, timeout_ms: int, answer: Callable[[object], None]) -> None:
        """Answer when something was written after `since`, or at the time-out."""
        waiter = _Waiter(int(since or 0), answer)
        if self._revision != waiter.since:
            self._tell_soon(waiter)
            return
        self._waiters.append(waiter)
        waiter.timeout = self.world.after(
            timeout_ms * MILLISECOND, f"{NAME} waited", self._tell, waiter
        )

    # --- How calls are done ------------------------------------------------------------------

    def arrive(self, call: "Call") -> None:
        """A call reached the store; it waits for the ones before it."""
        weather, dice = self.weather, self.dice
        if weather.is_out:
            return
        if weather.refusals and dice.random() < weather.refusals:
            call.answer(CoordinationUnavailableError("the store is throttled"))
            return
        start = max(self._busy_until, self.world.now)
        self._busy_until = start + weather.service_us
        if weather.late_calls and dice.random() < weather.late_calls:
            late = start + self.timeout_us + dice.randrange(5 * SECOND)
            self.world.at(late, f"{NAME} does late", self._do, call)
        else:
            self.world.at(self._busy_until, f"{NAME} does", self._do, call)

    def _do(self, call: "Call") -> None:
        weather, dice = self.weather, self.dice
        if call.is_write and weather.false_conflicts and dice.random() < weather.false_conflicts:
            result: object = call.refusal
        elif call.wait is not None:
            call.wait(call.answer)
            return
        else:
            result = call.method()
            if weather.repeated_calls and dice.random() < weather.repeated_calls:
                result = call.method()
        if not (weather.lost_answers and dice.random() < weather.lost_answers):
            call.answer(result)

    def _swap(self, key: str, new: StoredObject, writer: str) -> bool:
        old = self.objects.get(key)
        if (0 if old is None else old.version) != new.version - 1:
            return False
        if old is not None and old.controller_epoch > new.controller_epoch:
            return False  # P36
        self._put(key, new)
        self.writes.append(Written(self.world.now, key, new, writer))
        return True

    def _put(self, key: str, new: StoredObject | None) -> None:
        self._revision += 1
        self._undo.append((self._revision, key, self.objects.get(key)))
        self._changes.append((self._revision, key))
        if new is None:
            self.objects.pop(key, None)
        else:
            self.objects[key] = new
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            self._tell_soon(waiter)

    def _tell_soon(self, waiter: _Waiter) -> None:
        self.world.after(self.weather.news_delay_us, f"{NAME} news", self._tell, waiter)

    def _tell(self, waiter: _Waiter) -> None:
        if waiter.is_told:
            return
        waiter.is_told = True
        if waiter.timeout is not None:
            waiter.timeout.cancel()
        self._waiters = [other for other in self._waiters if other is not waiter]
        if waiter.since > self._revision or self.weather.repeats_news:
            changed = list(self.objects)  # It knows of what never was: it has to look at all.
        else:
            begin = bisect.bisect_right(self._changes, (waiter.since, "\uffff"))
            changed = [key for _, key in self._changes[begin:]]
        revision = Revision(str(self._revision)) if self._revision else BEGINNING
        waiter.answer(StoreChanges(revision, tuple(dict.fromkeys(changed))))


@dataclass(slots=True)
class Call:
    """One call on its way."""

    method: Callable[[], object]
    answer: Callable[[object], None]
    is_write: bool = False
    refusal: object = None
    wait: Callable[[Callable[[object], None]], None] | None = None


class StoreHandle:
    """The methods of `CoordinationStore`; each answer comes later, and once."""

    def __init__(
        self, store: SimulatedStore, owner: str, guard: Callable[[Answered], Answered]
    ) -> None:
        self._store = store
        self._owner = owner
        self._world = store.world
        self._guard = guard
        self._there = store.network.link(owner, NAME)
        self._back = store.network.link(NAME, owner)

    def read_all(self, keys: Sequence[str], answered: Answered) -> None:
        keys = tuple(keys)
        self._call(answered, lambda: self._store.read_all(keys))

    def compare_and_swap_all(
        self, writes: Sequence[tuple[str, StoredObject]], answered: Answered
    ) -> None:
        writes = tuple(writes)
        lease = self._store.lease
        if self._store.checks_writers and (lease is None or lease.holder != self._owner):
            raise Violation(f"{self._owner} writes, and the lease is {lease}")
        self._call(
            answered,
            lambda: self._store.compare_and_swap_all(writes, self._owner),
            is_write=True,
            refusal=[False] * len(writes),
        )

    def keys(self, prefix: str, answered: Answered) -> None:
        self._call(answered, lambda: self._store.keys(prefix))

    def read_lease(self, answered: Answered) -> None:
        self._call(answered, self._store.read_lease)

    def compare_and_swap_lease(self, new: LeaseRecord, answered: Answered) -> None:
        self._call(
            answered,
            lambda: self._store.compare_and_swap_lease(new),
            is_write=True,
            refusal=False,
        )

    def wait_for_changes(self, since: Revision, timeout_ms: int, answered: Answered) -> None:
        self._call(
            answered,
            lambda: None,
            wait=lambda answer: self._store.wait(since, timeout_ms, answer),
            patience_us=timeout_ms * MILLISECOND,
        )

    def _call(
        self,
        answered: Answered,
        method: Callable[[], object],
        *,
        is_write: bool = False,
        refusal: object = None,
        wait: Callable[[Callable[[object], None]], None] | None = None,
        patience_us: int = 0,
    ) -> None:
        """Send a call; answer once, at the latest with the time-out."""
        is_open = True
        answered = self._guard(answered)

        def conclude(result: object) -> None:
            nonlocal is_open
            if is_open:
                is_open = False
                timeout.cancel()
                answered(result)

        def send_back(result: object) -> None:
            self._carry(self._back, conclude, result)

        timeout = self._world.after(
            self._store.timeout_us + patience_us,
            f"{NAME} gives no answer",
            conclude,
            CoordinationUnavailableError("the store did not answer in time"),
        )
        call = Call(method, send_back, is_write, refusal, wait)
        self._carry(self._there, self._store.arrive, call)

    def _carry(self, link: Link, arrive: Callable[..., object], what: object) -> None:
        """Calls go over TCP: loss costs time, a cut costs the call."""
        if link.is_held:
            return
        delay = link.delay()
        while link.weather.loss and link.dice.random() < link.weather.loss:
            delay += 200 * MILLISECOND
        self._world.after(delay, link.label, arrive, what)
