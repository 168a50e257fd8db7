"""A controller's state machine with a store in memory; the test decides when the store answers."""

from collections.abc import Iterable
from dataclasses import replace

from millrace.core.controller.controller import Controller
from millrace.core.controller.effects import (
    AskLogEnds,
    Effect,
    ElectedUncleanly,
    LackingCommitted,
    OlderCopyAccepted,
    PublishImage,
    ReadObject,
    Resigned,
    Respond,
    TopicGone,
    TopicRaised,
    WriteObject,
)
from millrace.core.controller.lease import Deposed
from millrace.core.ids import BrokerId, MonotonicMs, TopicPartition
from millrace.core.media import Media
from millrace.core.metadata.broker_levels import BROKER_LEVEL
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import (
    NOWHERE,
    BrokerLife,
    BrokerRegistration,
    KafkaAddresses,
    Reluctance,
    SideAddresses,
)
from millrace.core.metadata.objects.store_versions import NOTHING_SEEN, StoreVersions
from millrace.core.metadata.objects.stored_object import StoredObject
from millrace.core.metadata.requests import (
    Heartbeat,
    HeartbeatAnswer,
    LogEnd,
    RegisterBroker,
    Request,
)


class Objects(dict[str, StoredObject]):
    """Stored objects with compare-and-swap, like a coordination store."""

    def swap(self, key: str, new: StoredObject) -> bool:
        old = self.get(key)
        if (0 if old is None else old.version) != new.version - 1:
            return False
        if old is not None and old.controller_epoch > new.controller_epoch:
            return False
        self[key] = new
        return True


class ControllerDriver:
    """Performs a machine's effects on `objects`, all at once or one write at a time.

    Attributes:
        machine: the controller's state machine.
        results: answers by request id.
        images: every published image.
        reads: keys of pending reads.
        writes: pending writes, oldest first.
        reluctances: of the heartbeats of `beat`, by broker id.
        media, outside_addresses, drpc_addresses, kafka_addresses, levels: likewise, by broker.
        asks: brokers that were asked for log ends.
        lacking: reports of eligible replicas that lack records.
        unclean: reports of unclean elections.
        gone: reports of deleted topics that are gone for good.
        raised: reports of internal topics that get more replicas.
        now: the time; only `pass_time` moves it.
        resigned: why the machine resigned.
    """

    def __init__(
        self,
        objects: Objects,
        config: ClusterConfig | None = None,
        *,
        known_cluster_id: str | None = None,
        seen: StoreVersions = NOTHING_SEEN,
        deposed: Deposed | None = None,
    ) -> None:
        self.objects = objects
        self.machine = Controller(
            config or ClusterConfig(),
            new_cluster_id="new",
            known_cluster_id=known_cluster_id,
            seen=seen,
            deposed=deposed,
        )
        self.results: dict[int, object] = {}
        self.images: list[MetadataImage] = []
        self.reads: list[str] = []
        self.writes: list[WriteObject] = []
        self.reluctances: dict[BrokerLife, Reluctance] = {}
        self.media: dict[BrokerId, tuple[Media, ...]] = {}
        self.outside_addresses: dict[BrokerId, str] = {}
        self.drpc_addresses: dict[BrokerId, SideAddresses] = {}
        self.kafka_addresses: dict[BrokerId, KafkaAddresses] = {}
        self.levels: dict[BrokerId, int] = {}
        self.asks: list[AskLogEnds] = []
        self.lacking: list[LackingCommitted] = []
        self.unclean: list[ElectedUncleanly] = []
        self.accepted: list[OlderCopyAccepted] = []
        self.gone: list[TopicGone] = []
        self.raised: list[TopicRaised] = []
        self.resigned: str | None = None
        self.now = 0
        self._requests = 0

    @property
    def image(self) -> MetadataImage:
        return self.images[-1]

    def perform(self, effects: list[Effect]) -> list[Effect]:
        """Record the effects; return them."""
        for effect in effects:
            match effect:
                case ReadObject(key):
                    self.reads.append(key)
                case WriteObject():
                    self.writes.append(effect)
                case PublishImage(image):
                    self.images.append(image)
                case AskLogEnds():
                    self.asks.append(effect)
                case LackingCommitted():
                    self.lacking.append(effect)
                case ElectedUncleanly():
                    self.unclean.append(effect)
                case OlderCopyAccepted():
                    self.accepted.append(effect)
                case TopicGone():
                    self.gone.append(effect)
                case TopicRaised():
                    self.raised.append(effect)
                case Respond(request_id, result):
                    assert request_id not in self.results
                    self.results[request_id] = result
                case Resigned(reason):
                    self.resigned = reason
        return effects

    def send(self, request: Request) -> int:
        """Send a request; return its id."""
        self._requests += 1
        if isinstance(request, RegisterBroker) and request.directory_epoch is None:
            request = self._remembered(request)
        self.perform(self.machine.handle(self._requests, request, MonotonicMs(self.now)))
        return self._requests

    def _remembered(self, request: RegisterBroker) -> RegisterBroker:
        """Add the broker's last life to the request, unless the test sets one."""
        known = self.image.cluster.broker_named(request.name) if self.images else None
        if known is None or not {*known.directory_ids} & {*request.directory_ids}:
            return request
        return replace(request, directory_epoch=known.broker_epoch)

    def read(self) -> list[Effect]:
        """Answer the oldest read."""
        key = self.reads.pop(0)
        return self.perform(self.machine.on_object_read(key, self.objects.get(key)))

    def write(self) -> list[Effect]:
        """Do the oldest write, and answer it."""
        write = self.writes.pop(0)
        if self.objects.swap(write.key, write.stored):
            return self.perform(self.machine.on_object_written(write.key))
        return self.perform(self.machine.on_write_refused(write.key))

    def lose_answer(self, *, applied: bool) -> list[Effect]:
        """Lose the answer to the oldest write, after or before the write is done."""
        write = self.writes.pop(0)
        if applied:
            assert self.objects.swap(write.key, write.stored)
        return self.perform(self.machine.on_write_refused(write.key))

    def settle(self) -> None:
        """Answer reads and writes until none is pending."""
        while self.reads or self.writes:
            if self.reads:
                self.read()
            else:
                self.write()

    def take_over(self) -> "ControllerDriver":
        """Make the machine the controller."""
        self.perform(self.machine.take_over())
        self.settle()
        return self

    def ask(self, request: Request) -> object:
        """Send a request and return its answer."""
        request_id = self.send(request)
        self.settle()
        return self.results[request_id]

    def beat(
        self,
        life: BrokerLife,
        *,
        metadata_epoch: int | None = None,
        wants_shutdown: bool = False,
        log_ends: Iterable[LogEnd] = (),
        offline: Iterable[TopicPartition] = (),
        reluctance: Reluctance | None = None,
    ) -> HeartbeatAnswer:
        """Send a broker's heartbeat, by default with the latest metadata; return the answer.

        Args:
            reluctance: the new one, from now on; None: as in the last heartbeat.
        """
        if reluctance is not None:
            self.reluctances[life] = reluctance
        answer = self.ask(
            Heartbeat(
                life=life,
                metadata_epoch=self.image.epoch if metadata_epoch is None else metadata_epoch,
                wants_shutdown=wants_shutdown,
                log_ends=tuple(log_ends),
                offline=tuple(offline),
                reluctance=self.reluctances.get(life, Reluctance.NONE),
                media=self.media.get(life.broker_id, ()),
                outside_address=self.outside_addresses.get(life.broker_id, ""),
                drpc_addresses=self.drpc_addresses.get(life.broker_id, NOWHERE),
                kafka_addresses=self.kafka_addresses.get(life.broker_id, KafkaAddresses()),
                level=self.levels.get(life.broker_id, BROKER_LEVEL),
            )
        )
        assert isinstance(answer, HeartbeatAnswer), answer
        return answer

    def start_broker(self, request: RegisterBroker) -> BrokerRegistration:
        """Register a broker and let it catch up; return its registration, unfenced."""
        registered = self.ask(request)
        assert isinstance(registered, BrokerRegistration), registered
        assert registered.is_fenced
        assert not self.beat(registered.life).is_fenced
        return self.image.cluster.brokers[registered.broker_id]

    def kill(self, broker_id: BrokerId) -> None:
        """Let a broker's process die: its connection breaks, and its session ends."""
        life = self.image.cluster.brokers[broker_id].life
        self.perform(self.machine.on_connection_broken(life, MonotonicMs(self.now)))
        self.pass_time(500, silent=[broker_id])

    def live(self) -> list[BrokerLife]:
        """The lives of all brokers that are not fenced."""
        brokers = self.image.cluster.brokers
        return [broker.life for _, broker in sorted(brokers.items()) if not broker.is_fenced]

    def tick(self) -> list[Effect]:
        """Pass the time to the machine, and do its writes."""
        effects = self.perform(self.machine.tick(MonotonicMs(self.now)))
        self.settle()
        return effects

    def pass_time(self, ms: int, silent: Iterable[BrokerId] = ()) -> None:
        """Advance the time, while all live brokers except the silent ones send heartbeats."""
        until, quiet = self.now + ms, {*silent}
        while self.now < until:
            self.now = min(self.now + 100, until)
            for life in self.live():
                if life.broker_id not in quiet:
                    self.beat(life)
            self.tick()
