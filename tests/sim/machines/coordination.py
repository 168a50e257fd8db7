"""The coordination store as brokers see it: behind a network, late, throttled, losing answers.

The semantics are those of `CoordinationStore`: objects with a version and a controller epoch, a
lease, and a hint that the lease has changed. Every call is two messages. A call may fail before the
store does it. The store may do it and lose the answer, do it after the caller timed out, or not
answer during an outage. In all these cases the caller gets `CoordinationUnavailableError`, which
does not say whether the store did it.

A fault may also delete objects, steal the lease, or restore all objects to an earlier revision.

Reads are never stale, because neither real store serves them from a cache.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple

from tests.sim.machines.network import Link, Network
from tests.sim.machines.threads import SimulatedThread
from tests.sim.world import MILLISECOND, SECOND, Micros, Violation, World

from millrace.broker.coordination.store import CoordinationUnavailableError, always
from millrace.core.controller.lease import NOBODY, LeaseRecord
from millrace.core.metadata.objects.stored_object import StoredObject

NAME: Final = "coordination"

Answered = Callable[[object], None]
"""Gets the method's result, or `CoordinationUnavailableError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreWeather:
    """How the store behaves.

    Attributes:
        service_us: how long one call takes; the store does calls one after another.
        refusals: share of calls that it throttles: it refuses them, and says so.
        lost_answers: share of calls that it does without an answer.
        late_calls: share that it does only after the caller timed out.
        repeated_calls: share that the transport sends twice; the caller gets the second answer,
            which is a refusal if the first one wrote.
        false_conflicts: share of writes that it refuses without any other write: something outside
            the object had changed.
        is_out: it does nothing and answers nothing.
    """

    service_us: int = 500
    refusals: float = 0.0
    lost_answers: float = 0.0
    late_calls: float = 0.0
    repeated_calls: float = 0.0
    false_conflicts: float = 0.0
    is_out: bool = False


class Written(NamedTuple):
    """One applied write, for checkers."""

    at: Micros
    key: str
    stored: StoredObject
    writer: str


class SimulatedStore:
    """The store, and the messages to and from it.

    Attributes:
        weather: replaced by faults.
        objects: the stored objects.
        lease: the stored lease.
        writes: every applied write of an object, oldest first.
        timeout_us: when callers give up.
        was_set_back: whether a fault deleted objects, or replaced them by older ones.
        refused: the machines that refused to continue from the stored state, and why.
        checks_writers: whether only the holder of the lease may write (P38). This holds while
            clocks are sound and no fault steals the lease.
    """

    name = NAME
    is_powered = True
    is_frozen = False

    def __init__(self, world: World, network: Network) -> None:
        self.world = world
        self.weather = StoreWeather()
        self.objects: dict[str, StoredObject] = {}
        self._lease: LeaseRecord | None = None
        self._watches: dict[str, Callable[[], None]] = {}
        self.writes: list[Written] = []
        self.timeout_us = SECOND
        self.checks_writers = False
        self.was_set_back = False
        self.refused: list[tuple[str, str]] = []
        self.dice = world.random(NAME)
        self.network = network
        self._revision = 0
        self._undo: list[tuple[int, str, StoredObject | None]] = []
        self._times_set_back = 0
        # While it is set back: the newest object of each key, and what replaced it.
        self._newest: dict[str, tuple[StoredObject, StoredObject | None]] = {}
        self._busy_until = 0
        network.attach(self)

    @property
    def lease(self) -> LeaseRecord | None:
        return self._lease

    @lease.setter
    def lease(self, lease: LeaseRecord | None) -> None:
        self._lease = lease
        for changed in list(self._watches.values()):
            changed()

    def watch(self, owner: str, on_change: Callable[[], None]) -> None:
        """Call this after each change of the lease while the owner can be reached, and none of the
        owner's earlier watches."""
        link = self.network.link(NAME, owner)

        def changed() -> None:
            if not (self.weather.is_out or link.is_held):
                self.world.after(link.delay(), link.label, on_change)

        self._watches[owner] = changed

    # --- What others do to it ----------------------------------------------------------------

    @property
    def revision(self) -> int:
        return self._revision

    def delete(self, key: str) -> None:
        """Remove an object without telling any broker, until `mend`."""
        older = dict(self.objects)
        del older[key]
        self._set_back(older)
        self._put(key, None)

    def restore(self, revision: int) -> None:
        """Restore every object to an earlier revision, as from a backup, until `mend`."""
        older = dict(self.objects)
        while self._undo and self._undo[-1][0] > revision:
            _, key, old = self._undo.pop()
            if old is None:
                older.pop(key, None)
            else:
                older[key] = old
        self._set_back(older)
        self.objects = older
        self._revision = min(revision, self._revision)

    def mend(self) -> None:
        """Undo one `delete` or `restore`; the last one restores the newest state of all objects."""
        self._times_set_back -= 1
        if self._times_set_back:
            return
        newest, self._newest = self._newest, {}
        for key, (stored, older) in newest.items():
            if self.objects.get(key) != older:
                raise Violation(f"somebody went on from an older state of {key!r}: P39")
            if stored != older:
                self._put(key, stored)

    def _set_back(self, older: Mapping[str, StoredObject]) -> None:
        """Remember what is lost, and check that no write was based on an earlier loss."""
        self.was_set_back = True
        self._times_set_back += 1
        for key, stored in self.objects.items():
            if older.get(key) != stored:
                self._newest.setdefault(key, (stored, stored))
        for key, (stored, before) in self._newest.items():
            if self.objects.get(key) != before:
                raise Violation(f"somebody went on from an older state of {key!r}: P39")
            self._newest[key] = stored, older.get(key)

    def steal_lease(self, holder: str = NOBODY, address: str = "") -> None:
        """Let a fault write another holder into the lease."""
        if self.lease is not None:
            self.lease = replace(
                self.lease, holder=holder, address=address, version=self.lease.version + 1
            )

    def delete_lease(self) -> None:
        """Remove the lease and its version."""
        self.lease = None

    # --- The calls ---------------------------------------------------------------------------

    def swap_lease(self, new: LeaseRecord) -> bool:
        """Replace the version of the lease before; False when another one is stored."""
        if (0 if self.lease is None else self.lease.version) != new.version - 1:
            return False
        self.lease = new
        return True

    def on_refused(self, owner: str, reason: str) -> None:
        """Note that a machine refuses to be the controller of the stored state."""
        if not self.was_set_back:
            raise Violation(f"{owner} refuses a sound store: {reason}")
        self.world.note(f"{owner} refuses the store: {reason}")
        self.refused.append((owner, reason))

    # --- How calls are done ------------------------------------------------------------------

    def arrive(self, call: "Call") -> None:
        """Queue a call that has reached the store after those before it."""
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
        if (
            call.refusal is not None
            and weather.false_conflicts
            and dice.random() < weather.false_conflicts
        ):
            result: object = call.refusal
        else:
            result = call.method()
            if weather.repeated_calls and dice.random() < weather.repeated_calls:
                result = call.method()
        if not (weather.lost_answers and dice.random() < weather.lost_answers):
            call.answer(result)

    def swap(self, key: str, new: StoredObject, writer: str) -> bool:
        """Replace the version of an object before; False when another one is stored."""
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
        if new is None:
            self.objects.pop(key, None)
        else:
            self.objects[key] = new


@dataclass(slots=True)
class Call:
    """One call in flight."""

    method: Callable[[], object]
    answer: Callable[[object], None]
    refusal: object = None


class StoreHandle:
    """The calls of one machine; each gets exactly one answer, later."""

    def __init__(self, store: SimulatedStore, owner: str) -> None:
        self._store = store
        self._owner = owner
        self._world = store.world
        self._there = store.network.link(owner, NAME)
        self._back = store.network.link(NAME, owner)

    def check_writer(self) -> None:
        """Judge that only the holder of the lease tries to write objects (P38)."""
        lease = self._store.lease
        if self._store.checks_writers and (lease is None or lease.holder != self._owner):
            raise Violation(f"{self._owner} writes, and the lease is {lease}")

    def call(
        self,
        answered: Answered,
        method: Callable[[], object],
        *,
        refusal: object = None,
    ) -> None:
        """Send a call; answer once, at the latest after the time-out.

        Args:
            refusal: the answer to a write that was not done; None: the call only reads.
        """
        is_open = True

        def conclude(result: object) -> None:
            nonlocal is_open
            if is_open:
                is_open = False
                timeout.cancel()
                answered(result)

        def send_back(result: object) -> None:
            self._carry(self._back, conclude, result)

        timeout = self._world.after(
            self._store.timeout_us,
            f"{NAME} gives no answer",
            conclude,
            CoordinationUnavailableError("the store did not answer in time"),
        )
        call = Call(method, send_back, refusal)
        self._carry(self._there, self._store.arrive, call)

    def _carry(self, link: Link, arrive: Callable[..., object], what: object) -> None:
        """Send over TCP: loss costs time, and a cut link costs the call."""
        if link.is_held:
            return
        delay = link.delay()
        while link.weather.loss and link.dice.random() < link.weather.loss:
            delay += 200 * MILLISECOND
        self._world.after(delay, link.label, arrive, what)


class BlockingStore:
    """One process's blocking connection to the store; implements `CoordinationStore`."""

    def __init__(self, store: SimulatedStore, owner: str) -> None:
        self._store = store
        self._owner = owner
        self._handle = StoreHandle(store, owner)

    def read_all(self, keys: Sequence[str]) -> list[StoredObject | None]:
        found: list[StoredObject | None] = self._call(
            lambda: [self._store.objects.get(key) for key in keys]
        )
        return found

    def compare_and_swap_all(
        self, writes: Sequence[tuple[str, StoredObject]], may_write: Callable[[], bool] = always
    ) -> list[bool]:
        return [may_write() and self._write(key, new) for key, new in writes]

    def _write(self, key: str, new: StoredObject) -> bool:
        self._handle.check_writer()
        swap = partial(self._store.swap, key, new, self._owner)
        return bool(self._call(swap, refusal=False))

    def read_lease(self) -> LeaseRecord | None:
        record: LeaseRecord | None = self._call(lambda: self._store.lease)
        return record

    def compare_and_swap_lease(self, new: LeaseRecord) -> bool:
        return bool(self._call(partial(self._store.swap_lease, new), refusal=False))

    def _call(self, method: Callable[[], object], refusal: object = None) -> Any:
        return wait_for_answer(partial(self._handle.call, method=method, refusal=refusal))

    def lease_mark(self) -> int:
        # As a watch would say; a watch is silent while the store cannot be reached.
        if self._store.weather.is_out or self._store.network.link(NAME, self._owner).is_held:
            return -1
        return 0 if self._store.lease is None else self._store.lease.version

    def watch_lease(self, on_change: Callable[[], None]) -> bool:
        self._store.watch(self._owner, on_change)
        return True

    def close(self) -> None:
        """Do nothing: other processes use the store."""


def wait_for_answer(call: Callable[[Answered], object]) -> Any:
    """Make a call, and let the running thread wait for its answer.

    Raises:
        CoordinationUnavailableError: it is the answer.
    """
    thread = SimulatedThread.current
    assert thread is not None, "an event loop must not wait for the store"
    answers: list[object] = []

    def answered(answer: object) -> None:
        answers.append(answer)
        thread.wake_after(0, wait)

    wait = thread.begin_wait()
    call(answered)
    while not answers:
        wait = thread.begin_wait()
        thread.wait()
    if isinstance(answers[0], CoordinationUnavailableError):
        raise answers[0]
    return answers[0]
