"""A simulated cluster of brokers of the product, its clients, and what must hold.

Judged after every event: the states that the store is given (C24). Every few events: one leader in
each epoch; high watermarks that never go back in an epoch; a new leader has all that was ever
committed. In quiet: everything is in sync, led, and moves on. At the end: the history of the
clients, and the replicas' bytes and epochs below their high watermarks (C23).
"""

import hashlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from tests.checkers.check import check
from tests.checkers.history import INFO, STORE, Op, Recorder
from tests.checkers.report import Expectations
from tests.sim.broker import SimulatedBroker
from tests.sim.client import Client, Consumer, Producer, Site
from tests.sim.coordination import SimulatedStore
from tests.sim.faults import FAMILIES, Family
from tests.sim.machine import Machine
from tests.sim.messages import Administer
from tests.sim.network import Network, NetworkEvent
from tests.sim.world import MILLISECOND, SECOND, Violation, World

from millrace.broker.storage.log import PartitionLog
from millrace.core.ids import LeaderEpoch, Offset, TopicId, TopicPartition
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.encoding import decode_cluster, decode_shard
from millrace.core.metadata.model import (
    CLUSTER_KEY,
    SHARD_KEYS,
    BrokerLife,
    PartitionState,
    shard_of,
)
from millrace.core.metadata.requests import CreateTopics, NewTopic
from millrace.core.records.batch import walk

TOPIC_ID: Final = TopicId(b"simulated topic!")

_EVENTS_PER_LOOK: Final = 32
_FINAL_US: Final = 60 * SECOND


class Admin:
    """Asks for the topic until it is there."""

    name = "admin"
    is_powered = True
    is_listening = True

    def __init__(self, cluster: "SimulatedCluster", world: World) -> None:
        self._cluster = cluster
        self._world = world
        self._network = cluster.network.attach(self)

    def deliver(self, event: NetworkEvent) -> None:
        """Nobody answers."""

    def ask(self) -> None:
        brokers = self._cluster.stored_brokers()
        if self._cluster.states:
            return
        if brokers >= len(self._cluster.machines):
            request = CreateTopics(
                topics=[
                    NewTopic(
                        name="t",
                        partitions=self._cluster.partitions,
                        replication_factor=self._cluster.replication_factor,
                        config=self._cluster.topic_config,
                    )
                ],
                topic_ids=[TOPIC_ID],
            )
            for name in self._cluster.machines:
                self._network.send(name, Administer(request))
        self._world.after(500 * MILLISECOND, "admin asks", self.ask)


class SimulatedCluster:
    """See the module; implements `Cluster`.

    Attributes:
        states: of every partition, as stored last.
    """

    brokers = 3
    partitions = 3
    replication_factor = 3
    topic_config: Mapping[str, str] = MappingProxyType({})
    families: tuple[Family, ...] = ()

    def __init__(self, world: World) -> None:
        self.network = Network(world)
        self.store = SimulatedStore(world, self.network)
        self.recorder = Recorder()
        self.config = ClusterConfig()
        self.states: dict[int, PartitionState] = {}
        self.machines = {
            f"broker-{number}": Machine(
                world, f"broker-{number}", self.network, self.store, self._new_broker
            )
            for number in range(self.brokers)
        }
        self._world = world
        self._admin = Admin(self, world)
        site = Site(world, self.network, self.recorder, list(self.machines))
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        for number in range(self.partitions):
            topic_partition = TopicPartition(TOPIC_ID, number)
            self.producers.append(
                Producer(
                    f"producer-{number}",
                    site,
                    topic_partition,
                    producer_id=number,
                    every_us=150 * MILLISECOND,
                )
            )
            self.consumers.append(
                Consumer(f"consumer-{number}", site, topic_partition, every_us=300 * MILLISECOND)
            )
        self._final = [
            Consumer(
                f"final-{number}",
                site,
                TopicPartition(TOPIC_ID, number),
                f="final",
                every_us=MILLISECOND,
            )
            for number in range(self.partitions)
        ]
        self._writes_seen = 0
        self._events = 0
        self._committed: dict[TopicPartition, Offset] = {}
        self._reigns: dict[tuple[TopicPartition, LeaderEpoch], tuple[BrokerLife, Offset]] = {}
        self._acknowledged_before: list[int] = []

    def _new_broker(self) -> SimulatedBroker:
        return SimulatedBroker(self.config)

    # --- Cluster -----------------------------------------------------------------------------

    def start(self) -> None:
        for machine in self.machines.values():
            machine.start()
        self._admin.ask()
        clients: list[Client] = [*self.producers, *self.consumers]
        for client in clients:
            self._world.after(3 * SECOND, f"{client.name} starts", client.start)

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
        stored = self.store.objects.get(CLUSTER_KEY)
        return 0 if stored is None else len(decode_cluster(stored).usable_brokers())

    def check(self) -> None:
        while self._writes_seen < len(self.store.writes):
            self._on_stored(self._writes_seen)
            self._writes_seen += 1
        self._events += 1
        if self._events % _EVENTS_PER_LOOK == 0:
            self._look()

    def begin_quiet(self) -> None:
        self._acknowledged_before = [each.acknowledged for each in self.producers]
        self._record(INFO, "swarm", "window", "open")

    def end_quiet(self) -> None:
        self._record(INFO, "swarm", "window", "close")
        for before, producer in zip(self._acknowledged_before, self.producers, strict=True):
            if producer.acknowledged < before + 10:
                raise Violation(
                    f"{producer.name} was told of {producer.acknowledged - before} values only, "
                    f"though all is quiet; {self.describe()}"
                )
        for state in self.states.values():
            if len(state.isr) < self.replication_factor:
                raise Violation(f"not all are in sync, though all is quiet; {self.describe()}")
        self._record_replicas()

    def finish(self) -> Mapping[str, float]:
        for producer in self.producers:
            producer.is_stopped = True
        end = self._world.now + _FINAL_US
        self._run_until(end, lambda: all(each.is_idle for each in self.producers))
        for final in self._final:
            final.start()
        self._run_until(end, lambda: all(each.is_done for each in self._final))
        self._record_replicas()
        report = check(self.recorder.ops, expectations=Expectations())
        if not report.is_good:
            raise Violation(f"{', '.join([*report.failures, *report.missing])}\n{report.text()}")
        return report.measures

    def _run_until(self, end: int, is_done: Callable[[], bool]) -> None:
        while not is_done():
            if self._world.now >= end:
                raise Violation(f"it does not come to an end; {self.describe()}")
            self._world.run_until(self._world.now + SECOND // 10, self.check)

    # --- What must hold ----------------------------------------------------------------------

    def _on_stored(self, number: int) -> None:
        _, key, stored = self.store.writes[number]
        if key == CLUSTER_KEY or SHARD_KEYS.index(key) != shard_of(TOPIC_ID):
            return
        shard = decode_shard(shard_of(TOPIC_ID), stored)
        topic = shard.topics.get(TOPIC_ID)
        for partition, state in enumerate(() if topic is None else topic.partitions):
            if self.states.get(partition) == state:
                continue
            self.states[partition] = state
            self._record(
                INFO,
                STORE,
                "metadata",
                {
                    "key": partition,
                    "partition_epoch": state.partition_epoch,
                    "leader_epoch": state.leader_epoch,
                    "controller_epoch": shard.controller_epoch,
                    "leader": state.leader,
                    "isr": [life.broker_id for life in state.isr],
                    "replicas": list(state.replicas),
                },
            )

    def _look(self) -> None:
        for name, node in self.nodes().items():
            if node.replicas is None:
                continue
            for topic_partition in node.replicas:
                leader = node.replicas.get(topic_partition).leader
                if leader is None or leader.is_resigned:
                    continue
                committed = self._committed.get(topic_partition, Offset(0))
                reign = (topic_partition, leader.leader_epoch)
                known = self._reigns.get(reign)
                what = f"{name}, leader of {topic_partition.partition} in {leader.leader_epoch}"
                if known is None:
                    if leader.next_offset < committed:
                        raise Violation(
                            f"{what}, ends at {leader.next_offset}; {committed} is committed"
                        )
                elif known[0] != leader.broker:
                    raise Violation(f"{what}, is not alone: {known[0]}")
                elif leader.high_watermark < known[1]:
                    raise Violation(
                        f"{what}, takes its high watermark back from {known[1]} to "
                        f"{leader.high_watermark}"
                    )
                self._reigns[reign] = (leader.broker, leader.high_watermark)
                self._committed[topic_partition] = max(committed, leader.high_watermark)

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
                log = node.logs[topic_partition]
                details = {
                    "key": topic_partition.partition,
                    "log_start": log.log_start_offset,
                    "high_watermark": node.replicas.get(topic_partition).high_watermark,
                    "batches": batches_of(log),
                    "epochs": [list(entry) for entry in log.leader_epochs.entries],
                }
                self._record(INFO, name, "replica", details)
            self.machines[name].disk.take_cost()  # That was not the broker's work.

    def _record(self, type: str, process: str, f: str, details: object) -> None:
        self.recorder.record(Op(self._world.now * 1000, process, type, f, details=details))


def batches_of(log: PartitionLog) -> list[list[object]]:
    """Return base and last offset of each batch of a log, with a digest of its bytes."""
    found: list[list[object]] = []
    offset = log.log_start_offset
    while (plan := log.plan_read(offset, 1 << 20, log.log_end_offset)) is not None:
        for header, batch in walk(log.read(plan)):
            digest = hashlib.blake2b(batch, digest_size=8).hexdigest()
            found.append([header.base_offset, header.next_offset - 1, digest])
        offset = plan.end_offset
    return found


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

    families = _families("F40", "F42", "F43", "F44")


class VictimCluster(SimulatedCluster):
    """One machine gets an empty disk, or damage in files that are no segments."""

    families = _families("F30", "F36")


class BrokerCluster(SimulatedCluster):
    """All of these faults, as the swarm draws them."""

    families = (
        *CrashingCluster.families,
        *CutCluster.families,
        *PowerCluster.families,
        *StoreCluster.families,
        *VictimCluster.families,
    )
