"""Runs the controller machine: elects it, performs its effects, and keeps the latest metadata.

All of it belongs to the event loop; the store is called in threads. The lease decides whether there
is a machine: with it comes a new one, without it the machine is dropped, never the process. A store
that is damaged, or of another cluster, ends the process: `on_failure` is called.
"""

import asyncio
import contextlib
import itertools
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar, cast

from millrace.broker.coordination.store import CoordinationStore, CoordinationUnavailableError
from millrace.broker.runtime.clock import monotonic_now
from millrace.core.errors import MillraceError, NotControllerError, StaleBrokerEpochError
from millrace.core.ids import TOPIC_ID_BYTES, BrokerId, TopicId
from millrace.core.metadata.cache import MetadataCache
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.controller import Controller, Phase
from millrace.core.metadata.effects import (
    AskLogEnds,
    Effect,
    ElectedUncleanly,
    PublishImage,
    ReadObject,
    Resigned,
    Respond,
    WriteObject,
)
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.lease import LeaseElection, LeaseTimes
from millrace.core.metadata.model import BrokerLife, BrokerRegistration, Topic
from millrace.core.metadata.requests import (
    AllocateProducerIds,
    AlterTopics,
    ConfirmDeletions,
    CreateTopics,
    DeleteTopics,
    Heartbeat,
    NewTopic,
    RegisterBroker,
    Request,
    TopicChange,
    TopicRef,
)
from millrace.core.metadata.stored import StoredObject

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

Subscriber = Callable[[MetadataImage, MetadataImage], None]
"""Called with the old and the new image, in order, on the event loop."""

_CLUSTER_ID_BYTES: Final = 16


class ControllerShell:
    """See the module.

    Args:
        store: closed by `stop`.
        name: this broker's stable name, which holds the lease.
        known_cluster_id: the cluster that the log directories belong to; None when they are new.
        on_failure: told once when the process must end: the store is damaged, or a fault in here.
        random_bytes: where ids come from.
    """

    def __init__(
        self,
        config: ClusterConfig,
        store: CoordinationStore,
        times: LeaseTimes,
        *,
        name: str,
        known_cluster_id: str | None = None,
        on_failure: Callable[[BaseException], None],
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._config = config
        self._store = store
        self._election = LeaseElection(name, "", times)
        self._retry_s = times.retry_ms / 1000
        self._known_cluster_id = known_cluster_id
        self._on_failure = on_failure
        self._random_bytes = random_bytes
        self._object_thread = ThreadPoolExecutor(1, thread_name_prefix="coordination")
        self._lease_thread = ThreadPoolExecutor(1, thread_name_prefix="lease")
        self._machine: Controller | None = None
        self._cache = MetadataCache(known_cluster_id)
        self._subscribers: list[Subscriber] = []
        self._responses: dict[int, asyncio.Future[object]] = {}
        self._requests = itertools.count()
        self._life: BrokerLife | None = None  # This broker's, once it is registered.
        # What the store is asked to do next, by which machine.
        self._outbox: list[tuple[Controller, ReadObject | WriteObject]] = []
        self._has_outbox = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._started: asyncio.Future[None] | None = None
        self._has_failed = False

    @property
    def metadata(self) -> MetadataImage:
        """The latest confirmed metadata; there is one once `start` has returned."""
        assert self._cache.image is not None
        return self._cache.image

    @property
    def is_controller(self) -> bool:
        """Whether requests are welcome here now."""
        return self._machine is not None and self._machine.phase is Phase.ACTIVE

    def subscribe(self, subscriber: Subscriber) -> None:
        """Tell of every change from now on."""
        self._subscribers.append(subscriber)

    async def start(self) -> None:
        """Return once this broker is the controller and the metadata is known.

        Raises:
            InvalidConfigError: the store is of another cluster than the log directories.
            CoordinationStoreError: the store fails.
            CorruptMetadataError: an object in it is damaged.
        """
        self._started = asyncio.get_running_loop().create_future()
        self._spawn(self._elect())
        self._spawn(self._tick())
        self._spawn(self._serve_outbox())
        await self._started

    async def stop(self) -> None:
        """Resign, give the lease back and close the store. Waiting requests are answered."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._machine is not None:
            self._perform(self._machine, self._machine.resign("the broker stops"))
        try:
            with contextlib.suppress(MillraceError):  # Then the lease runs out by itself.
                # Read again: a renewal may have been under way.
                stored = await self._in_lease_thread(self._store.read_lease)
                record = self._election.give_back(stored)
                if record is not None:
                    await self._in_lease_thread(self._store.compare_and_swap_lease, record)
        finally:
            await self._in_object_thread(self._lease_thread.shutdown)  # Waits for its last call.
            await self._in_object_thread(self._store.close)
            self._object_thread.shutdown()

    async def create_topics(
        self, topics: Sequence[NewTopic], validate_only: bool = False
    ) -> list[Topic | MillraceError]:
        """Create topics; return for each, in order, the topic or why not.

        Raises:
            NotControllerError: with `appended` MAYBE, some may have been created.
            MalformedRequestError: too many at once.
        """
        topic_ids = [TopicId(self._random_bytes(TOPIC_ID_BYTES)) for _ in topics]
        request = CreateTopics(topics=topics, topic_ids=topic_ids, validate_only=validate_only)
        return cast(list[Topic | MillraceError], await self._request(request))

    async def alter_topics(
        self, changes: Sequence[TopicChange], validate_only: bool = False
    ) -> list[Topic | MillraceError]:
        """Alter topics; return for each, in order, the topic as it is then or why not.

        Raises:
            NotControllerError: with `appended` MAYBE, some may have been altered.
            MalformedRequestError: too many at once.
        """
        request = AlterTopics(changes=changes, validate_only=validate_only)
        return cast(list[Topic | MillraceError], await self._request(request))

    async def delete_topics(
        self, topics: Sequence[TopicRef], validate_only: bool = False
    ) -> list[Topic | MillraceError]:
        """Delete topics; return for each, in order, the topic as it was or why not.

        Raises:
            NotControllerError: with `appended` MAYBE, some may have been deleted.
            MalformedRequestError: too many at once.
        """
        request = DeleteTopics(topics=topics, validate_only=validate_only)
        return cast(list[Topic | MillraceError], await self._request(request))

    async def confirm_deletions(self, broker_id: BrokerId, topic_ids: Sequence[TopicId]) -> None:
        """Note that a broker has no data of deleted topics any more.

        Raises:
            NotControllerError: to be said again later.
        """
        await self._request(ConfirmDeletions(broker_id=broker_id, topic_ids=topic_ids))

    async def allocate_producer_ids(self) -> range:
        """Return producer ids that nobody else has got or will get.

        Raises:
            NotControllerError: try again.
        """
        return cast(range, await self._request(AllocateProducerIds()))

    async def register_broker(self, registration: RegisterBroker) -> BrokerRegistration:
        """Register this broker's start; it leads its partitions once this returns.

        From then on its heartbeats are sent from here, to whichever machine takes over.

        Raises:
            InvalidConfigError: its log directories belong to another broker.
            DuplicateBrokerRegistrationError: another process with its name is alive.
            NotControllerError: try again.
        """
        registered = cast(BrokerRegistration, await self._request(registration))
        await self._heartbeat(registered.life)
        self._life = registered.life
        self._spawn(self._send_heartbeats(registered.life))
        return self.metadata.cluster.brokers[registered.broker_id]

    async def _send_heartbeats(self, life: BrokerLife) -> None:
        while self._life == life:
            await asyncio.sleep(self._config.broker_heartbeat_interval_ms / 1000)
            try:
                await self._heartbeat(life)
            except StaleBrokerEpochError:
                if self._life == life:
                    raise  # Another process has this broker's name: this one must stop.
                return
            except NotControllerError:
                pass  # The next machine gives every broker time.

    async def _heartbeat(self, life: BrokerLife) -> None:
        await self._request(Heartbeat(life=life, metadata_epoch=self.metadata.epoch))

    async def _request(self, request: Request) -> object:
        machine = self._machine
        if machine is None:
            raise NotControllerError("this broker is not the controller now: try again")
        request_id = next(self._requests)
        response: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._responses[request_id] = response
        self._perform(machine, machine.handle(request_id, request, monotonic_now()))
        result = await response
        if isinstance(result, MillraceError):
            raise result
        return result

    # The election.

    async def _elect(self) -> None:
        while True:
            with contextlib.suppress(CoordinationUnavailableError):
                await self._renew_lease()
            is_held = self._election.is_held(monotonic_now())
            if self._machine is not None and not is_held:
                self._perform(self._machine, self._machine.resign("the lease was lost"))
            if self._machine is None and is_held:
                self._machine = Controller(
                    self._config,
                    new_cluster_id=self._random_bytes(_CLUSTER_ID_BYTES).hex(),
                    known_cluster_id=self._known_cluster_id,
                )
                self._perform(self._machine, self._machine.take_over())
            await asyncio.sleep(self._retry_s)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._config.controller_tick_ms / 1000)
            if self._machine is not None:
                self._perform(self._machine, self._machine.tick(monotonic_now()))

    async def _renew_lease(self) -> None:
        stored = await self._in_lease_thread(self._store.read_lease)
        record = self._election.on_read(stored, monotonic_now())
        if record is not None:
            sent_at = monotonic_now()
            if await self._in_lease_thread(self._store.compare_and_swap_lease, record):
                self._election.on_written(record, sent_at)

    # Effects.

    def _perform(self, machine: Controller, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case PublishImage(image):
                    self._publish(image)
                case Respond(request_id, result):
                    response = self._responses.pop(request_id)
                    if not response.done():  # Whoever asked may have gone away.
                        response.set_result(result)
                case ReadObject() | WriteObject():
                    self._outbox.append((machine, effect))
                    self._has_outbox.set()
                case AskLogEnds():
                    pass  # One broker holds every replica alone: it is elected without being asked.
                case ElectedUncleanly():
                    _log.warning(
                        "a leader was elected that may lack committed records",
                        extra={
                            "topic": str(effect.topic),
                            "partition": effect.topic_partition.partition,
                            "leader": effect.leader.broker_id,
                            "leader_epoch": effect.leader_epoch,
                        },
                    )
                case Resigned(reason):
                    _log.info("controller resigned", extra={"reason": reason})
                    self._machine = None

    async def _serve_outbox(self) -> None:
        """Call the store with all that has gathered while it was busy: they share one flush."""
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
            _log.warning("metadata not read yet", extra={"error": error.message})
            await asyncio.sleep(self._retry_s)
            for machine, key in reads:
                self._perform(machine, [ReadObject(key)])
        else:
            for (machine, key), stored in zip(reads, found, strict=True):
                self._perform(machine, machine.on_object_read(key, stored))

    async def _write_all(self, writes: list[tuple[Controller, str, StoredObject]]) -> None:
        content = [(key, stored) for _, key, stored in writes]
        outcomes: Sequence[bool] | None
        try:
            outcomes = await self._in_object_thread(self._write_while_held, content)
        except CoordinationUnavailableError as error:
            _log.warning("metadata not written yet", extra={"error": error.message})
            await asyncio.sleep(self._retry_s)
            outcomes = [False] * len(writes)
        if outcomes is None:
            for machine, _, _ in writes:
                self._perform(machine, machine.resign("the lease was lost"))
            return
        for (machine, key, _), is_written in zip(writes, outcomes, strict=True):
            on_outcome = machine.on_object_written if is_written else machine.on_write_refused
            self._perform(machine, on_outcome(key))

    def _write_while_held(self, writes: Sequence[tuple[str, StoredObject]]) -> list[bool] | None:
        """Write, unless the lease ran out while the writes waited (P38). Runs in the thread."""
        if not self._election.is_held(monotonic_now()):
            return None
        return self._store.compare_and_swap_all(writes)

    def _publish(self, image: MetadataImage) -> None:
        old = self._cache.image
        # The controller epoch need not be kept: whoever opens the store sees it there.
        self._cache.on_image(image)
        if old is not None:
            for subscriber in self._subscribers:
                subscriber(old, image)
        assert self._started is not None
        if not self._started.done():
            self._started.set_result(None)

    # Threads and tasks.

    def _in_object_thread(self, call: Callable[..., _T], *args: object) -> asyncio.Future[_T]:
        return asyncio.get_running_loop().run_in_executor(self._object_thread, call, *args)

    def _in_lease_thread(self, call: Callable[..., _T], *args: object) -> asyncio.Future[_T]:
        return asyncio.get_running_loop().run_in_executor(self._lease_thread, call, *args)

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
