"""Runs the controller machine: elects it, and performs its effects.

All of it belongs to the event loop; the store is called in threads, and one of them keeps the lease
independently of a busy loop. The lease decides whether there is a machine: a new lease brings a new
machine, a lost lease ends the machine, but never the process. A store that fails ends the process:
`on_failure` is called.

The content of a store may be unusable: damaged, gone, set back to an older state, or of another
cluster. Then the broker does not start. A running broker goes on with the metadata it has, as while
the store is away (P40): it keeps the lease, so that no controller acts, gives the reason in its
answers, and reads the store again now and then. Reading writes nothing.

Every broker runs one of these, and most have no machine: they only know the controller's address.
The decisions of a machine go to its observer, which sends them to the brokers.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar

from millrace.broker import events
from millrace.broker.controller.lease_keeper import LeaseKeeper
from millrace.broker.controller.reports import log_report
from millrace.broker.coordination.store import (
    CoordinationObjectTooLargeError,
    CoordinationStore,
    CoordinationUnavailableError,
)
from millrace.core.controller.controller import Controller, Phase, no_controller
from millrace.core.controller.effects import (
    AskLogEnds,
    Effect,
    PublishImage,
    ReadObject,
    Resigned,
    Respond,
    WriteObject,
)
from millrace.core.controller.lease import NOBODY, LeaseElection, LeaseTimes
from millrace.core.errors import InvalidConfigError, MillraceError, NotControllerError
from millrace.core.ids import TOPIC_ID_BYTES, ControllerEpoch, MonotonicMs, TopicId
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import BrokerLife
from millrace.core.metadata.objects.store_versions import (
    NOTHING_SEEN,
    RememberedVersions,
    StoreVersions,
)
from millrace.core.metadata.objects.stored_object import CorruptMetadataError, StoredObject
from millrace.core.metadata.requests import Request
from millrace.runtime import host
from millrace.runtime.clock import monotonic_now

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

_CLUSTER_ID_BYTES: Final = 16
_INCARNATION_BYTES: Final = 8
_UNUSABLE: Final = (CorruptMetadataError, InvalidConfigError, CoordinationObjectTooLargeError)
"""Errors of a store that stay until an operator repairs it."""


class Observer(Protocol):
    """Sends the machine's news to the brokers. Called on the event loop, in order."""

    def on_published(self, objects: Mapping[str, StoredObject]) -> None:
        """These objects are new; answers that rest on them follow."""

    def on_ask_log_ends(self, effect: AskLogEnds) -> None:
        """The controller has a question to a broker."""

    def on_resigned(self) -> None:
        """This broker is no longer the controller."""


async def _keep_nothing(seen: StoreVersions) -> None:
    pass


class ControllerShell:
    """This broker's part in the election, and its machine while it holds the lease.

    Args:
        store: closed by `stop`.
        name: this broker's stable name, under which it holds the lease.
        address: `host:port` of its replica listener, where its controller can be reached.
        tls_address: likewise, by TLS; empty: only there.
        observer: of its machine.
        known_cluster_id: the cluster that the log directories belong to; None when they are new.
        seen: the versions of the store that they remember.
        seen_here: returns the versions that this broker's metadata cache has seen.
        keep_seen_elsewhere: stores there what another broker has seen, and this one has not.
        on_failure: called once when the process must end: the store is damaged, or there is a bug.

    Attributes:
        config: the settings of its machine.
    """

    def __init__(
        self,
        config: ClusterConfig,
        store: CoordinationStore,
        times: LeaseTimes,
        *,
        name: str,
        address: str,
        tls_address: str = "",
        observer: Observer,
        known_cluster_id: str | None = None,
        seen: StoreVersions = NOTHING_SEEN,
        seen_here: Callable[[], StoreVersions] = lambda: NOTHING_SEEN,
        keep_seen_elsewhere: Callable[[StoreVersions], Coroutine[Any, Any, object]] = _keep_nothing,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.config = config
        self._store = store
        incarnation = host.current.random_bytes(_INCARNATION_BYTES).hex()
        self._election = LeaseElection(name, address, times, incarnation, tls_address)
        self._lease = LeaseKeeper(
            store, self._election, config.broker_session_timeout_ms, self._on_lease
        )
        self._retry_s = times.retry_ms / 1000
        self._known_cluster_id = known_cluster_id
        self._seen = seen
        self._memory = RememberedVersions()
        self._is_kept = True
        self._keep_seen_elsewhere = keep_seen_elsewhere
        self._seen_here = seen_here
        self._is_serving = False
        self._unusable = ""  # Why the content of the store cannot be used.
        self._unavailable = ""  # Why the last try to read the lease failed.
        self._looks_again_at = monotonic_now()
        self._on_failure = on_failure
        self._object_thread = ThreadPoolExecutor(1, thread_name_prefix="coordination")
        self._machine: Controller | None = None
        self._image: MetadataImage | None = None
        self._observer = observer
        self._responses: dict[int, asyncio.Future[object]] = {}
        self._requests = itertools.count()
        # The next calls of the store, each with its machine.
        self._outbox: list[tuple[Controller, ReadObject | WriteObject]] = []
        self._has_outbox = asyncio.Event()
        self._has_new_deadline = asyncio.Event()  # The machine may want its tick sooner.
        self._tasks: set[asyncio.Task[None]] = set()
        self._started: asyncio.Future[None] | None = None
        self._has_failed = False
        self._has_read_lease = asyncio.Event()  # Wakes who waits, and is clear again.
        self._is_over = False

    @property
    def metadata(self) -> MetadataImage:
        """The metadata that this broker's machine has stored; exists once it was the controller."""
        assert self._image is not None
        return self._image

    @property
    def is_controller(self) -> bool:
        """Whether this broker takes the controller's requests now."""
        return self._machine is not None and self._machine.phase is Phase.ACTIVE

    @property
    def controller_epoch(self) -> ControllerEpoch:
        """Of this broker's machine; 0 while there is none that is active."""
        if self._image is None or not self.is_controller:
            return ControllerEpoch(0)
        return self._image.cluster.controller_epoch

    @property
    def cluster_id(self) -> str:
        """Of the active machine's cluster; empty while there is none."""
        return "" if self._image is None else self._image.cluster.cluster_id

    @property
    def holder(self) -> tuple[str, str]:
        """Name and address of the controller, as far as known here; empty: none."""
        record = self._election.seen
        return (record.holder, record.address) if record.holder != NOBODY else ("", "")

    @property
    def holder_tls_address(self) -> str:
        """Where the controller is reached by TLS; empty: only at its address, or nobody knows."""
        record = self._election.seen
        return record.tls_address if record.holder != NOBODY else ""

    @property
    def problem(self) -> str:
        """Why this broker cannot be the controller; empty: it is, or it could be."""
        why = self._unusable or self._unavailable
        return no_controller(why).message if why else ""

    async def held_elsewhere(self, address: str) -> None:
        """Return once the lease has a holder at another address."""
        while self.holder[1] in ("", address):
            await self._has_read_lease.wait()

    def objects(self) -> Mapping[str, StoredObject]:
        """Return all that is stored, for a broker that has just connected.

        Raises:
            NotControllerError: this broker is not the controller.
        """
        if self._machine is None or self._machine.phase is not Phase.ACTIVE:
            raise self._not_controller()
        return self._machine.objects

    def _not_controller(self) -> NotControllerError:
        if self._unusable:
            return no_controller(self._unusable)
        why = self._unavailable or "try again"  # Another one may reach the store, and act.
        return NotControllerError(f"this broker is not the controller now: {why}")

    async def start(self) -> None:
        """Return once the controller is known: this broker, which is ready then, or another.

        Raises:
            InvalidConfigError: the store is of another cluster than the log directories, or cannot
                keep our objects.
            CoordinationStoreError: the store fails.
            CorruptMetadataError: an object in it is damaged, gone, or went back.
        """
        self._started = asyncio.get_running_loop().create_future()
        self._spawn(self._lease.run())
        self._spawn(self._tick())
        self._spawn(self._serve_outbox())
        await self._started

    async def stop(self) -> None:
        """Resign, give the lease back and close the store. Waiting requests are answered."""
        self._is_over = True
        self._lease.end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._machine is not None:
            self._perform(self._machine, self._machine.resign("the broker stops"))
        try:
            await self._lease.give_back()
        finally:
            await self._in_object_thread(self._lease.close)
            await self._in_object_thread(self._store.close)
            self._object_thread.shutdown()

    def set_initial_brokers(self, brokers: int) -> None:
        """Let the cluster begin with so many brokers (P77), by this and the next machines."""
        self.config = replace(self.config, initial_brokers=brokers)
        if self._machine is not None:
            self._machine.set_initial_brokers(brokers)

    def on_serving(self) -> None:
        """This broker serves: from now on it goes on when the store is unusable."""
        self._is_serving = True

    def new_topic_ids(self, count: int) -> list[TopicId]:
        """Return ids that no topic has had or will have."""
        return [TopicId(host.current.random_bytes(TOPIC_ID_BYTES)) for _ in range(count)]

    def on_connection_broken(self, life: BrokerLife) -> None:
        """A broker's last connection to this controller broke."""
        if self._machine is not None:
            machine = self._machine
            self._perform(machine, machine.on_connection_broken(life, monotonic_now()))
            self._has_new_deadline.set()

    def on_seen_elsewhere(self, seen: StoreVersions) -> None:
        """A broker reports what it has seen of the store; this one may not be the controller
        (P39)."""
        machine = self._machine
        if machine is None:
            return
        self._perform(machine, machine.on_seen_elsewhere(seen))
        if self._machine is None:
            self._memory.on_seen_elsewhere(seen)
            self._is_kept = False
            self._spawn(self._remember(seen))

    async def _remember(self, seen: StoreVersions) -> None:
        """Store it in the log directories: the next process must not accept less."""
        await self._keep_seen_elsewhere(seen)
        self._is_kept = True

    async def request(self, request: Request) -> Any:
        """Let the machine decide; return its answer once it is stored.

        Raises:
            NotControllerError: this broker is not the controller; with `appended` MAYBE, it was.
            MillraceError: as documented with the request.
        """
        machine = self._machine
        if machine is None:
            raise self._not_controller()
        request_id = next(self._requests)
        response: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._responses[request_id] = response
        self._perform(machine, machine.handle(request_id, request, monotonic_now()))
        result = await response
        if isinstance(result, MillraceError):
            try:
                raise result
            finally:
                # The trace refers to this frame, and so to the request: a cycle.
                del response, result
        return result

    # The election.

    def _on_lease(self, unavailable: str) -> None:
        """Check whether this broker is the controller now.

        Args:
            unavailable: why the lease could not be read; empty: it could.
        """
        self._has_read_lease.set()
        self._has_read_lease.clear()
        self._note_store(unavailable)
        is_held = self._election.is_held(monotonic_now())
        if self._machine is not None and not is_held:
            self._perform(self._machine, self._machine.resign("the lease was lost"))
        if not is_held:  # The lease's holder checks the store now.
            self._unusable, self._looks_again_at = "", monotonic_now()
        may_look = self._is_kept and monotonic_now() >= self._looks_again_at
        if self._machine is None and is_held and may_look:
            self._machine = Controller(
                self.config,
                new_cluster_id=host.current.random_bytes(_CLUSTER_ID_BYTES).hex(),
                known_cluster_id=self._known_cluster_id,
                seen=self._known_of_the_store(),
                deposed=self._election.deposed,
            )
            self._perform(self._machine, self._machine.take_over())
        elif self._machine is None and self.holder[0]:
            self._set_started()  # Another broker is the controller.

    def _note_store(self, unavailable: str) -> None:
        """Log once when the store goes away, and once when it is back."""
        if unavailable and not self._unavailable:
            events.STORE_UNAVAILABLE.log(_log, error=unavailable)
        elif self._unavailable and not unavailable:
            events.STORE_AVAILABLE.log(_log)
        self._unavailable = unavailable

    def _known_of_the_store(self) -> StoreVersions:
        """Return the lower bound of the store's state (P39).

        The broker's own view is left out while it may come from an abandoned history of its own
        controller.
        """
        self._memory.on_seen(self._seen_here())
        return self._seen.merged(self._memory.seen)

    async def _tick(self) -> None:
        while True:
            machine = self._machine
            pause_ms = self.config.controller_tick_ms
            if machine is not None:
                pause_ms = machine.pause_ms(monotonic_now())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_ms / 1000):
                    await self._has_new_deadline.wait()
            self._has_new_deadline.clear()
            if self._machine is not None:
                self._perform(self._machine, self._machine.tick(monotonic_now()))

    # Effects.

    def _perform(self, machine: Controller, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case PublishImage(image, objects):
                    if self._image is None or (
                        image.cluster.controller_epoch > self._image.cluster.controller_epoch
                    ):
                        self._has_new_deadline.set()  # For the first tick of an active machine.
                    self._image = image
                    self._unusable = ""
                    self._observer.on_published(objects)
                    self._set_started()
                case Respond(request_id, result):
                    response = self._responses.pop(request_id)
                    if not response.done():  # The caller may be gone.
                        response.set_result(result)
                case ReadObject() | WriteObject():
                    self._outbox.append((machine, effect))
                    self._has_outbox.set()
                case AskLogEnds():
                    self._observer.on_ask_log_ends(effect)
                case Resigned(reason):
                    event = (
                        events.CONTROLLER_STOPPED if self._is_over else events.CONTROLLER_RESIGNED
                    )
                    event.log(_log, reason=reason)
                    self._machine = None
                    self._seen = machine.seen
                    self._observer.on_resigned()
                case _:
                    log_report(effect)

    async def _serve_outbox(self) -> None:
        """Call the store with all gathered calls, which share one flush."""
        while True:
            await self._has_outbox.wait()
            self._has_outbox.clear()
            outbox, self._outbox = self._outbox, []
            reads: list[tuple[Controller, str]] = []
            writes: list[tuple[Controller, str, StoredObject]] = []
            for machine, effect in outbox:
                if isinstance(effect, ReadObject):
                    reads.append((machine, effect.key))
                else:
                    writes.append((machine, effect.key, effect.stored))
            if reads:
                await self._read_all(reads)
            if writes:
                await self._write_all(writes)

    async def _read_all(self, reads: list[tuple[Controller, str]]) -> None:
        keys = [key for _, key in reads]
        try:
            found = await self._in_object_thread(self._store.read_all, keys)
        except CoordinationUnavailableError as error:
            events.METADATA_NOT_READ.log(_log, error=error.message)
            await asyncio.sleep(self._retry_s)
            for machine, key in reads:
                self._perform(machine, [ReadObject(key)])
        except _UNUSABLE as error:
            for machine, _ in reads:
                self._on_unusable(machine, error)
        else:
            for (machine, key), stored in zip(reads, found, strict=True):
                try:
                    self._perform(machine, machine.on_object_read(key, stored))
                except _UNUSABLE as error:
                    self._on_unusable(machine, error)

    def _on_unusable(self, machine: Controller, error: MillraceError) -> None:
        """The content of the store cannot be used."""
        if not self._is_serving:
            raise error
        if error.message != self._unusable:
            events.METADATA_UNUSABLE.log(_log, error=error.message)
        self._unusable = error.message
        pause_ms = self.config.broker_session_timeout_ms
        self._looks_again_at = MonotonicMs(monotonic_now() + pause_ms)
        self._perform(machine, machine.resign(error.message))

    async def _write_all(self, writes: list[tuple[Controller, str, StoredObject]]) -> None:
        content = [(key, stored) for _, key, stored in writes]
        outcomes: Sequence[bool] | None
        try:
            outcomes = await self._in_object_thread(self._write_while_held, content)
        except CoordinationUnavailableError as error:
            events.METADATA_NOT_WRITTEN.log(_log, error=error.message)
            await asyncio.sleep(self._retry_s)
            outcomes = [False] * len(writes)
        except _UNUSABLE as error:
            for machine, _, _ in writes:
                self._on_unusable(machine, error)
            return
        if outcomes is None:
            for machine, _, _ in writes:
                self._perform(machine, machine.resign("the lease was lost"))
            return
        for (machine, key, _), is_written in zip(writes, outcomes, strict=True):
            on_outcome = machine.on_object_written if is_written else machine.on_write_refused
            self._perform(machine, on_outcome(key))

    def _write_while_held(self, writes: Sequence[tuple[str, StoredObject]]) -> list[bool] | None:
        """Write while the lease is held; return None if it ran out before the last write (P38).

        Runs in the thread.
        """
        has_run_out = False

        def may_write() -> bool:
            nonlocal has_run_out
            has_run_out = has_run_out or not self._election.is_held(monotonic_now())
            return not has_run_out

        outcomes = self._store.compare_and_swap_all(writes, may_write)
        return None if has_run_out else outcomes

    def _set_started(self) -> None:
        assert self._started is not None
        if not self._started.done():
            self._started.set_result(None)

    # Threads and tasks.

    def _in_object_thread(self, call: Callable[..., _T], *args: object) -> asyncio.Future[_T]:
        return asyncio.get_running_loop().run_in_executor(self._object_thread, call, *args)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        assert self._started is not None
        if not self._started.done():
            self._started.set_exception(error)
        elif not self._has_failed:
            self._has_failed = True
            self._on_failure(error)
