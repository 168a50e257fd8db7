"""A simulated cluster of brokers of the product, its clients, and what must hold.

Judged after every event: the states that the store is given (C24). Every few events, what nobody
in the cluster can know, but all rules together are for (`invariants`). In quiet: everything is in
sync, led, and moves on. At the end: the history of the clients, and the replicas' bytes and epochs
below their high watermarks (C23).
"""

import dataclasses
import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from tests.checkers.check import check
from tests.checkers.history import INFO, STORE, Op, Recorder
from tests.checkers.report import Expectations
from tests.sim.broker import REPLICATION, RETENTION, SCRUB_MS, SimulatedBroker
from tests.sim.client import Client, Consumer, EndReader, Load, Producer, Site
from tests.sim.controlling import ControllerHost
from tests.sim.coordination import NAME as STORE_NAME
from tests.sim.coordination import SimulatedStore, StoreWeather
from tests.sim.faults import FAMILIES, Family
from tests.sim.invariants import Invariants
from tests.sim.log_witness import LogWitness
from tests.sim.machine import Machine
from tests.sim.messages import Administer
from tests.sim.network import Network, NetworkEvent
from tests.sim.operator import Operator
from tests.sim.replica_witness import ReplicaWitness
from tests.sim.state_witness import StateWitness
from tests.sim.telling import named, told
from tests.sim.telling import state as told_state
from tests.sim.witness import Witness
from tests.sim.world import MILLISECOND, SECOND, Violation, World

from millrace.broker.storage.log import PartitionLog
from millrace.core.errors import CorruptBatchError, CorruptLogError
from millrace.core.ids import BrokerId, Offset, TopicId, TopicPartition
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.encoding import decode_cluster, decode_shard
from millrace.core.metadata.model import (
    CLUSTER_KEY,
    SHARD_KEYS,
    BrokerLife,
    ClusterState,
    PartitionState,
    Topic,
)
from millrace.core.metadata.requests import (
    CreateTopics,
    ElectionKind,
    ElectLeaders,
    NewTopic,
    Request,
)
from millrace.core.metadata.topic_config import Durability
from millrace.core.records.batch import walk
from millrace.core.records.header import parse_header, verify_body
from millrace.core.replication.leader import Acks
from millrace.core.replication.rules import ReplicationConfig

_EVENTS_PER_LOOK: Final = 512
"""After every event what it touched is judged; after so many, everything."""
_EVENTS_PER_LATE_LOOK: Final = 1024
_WAIT_MAX: Final = 5 * SECOND
"""How long an acknowledgement may take in quiet."""
_FINAL_US: Final = 60 * SECOND
_TO_THE_END: Final = Expectations(ok_shares={"poll": 0.5})
_UP_TO_NOW: Final = Expectations(ok_shares={}, final_polls=False)
_LAG_NS: Final = 10 * 10**9
"""A consumer that polls has in quiet what was known so long before (C26)."""
_IN_SYNC_US: Final = 15 * SECOND
"""A machine with an empty disk has everything again within this time."""
_FLUSHED_US: Final = 5 * SECOND
"""A topic that becomes durable is flushed everywhere within this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """A topic of the cluster, and what its clients do.

    Attributes:
        loads: of the producers of each partition.
        polls_every_us: the mean pause between two polls; each partition has a consumer.
        reads_followers: whether each partition has a consumer that reads from followers, too.
        asks_ends: whether somebody asks where each partition ends.
        is_disposable: whether operators delete it, and make another of its name.
        incarnation: how often they did so before.
    """

    name: str = "t"
    partitions: int = 3
    replication_factor: int = 3
    config: Mapping[str, str] = field(default_factory=dict)
    loads: tuple[Load, ...] = (Load(),)
    polls_every_us: int = 300 * MILLISECOND
    reads_followers: bool = False
    asks_ends: bool = False
    is_disposable: bool = False
    incarnation: int = 0

    @property
    def topic_id(self) -> TopicId:
        name = f"{self.name}.{self.incarnation}" if self.incarnation else self.name
        return TopicId(f"{name} of simulated clusters".encode()[:16])

    @property
    def keys(self) -> list[TopicPartition]:
        return [TopicPartition(self.topic_id, number) for number in range(self.partitions)]

    @property
    def modes(self) -> list[str]:
        """What its producers may lose or double, as the checkers call it."""
        modes = ["assign"]
        if any(load.acks is not Acks.ALL for load in self.loads):
            modes.append("acks-1")
        if any(load.acks is None for load in self.loads):
            modes.append("not-idempotent")
        return modes

    @property
    def gives_up(self) -> bool:
        """Whether retention deletes its oldest records."""
        return any(name in self.config for name in RETENTION)


class Admin:
    """Asks for the topics until they are there, and passes on what an operator wants."""

    name = "admin"
    is_powered = True
    is_listening = True

    def __init__(self, cluster: "SimulatedCluster", world: World) -> None:
        self._cluster = cluster
        self._world = world
        self._network = cluster.network.attach(self)

    def deliver(self, event: NetworkEvent) -> None:
        """Nobody answers."""

    def administer(self, request: Request) -> None:
        """Ask every broker; one of them knows the controller."""
        for name in self._cluster.machines:
            self._network.send(name, Administer(request))

    def ask(self) -> None:
        cluster = self._cluster
        missing = [each for each in cluster.wanted() if each.keys[0] not in cluster.states]
        if not missing:
            return
        if cluster.stored_brokers() >= len(cluster.machines):
            request = CreateTopics(
                topics=[
                    NewTopic(
                        name=each.name,
                        partitions=each.partitions,
                        replication_factor=each.replication_factor,
                        config=each.config,
                    )
                    for each in missing
                ],
                topic_ids=[each.topic_id for each in missing],
            )
            self.administer(request)
        self._world.after(500 * MILLISECOND, "admin asks", self.ask)


class SimulatedCluster:
    """See the module; implements `Cluster`.

    Attributes:
        states: of every partition, as stored last.
        stored_topics: likewise.
        stored_cluster: likewise; None before the first.
        deleted: topics that were deleted, as stored.
    """

    brokers = 3
    topics: Sequence[TopicPlan] = (TopicPlan(),)
    families: tuple[Family, ...] = ()
    replication: ReplicationConfig = REPLICATION
    config: ClusterConfig = ClusterConfig()
    new_host: type[ControllerHost] = ControllerHost
    scrub_ms: int = SCRUB_MS

    def __init__(self, world: World) -> None:
        wrong = list(self.config.validate())
        assert not wrong, wrong
        self.network = Network(world, tell=told)
        self.store = SimulatedStore(world, self.network)
        self.states: dict[TopicPartition, PartitionState] = {}
        self.stored_topics: dict[TopicId, Topic] = {}
        self.stored_cluster: ClusterState | None = None
        self.deleted: dict[TopicId, None] = {}
        logs = LogWitness()
        replicas = ReplicaWitness(logs)
        states = StateWitness(self, logs, replicas, self._is_led)
        self.witness = Witness(logs, replicas, states)
        self.machines: dict[str, Machine] = {
            f"broker-{number}": Machine(
                world, f"broker-{number}", self.network, self.store, self._new_broker
            )
            for number in range(self.brokers)
        }
        self._world = world
        self._admin = Admin(self, world)
        self.operator = Operator(world, self.machines)
        self.invariants = Invariants(self)
        self.plans: dict[TopicId, TopicPlan] = {}
        self.recorders: dict[TopicId, Recorder] = {}
        self.keys: dict[TopicPartition, int] = {}
        self.producers: list[Producer] = []
        self.readers: list[Client] = []
        self._final: list[Consumer] = []
        self._producers_planned = 0
        for each in self.topics:
            self._plan_clients(each)
        self._tombstones: dict[int, Mapping[TopicId, object]] = {}
        self._durable_since: dict[TopicId, int] = {}
        self._unclean_until: dict[TopicId, int] = {}
        self._elected_uncleanly: dict[TopicPartition, None] = {}
        self._writes_seen = 0
        self._events = 0
        self._had_odd_store = False
        self._acknowledged_before: dict[Producer, int] = {}

    def wanted(self) -> list[TopicPlan]:
        """The topics that should be there."""
        return [each for each in self.plans.values() if each.topic_id not in self.deleted]

    def _plan_clients(self, plan: TopicPlan) -> None:
        self.plans[plan.topic_id] = plan
        self.recorders[plan.topic_id] = Recorder()
        for topic_partition in plan.keys:
            self.keys[topic_partition] = len(self.keys)
        site = Site(
            self._world,
            self.network,
            self.recorders[plan.topic_id],
            list(self.machines),
            self.may_be_cut,
            self.operator.hear_of_damage,
            lambda topic_partition: self.states[topic_partition].leader_epoch,
            self.kept_from,
        )
        for topic_partition in plan.keys:
            key = self.keys[topic_partition]
            for load in plan.loads:
                number = self._producers_planned
                self._producers_planned += 1
                self.producers.append(
                    Producer(
                        f"producer-{number}",
                        site,
                        topic_partition,
                        key,
                        producer_number=number,
                        load=load,
                    )
                )
            every_us = plan.polls_every_us
            self.readers.append(
                Consumer(f"consumer-{key}", site, topic_partition, key, every_us=every_us)
            )
            if plan.reads_followers:
                self.readers.append(
                    Consumer(
                        f"neighbour-{key}",
                        site,
                        topic_partition,
                        key,
                        every_us=every_us,
                        reads_followers=True,
                    )
                )
            if plan.asks_ends:
                self.readers.append(
                    EndReader(f"asker-{key}", site, topic_partition, key, every_us=every_us)
                )
            self._final.append(
                Consumer(
                    f"final-{key}", site, topic_partition, key, f="final", every_us=MILLISECOND
                )
            )

    def _new_broker(self) -> SimulatedBroker:
        return SimulatedBroker(
            self.config,
            self.replication,
            self.invariants,
            self.witness,
            hear_of_damage=self.operator.hear_of_damage,
            new_host=self.new_host,
            scrub_ms=self.scrub_ms,
        )

    # --- Cluster -----------------------------------------------------------------------------

    @property
    def clients(self) -> list[str]:
        return [each.name for each in (*self.producers, *self.readers)]

    @property
    def administered(self) -> "SimulatedCluster":
        return self

    @property
    def has_lost_disks(self) -> bool:
        """Whether a machine ever got an empty disk."""
        return any(machine.disk.wipes for machine in self.machines.values())

    @property
    def now(self) -> int:
        """Microseconds of virtual time."""
        return self._world.now

    @property
    def has_odd_store(self) -> bool:
        """Whether the store was ever anything but quick and honest, or somebody had to wait."""
        if self.store.weather != StoreWeather() or self.network.has_been_cut(STORE_NAME):
            self._had_odd_store = True
        return self._had_odd_store

    def _is_led(self) -> bool:
        return any(
            node.host.is_active and not self.machines[name].is_frozen
            for name, node in self.nodes().items()
        )

    def live_replicas(self, state: PartitionState) -> list[BrokerLife]:
        """The registered lives of a partition's replicas that are not fenced."""
        assert self.stored_cluster is not None
        brokers = [self.stored_cluster.brokers[each] for each in state.replicas]
        return [each.life for each in brokers if not each.is_fenced]

    def start(self) -> None:
        for machine in self.machines.values():
            machine.start()
        self._admin.ask()
        self._start([*self.producers, *self.readers])

    def _start(self, clients: Sequence[Client]) -> None:
        for client in clients:
            self._world.after(3 * SECOND, f"{client.name} starts", client.start)

    def disposable(self) -> list[TopicId]:
        return [
            each.topic_id
            for each in self.wanted()
            if each.is_disposable and each.topic_id in self.stored_topics
        ]

    def administer(self, request: Request) -> None:
        if isinstance(request, ElectLeaders) and request.kind is ElectionKind.UNCLEAN:
            self._elected_uncleanly.update(dict.fromkeys(request.partitions))
        self._admin.administer(request)

    def nodes(self) -> dict[str, SimulatedBroker]:
        """The brokers that run, by name."""
        return {
            name: machine.node
            for name, machine in self.machines.items()
            if isinstance(machine.node, SimulatedBroker)
        }

    def role(self, role: str) -> list[str]:
        found: list[str] = []
        for name, node in self.nodes().items():
            if role == "controller":
                plays = node.host.controller is not None
            elif node.replicas is None:
                plays = False
            else:
                leads = [node.replicas.get(each).leads for each in node.replicas]
                plays = any(leads) if role == "leader" else not all(leads)
            if plays:
                found.append(name)
        return found

    def stored_brokers(self) -> int:
        """How many brokers are registered and not fenced."""
        return 0 if self.stored_cluster is None else len(self.stored_cluster.usable_brokers())

    def may_be_cut(self, topic_partition: TopicPartition) -> bool:
        """Whether an unclean election of the partition is on record: records may be gone."""
        state = self.states.get(topic_partition)
        return state is not None and state.unclean_epoch >= 0

    def kept_from(self, topic_partition: TopicPartition) -> Offset:
        """Up to where retention may have given up a partition's records; 0: nowhere."""
        if not self.plans[topic_partition.topic_id].gives_up:
            return Offset(0)
        return self.invariants.log_starts.get(topic_partition, Offset(0))

    def check(self) -> None:
        while self._writes_seen < len(self.store.writes):
            self._on_stored(self._writes_seen)
            self._writes_seen += 1
        if self.invariants.touched:
            self.invariants.look_at_touched()
        self._events += 1
        if self._events % _EVENTS_PER_LOOK == 0:
            self.invariants.look()
        if self._events % _EVENTS_PER_LATE_LOOK == 0:
            self.witness.states.look()

    def begin_quiet(self) -> None:
        self._acknowledged_before = {each: each.acknowledged for each in self.producers}
        for recorder in self.recorders.values():
            self._record(recorder, INFO, "swarm", "window", "open")

    def end_quiet(self) -> None:
        for recorder in self.recorders.values():
            self._record(recorder, INFO, "swarm", "window", "close")
        for producer in self.producers:
            if producer not in self._acknowledged_before:
                continue  # Its topic was made meanwhile.
            count = producer.acknowledged - self._acknowledged_before[producer]
            # One that sends seldom may just have paused; nobody waits for long.
            is_short = count < 5 and producer.load.every_us <= SECOND
            is_waiting = not producer.is_idle and self._world.now - producer.begun_at > _WAIT_MAX
            if producer.load.acks is not None and (is_short or is_waiting):
                raise Violation(
                    f"{producer.name} was told of {count} values only, though all is quiet; "
                    f"{self.describe()}"
                )
        for topic_partition, state in self.states.items():
            is_moving = bool(state.adding or state.removing)
            if self._behind(topic_partition, state) or (is_moving and not self._just_replaced()):
                raise Violation(f"not all are in sync, though all is quiet; {self.describe()}")
        if any(self._tombstones.values()):
            raise Violation(f"deletions are not done, though all is quiet: {self._tombstones}")

    def _behind(self, topic_partition: TopicPartition, state: PartitionState) -> list[BrokerId]:
        """Replicas that should be in sync and are not: damage may be found late, even in quiet."""
        assert self.stored_cluster is not None
        since = self._world.now - _IN_SYNC_US
        in_sync = [life.broker_id for life in state.isr]
        late = self._just_replaced()
        late += [
            name
            for name, node in self.nodes().items()
            if node.renewed.get(topic_partition, since) > since
            or node.found_damaged.get(topic_partition, since) > since
        ]
        brokers = self.stored_cluster.brokers
        return [
            each
            for each in state.replicas
            if each not in in_sync and brokers[each].name not in late
        ]

    def _just_replaced(self) -> list[str]:
        since = self._world.now - _IN_SYNC_US
        return [name for name, at in self.operator.replaced_at.items() if at > since]

    def finish(self) -> Mapping[str, float]:
        for producer in self.producers:
            producer.is_stopped = True
        end = self._world.now + _FINAL_US
        self._run_until(end, lambda: all(each.is_idle for each in self.producers))
        for final in self._final:
            final.start()
        self._run_until(end, lambda: all(each.is_done for each in self._final))
        self._record_replicas()
        measures: dict[str, float] = {}
        for plan in self.wanted():
            for name, value in self._judge_history(plan).items():
                known = measures.get(name, 0.0)
                measures[name] = max(known, value) if name.startswith("longest") else known + value
        measures["operations"] = sum(
            op.type != "invoke" and op.f in ("send", "poll", "list_offsets")
            for recorder in self.recorders.values()
            for op in recorder.ops
        )
        measures["brokers"] = len(self.machines)
        measures["partitions"] = sum(each.partitions for each in self.wanted())
        return measures

    def _judge_history(
        self, plan: TopicPlan, expectations: Expectations = _TO_THE_END
    ) -> Mapping[str, float]:
        modes = plan.modes
        if any(map(self.may_be_cut, plan.keys)):
            modes.append("unclean-election")
        log_starts = {self.keys[each]: self.kept_from(each) for each in plan.keys}
        report = check(
            self.recorders[plan.topic_id].ops,
            modes=modes,
            expectations=expectations,
            # Where records may be lost, an offset that was known may be gone.
            realtime_lag_ns=_LAG_NS if modes == ["assign"] else None,
            log_starts=log_starts,
        )
        if not report.is_good:
            raise Violation(f"{', '.join([*report.failures, *report.missing])}\n{report.text()}")
        return report.measures

    def _run_until(self, end: int, is_done: Callable[[], bool]) -> None:
        while not is_done():
            if self._world.now >= end:
                raise Violation(f"it does not come to an end; {self.describe()}")
            self._world.run_until(self._world.now + SECOND // 10, self.check)

    # --- What is stored ----------------------------------------------------------------------

    def _on_stored(self, number: int) -> None:
        _, key, stored, writer = self.store.writes[number]
        self.invariants.on_write(stored.controller_epoch, writer)
        self.witness.states.on_written(key, stored)
        if key == CLUSTER_KEY:
            before, self.stored_cluster = self.stored_cluster, decode_cluster(stored)
            self.invariants.on_cluster(before, self.stored_cluster)
            self.witness.states.on_cluster(before, self.stored_cluster)
            return
        shard = decode_shard(SHARD_KEYS.index(key), stored)
        self._tombstones[shard.number] = shard.deletions
        for topic_id in shard.deletions:
            if topic_id in self.plans and topic_id not in self.deleted:
                self._on_deleted(topic_id)
        for topic_id, topic in shard.topics.items():
            self._on_settings(topic)
            for partition, state in enumerate(topic.partitions):
                topic_partition = TopicPartition(topic_id, partition)
                known = self.states.get(topic_partition)
                if known == state or topic_id not in self.plans:
                    continue
                self.states[topic_partition] = state
                if self._world.trace.is_detailed:
                    self._world.note(f"{named(topic_partition)}: {told_state(state)}")
                self.invariants.on_state(topic_partition, known, state)
                self.witness.states.on_state(topic_partition, topic, known, state)
                self._record(
                    self.recorders[topic_id],
                    INFO,
                    STORE,
                    "metadata",
                    {
                        "key": self.keys[topic_partition],
                        "partition_epoch": state.partition_epoch,
                        "leader_epoch": state.leader_epoch,
                        "controller_epoch": shard.controller_epoch,
                        "leader": state.leader,
                        "isr": [life.broker_id for life in state.isr],
                        "replicas": list(state.replicas),
                    },
                )

    def _on_deleted(self, topic_id: TopicId) -> None:
        """Judge what there was, and let another topic have the name."""
        plan = self.plans[topic_id]
        self._judge_history(plan, _UP_TO_NOW)
        self.deleted[topic_id] = None
        self.stored_topics.pop(topic_id, None)
        for topic_partition in plan.keys:
            self.states.pop(topic_partition, None)
        for client in (*self.producers, *self.readers):
            if client.topic_partition.topic_id == topic_id:
                client.retire()
        self.producers = [each for each in self.producers if not each.is_gone]
        self.readers = [each for each in self.readers if not each.is_gone]
        self._final = [each for each in self._final if each.topic_partition.topic_id != topic_id]
        producers, readers = len(self.producers), len(self.readers)
        self._plan_clients(dataclasses.replace(plan, incarnation=plan.incarnation + 1))
        self._start([*self.producers[producers:], *self.readers[readers:]])
        self._admin.ask()

    def _on_settings(self, topic: Topic) -> None:
        topic_id, now = topic.topic_id, self._world.now
        known = self.stored_topics.get(topic_id)
        if known is not None and known.overrides != topic.overrides:
            durability = topic.config.durability
            if durability is Durability.FSYNC and known.config.durability is not durability:
                self._durable_since[topic_id] = now + _FLUSHED_US
            if known.config.unclean_leader_election_enable:
                self._unclean_until[topic_id] = now
        self.stored_topics[topic_id] = topic

    def is_flushed(self, topic_id: TopicId) -> bool:
        """Whether what is committed must be on disk: not at once where that is asked for later."""
        durability = self.stored_topics[topic_id].config.durability
        is_settled = self._world.now >= self._durable_since.get(topic_id, 0)
        return durability is Durability.FSYNC and is_settled

    def was_unclean_wanted(self, topic_partition: TopicPartition) -> bool:
        """Whether an operator asked for it, or the topic's settings did up to this write."""
        until = self._unclean_until.get(topic_partition.topic_id, -1)
        return topic_partition in self._elected_uncleanly or until == self._world.now

    def describe(self) -> str:
        """Say how partitions and brokers stand."""
        return f"states {self.states}, up {list(self.nodes())}, roles: " + ", ".join(
            f"{role} {self.role(role)}" for role in ("controller", "leader", "follower")
        )

    def _record_replicas(self) -> None:
        for name, node in self.nodes().items():
            if node.replicas is None:
                continue
            for topic_partition in node.replicas:
                if topic_partition.topic_id in self.deleted:
                    continue
                log = node.logs[topic_partition]
                try:
                    batches = batches_of(log)
                except (CorruptBatchError, CorruptLogError):
                    self.operator.hear_of_damage(name)
                    continue
                details = {
                    "key": self.keys[topic_partition],
                    "log_start": log.log_start_offset,
                    "high_watermark": node.replicas.get(topic_partition).high_watermark,
                    "batches": batches,
                    "epochs": [list(entry) for entry in log.leader_epochs.entries],
                }
                recorder = self.recorders[topic_partition.topic_id]
                self._record(recorder, INFO, name, "replica", details)
            self.machines[name].disk.take_cost()  # That was not the broker's work.

    def _record(self, recorder: Recorder, type: str, process: str, f: str, details: object) -> None:
        recorder.record(Op(self._world.now * 1000, process, type, f, details=details))


def batches_of(log: PartitionLog) -> list[list[object]]:
    """Return base and last offset of each batch of a log, with a digest of its bytes."""
    found: list[list[object]] = []
    offset = log.log_start_offset
    while (plan := log.plan_read(offset, 1 << 20, log.log_end_offset)) is not None:
        for header, batch in walk(log.read(plan)):
            digest = _digest(log.topic_partition, bytes(batch))
            found.append([header.base_offset, header.next_offset - 1, digest])
        offset = plan.end_offset
    return found


@lru_cache(maxsize=1 << 15)  # Every replica has it.
def _digest(topic_partition: TopicPartition, batch: bytes) -> str:
    """Return the digest of a batch whose checksums hold."""
    verify_body(topic_partition, parse_header(batch), batch)
    return hashlib.blake2b(batch, digest_size=8).hexdigest()


def _families(*fault_ids: str) -> tuple[Family, ...]:
    return tuple(FAMILIES[fault_id] for fault_id in fault_ids)


class CrashingCluster(SimulatedCluster):
    """Processes end, stand still, and come back."""

    families = _families("F01", "F02", "F03", "F08", "F09", "F10", "F38", "F39", "F47", "F49")


class CutCluster(SimulatedCluster):
    """The network between brokers fails in every way, and clocks do."""

    families = _families(
        "F11", "F12", "F13", "F14", "F15", "F16", "F17", "F18", "F19", "F20", "F21", "F34"
    )


class PowerCluster(SimulatedCluster):
    """Machines lose power, and disks are slow, full, or fail."""

    families = _families("F04", "F05", "F06", "F07", "F22", "F23", "F24", "F26", "F27", "F33")


class StoreCluster(SimulatedCluster):
    """The coordination store is out, late, throttled, and loses answers."""

    families = _families("F40", "F42", "F43")


class SetBackCluster(SimulatedCluster):
    """Objects of the coordination store are gone, or older, until somebody restores them.

    Nobody goes on from there, which the end of each fault looks at.
    """

    families = _families("F01", "F02", "F03", "F38", "F41", "F45")


class VictimCluster(SimulatedCluster):
    """One machine gets an empty disk, or damage in files that are no segments."""

    families = _families("F30", "F36")


class DamagedCluster(SimulatedCluster):
    """One machine's segments are damaged; an operator gives it another disk."""

    families = _families("F25", "F28", "F29", "F31", "F32")


class ChangedCluster(SimulatedCluster):
    """Operators move replicas, change, delete and make topics, and drain brokers."""

    families = _families("F48", "F70", "F71", "F72", "F73")


class BrokerCluster(SimulatedCluster):
    """All of these faults, as the swarm draws them, on a cluster that is drawn, too."""

    families = (
        *CrashingCluster.families,
        *CutCluster.families,
        *PowerCluster.families,
        *StoreCluster.families,
        *VictimCluster.families,
        *DamagedCluster.families,
        *ChangedCluster.families,
    )

    def __init__(self, world: World) -> None:
        self.shape(world)
        super().__init__(world)

    def shape(self, world: World) -> None:
        """Draw what there is."""
        dice = world.random("shape")
        self.brokers = dice.choice((3, 3, 4, 5))
        self.topics = [_drawn_topic(dice, f"t{number}") for number in range(2)]
        if dice.random() < 0.5:
            self.topics.append(disposable_topic(dice))
        self.replication = dataclasses.replace(
            REPLICATION, replica_lag_time_max_ms=dice.choice((1_000, 3_000, 10_000))
        )


def drawn_config(dice: random.Random) -> dict[str, str]:
    """Draw what makes a difference to replication."""
    config = {
        "min.insync.replicas": dice.choice(("1", "2", "2")),
        "durability": dice.choice(("fsync", "fsync", "replicated")),
    }
    kept = dice.choice(("all", "all", "some", "new"))
    if kept == "some":
        config["retention.bytes"] = dice.choice(("10000", "40000"))
    elif kept == "new":  # By the leader's clock, which may jump.
        config["message.timestamp.type"] = "LogAppendTime"
        config["retention.ms"] = dice.choice(("20000", "90000"))
    return config


def _drawn_topic(dice: random.Random, name: str) -> TopicPlan:
    patient = Load(every_us=dice.choice((100, 300, 1000)) * MILLISECOND, burst_max=5)
    impatient = Load(every_us=300 * MILLISECOND, is_patient=False)
    return TopicPlan(
        name=name,
        partitions=dice.choice((1, 2, 3)),
        config=drawn_config(dice),
        loads=dice.choice(
            (
                (patient,),
                (patient, impatient),
                (patient, patient),
                (patient, impatient, Load(every_us=300 * MILLISECOND, acks=Acks.LEADER)),
                (patient, Load(every_us=300 * MILLISECOND, acks=None)),
            )
        ),
        reads_followers=dice.random() < 0.5,
        asks_ends=dice.random() < 0.5,
    )


def disposable_topic(dice: random.Random) -> TopicPlan:
    """Draw a topic that operators delete, and make again."""
    return TopicPlan(
        name="again",
        partitions=1,
        config=drawn_config(dice),
        loads=(Load(every_us=400 * MILLISECOND, burst_max=2),),
        is_disposable=True,
    )
