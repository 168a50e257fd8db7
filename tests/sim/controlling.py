"""The controller's part of a simulated broker: the election, the machine, and who is connected.

Every broker is a candidate. Who gets the lease makes a controller; who loses it drops the machine
with its pending writes, and goes on as a broker (P38).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Final

from tests.sim.machine import Machine
from tests.sim.messages import Answer, Ask, AskAll, AskEnds, FullState, Pushed
from tests.sim.network import Stream
from tests.sim.witness import Witness

from millrace.broker.coordination.store import CoordinationUnavailableError
from millrace.core.errors import InvalidConfigError, MillraceError, NotControllerError
from millrace.core.ids import MonotonicMs
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
from millrace.core.metadata.lease import NOBODY, LeaseElection, LeaseRecord, LeaseTimes
from millrace.core.metadata.model import BrokerLife, BrokerRegistration
from millrace.core.metadata.requests import Heartbeat
from millrace.core.metadata.seen import Seen, SeenToKeep
from millrace.core.metadata.stored import CorruptMetadataError, StoredObject

TIMES: Final = LeaseTimes(duration_ms=1500, renew_deadline_ms=1000, retry_ms=250, watch_ms=250)
CLUSTER_ID: Final = "sim"

_READ_AGAIN_MS: Final = 100


class ControllerHost:
    """See the module.

    Args:
        machine: whose life this is.
        config: the cluster's.
        witness: shown what brokers are told.
        seen: what its log directory remembers of the store.
        seen_here: returns what this broker, as any other, has seen of it by now.
        keep_seen_elsewhere: has the log directory remember what another broker has seen.

    Attributes:
        controller: while this broker is the controller, or about to be.
        holder: the machine that holds the lease, as last seen.
        times: of the lease; the embedded ones, unless a subclass says otherwise.
    """

    times: ClassVar[LeaseTimes] = TIMES

    def __init__(
        self,
        machine: Machine,
        config: ClusterConfig,
        witness: Witness,
        *,
        seen: Seen,
        seen_here: Callable[[], Seen],
        keep_seen_elsewhere: Callable[[Seen], object],
    ) -> None:
        self.controller: Controller | None = None
        self.holder = NOBODY
        self._machine = machine
        self._config = config
        self._witness = witness
        self._known_cluster_id = CLUSTER_ID if seen.controller_epoch else None
        self._seen = seen
        self._seen_here = seen_here
        self._memory = SeenToKeep()
        self._keep_seen_elsewhere = keep_seen_elsewhere
        self._looks_again_at = MonotonicMs(0)
        self._election = LeaseElection(machine.name, machine.name, self.times)
        self._streams: dict[Stream, BrokerLife | None] = {}
        self._requests: dict[int, tuple[Stream, int, object]] = {}
        self._request_id = 0

    @property
    def is_active(self) -> bool:
        """Whether it decides; another one may think so, too (P34)."""
        return self.controller is not None and self.controller.phase is Phase.ACTIVE

    @property
    def _now(self) -> MonotonicMs:
        return self._machine.clock.monotonic()

    # --- The election ------------------------------------------------------------------------

    def look_at_lease(self) -> None:
        """To be called every `retry_ms`."""
        if self.controller is not None and not self._election.is_held(self._now):
            self._perform(self.controller, self.controller.resign("the lease was lost"))
        self._machine.store.read_lease(self._on_lease)

    def _on_lease(self, result: object) -> None:
        if result is not None and not isinstance(result, LeaseRecord):
            return
        now = self._now
        self.holder = NOBODY if result is None else result.holder
        record = self._election.on_read(result, now)
        if self.controller is not None and not self._election.is_held(now):
            self._perform(self.controller, self.controller.resign("another has the lease"))
        if record is not None:
            self._machine.store.compare_and_swap_lease(
                record, partial(self._on_lease_written, record, now)
            )

    def _on_lease_written(self, record: LeaseRecord, sent_at: MonotonicMs, result: object) -> None:
        if result is not True:
            return
        self._election.on_written(record, sent_at)
        self.holder = record.holder
        may_look = self._now >= self._looks_again_at
        if self.controller is None and may_look and self._election.is_held(self._now):
            self._machine.world.note(f"{self._machine.name} takes over as controller")
            self._memory.on_seen(self._seen_here())
            self.controller = Controller(
                self._config,
                new_cluster_id=CLUSTER_ID,
                known_cluster_id=self._known_cluster_id,
                seen=self._seen.merged(self._memory.seen),
                deposed=self._election.deposed,
            )
            self._perform(self.controller, self.controller.take_over())

    # --- The machine -------------------------------------------------------------------------

    def tick(self) -> None:
        """To be called every `controller_tick_ms`."""
        if self.controller is not None:
            self._perform(self.controller, self.controller.tick(self._now))

    def _perform(self, controller: Controller, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if controller is not self.controller:
                return  # An effect before this one found that the lease has run out.
            match effect:
                case ReadObject(key):
                    self._read(controller, key)
                case WriteObject(key, stored):
                    self._write(controller, key, stored)
                case PublishImage(_, objects):
                    if self._known_cluster_id is None:
                        self._known_cluster_id = CLUSTER_ID
                    self._witness.states.on_published(self._machine.name, objects)
                    self._publish(objects)
                case Respond(request_id, result):
                    self._respond(request_id, result)
                case AskLogEnds(life, partitions):
                    for stream, other in self._streams.items():
                        if other == life:
                            stream.send(AskEnds(partitions))
                case ElectedUncleanly():
                    self._machine.world.note(f"unclean election of {effect.topic_partition}")
                case Resigned(reason):
                    self._machine.world.note(f"{self._machine.name} resigns: {reason}")
                    self._seen = controller.seen
                    self._drop()
                    return

    def _drop(self) -> None:
        self.controller = None
        self._requests.clear()
        streams, self._streams = self._streams, {}
        for stream in streams:
            stream.reset()

    def _read(self, controller: Controller, key: str) -> None:
        def done(result: object) -> None:
            if controller is not self.controller:
                return
            if isinstance(result, CoordinationUnavailableError):
                self._machine.clock.set_timer(_READ_AGAIN_MS, partial(self._read, controller, key))
                return
            assert isinstance(result, list)
            try:
                self._perform(controller, controller.on_object_read(key, result[0]))
            except (CorruptMetadataError, InvalidConfigError) as error:
                self._on_unusable(controller, error)

        if controller is self.controller:
            self._machine.store.read_all([key], done)

    def _on_unusable(self, controller: Controller, error: MillraceError) -> None:
        """What lies in the store is nothing to go on from: keep the lease, and look again later."""
        self._machine.store.on_refused(error.message)
        pause_ms = self._config.broker_session_timeout_ms
        self._looks_again_at = MonotonicMs(self._now + pause_ms)
        self._perform(controller, controller.resign(error.message))

    def _may_write(self) -> bool:
        return self._election.is_held(self._now)  # P38

    def _write(self, controller: Controller, key: str, stored: StoredObject) -> None:
        if not self._may_write():
            self._perform(controller, controller.resign("the lease ran out"))
            return

        def done(result: object) -> None:
            if controller is not self.controller:
                return
            if result == [True]:
                self._perform(controller, controller.on_object_written(key))
            else:
                self._perform(controller, controller.on_write_refused(key))

        self._machine.store.compare_and_swap_all([(key, stored)], done)

    # --- Brokers -----------------------------------------------------------------------------

    def on_opened(self, stream: Stream, seen: Seen) -> None:
        """A broker takes this one for the controller, and says what it has seen."""
        controller = self.controller
        if controller is not None:
            self._perform(controller, controller.on_seen_elsewhere(seen))
            if self.controller is None:
                self._memory.on_seen_elsewhere(seen)
                self._keep_seen_elsewhere(seen)
        if self.controller is None:
            stream.reset()
            return
        self._streams[stream] = None
        self._send_all(stream)

    def on_ended(self, stream: Stream) -> None:
        """A broker's stream is gone."""
        life = self._streams.pop(stream, None)
        if life is None or self.controller is None or life in self._streams.values():
            return
        self._perform(self.controller, self.controller.on_connection_broken(life, self._now))

    def on_message(self, stream: Stream, message: Ask | AskAll) -> None:
        """A broker says something."""
        controller = self.controller
        if controller is None or stream not in self._streams:
            stream.reset()
            return
        match message:
            case AskAll():
                self._send_all(stream)
            case Ask(number, request):
                if not self.is_active:
                    stream.send(Answer(number, NotControllerError("not yet: try again")))
                    return
                if isinstance(request, Heartbeat):
                    self._streams[stream] = request.life
                self._request_id += 1
                self._requests[self._request_id] = (stream, number, request)
                self._perform(controller, controller.handle(self._request_id, request, self._now))

    def _send_all(self, stream: Stream) -> None:
        if self.is_active and self.controller is not None:
            stream.send(FullState(dict(self.controller.objects)))

    def _publish(self, objects: dict[str, StoredObject]) -> None:
        message: Callable[[dict[str, StoredObject]], object] = (
            FullState if len(objects) > 1 else Pushed
        )
        for stream in self._streams:
            stream.send(message(dict(objects)))

    def _respond(self, request_id: int, result: object) -> None:
        stream, number, request = self._requests.pop(request_id)
        self._witness.states.on_answered(request, result)
        if isinstance(result, BrokerRegistration) and stream in self._streams:
            self._streams[stream] = result.life
        stream.send(Answer(number, result))
