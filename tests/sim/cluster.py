"""A simulated cluster: the shipped brokers and clients, and what must hold.

At every write of the store, the cluster judges the stored states (C24). Many times a second it
judges the `invariants`, which need knowledge of all brokers at once. In quiet, every replica must
be in sync, every partition must have a leader, and writes must continue. At the end it judges the
clients' history, and the replicas' bytes and epochs below their high watermarks (C23).
"""

import dataclasses
import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from tests.checkers.check import check
from tests.checkers.copies import check_copy
from tests.checkers.history import INFO, STORE, Op, Recorder
from tests.checkers.report import Expectations
from tests.sim.clients.admin import Administration, TrimRecords
from tests.sim.clients.explorers import AdminExplorer, ConsumerExplorer, WriterExplorer
from tests.sim.clients.kafka.consumer_members import KafkaConsumerMember
from tests.sim.clients.kafka.copier import KafkaCopier
from tests.sim.clients.kafka.group_administrator import GroupAdministrator
from tests.sim.clients.kafka.members import KafkaMember
from tests.sim.clients.kafka.replica_administrator import ReplicaAdministrator
from tests.sim.clients.members import GroupMember, Observer
from tests.sim.clients.operator import Operator
from tests.sim.clients.readers_and_writers import (
    Client,
    EndReader,
    FinalReader,
    Job,
    Keeper,
    Reader,
    Site,
    Writer,
)
from tests.sim.clients.shared import Application, Board, Executor
from tests.sim.clients.transaction_operator import TransactionOperator
from tests.sim.clients.transactional import (
    Copier,
    TransactionalWriter,
    UncommittedReader,
)
from tests.sim.faults.family import Family
from tests.sim.judges.cleaner_witness import CleanerWitness
from tests.sim.judges.compared_logs import (
    batches_of,
    batches_of_values,
    committed_records,
    marks_among,
)
from tests.sim.judges.invariants import Invariants
from tests.sim.judges.log_witness import LogWitness
from tests.sim.judges.ownership import GROUP, Ownership
from tests.sim.judges.probes import Probes
from tests.sim.judges.quiet import Quiet
from tests.sim.judges.replica_witness import ReplicaWitness
from tests.sim.judges.state_witness import StateWitness
from tests.sim.judges.telling import state as told_state
from tests.sim.judges.witness import Witness
from tests.sim.machines.clocks import CLOCK_RATE_MAX
from tests.sim.machines.coordination import NAME as STORE_NAME
from tests.sim.machines.coordination import BlockingStore, SimulatedStore, StoreWeather
from tests.sim.machines.machine import BrokerMachine, BrokerProcess, ClientMachine
from tests.sim.machines.network import Network
from tests.sim.machines.rules_of_brokers import Login
from tests.sim.settings import NOBODY, Drpc, DrpcShares, Kafka, Settings
from tests.sim.topics import RunningTopic, TopicPlan, Transacting
from tests.sim.world import MILLISECOND, SECOND, Violation, World

from millrace.broker.coordination.store import CoordinationStore
from millrace.broker.storage.log import PartitionLog
from millrace.core.client.producer.murmur2 import partition_of
from millrace.core.errors import CorruptBatchError, CorruptLogError
from millrace.core.ids import (
    NO_LEADER_EPOCH,
    LeaderEpoch,
    Offset,
    TopicId,
    TopicPartition,
)
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.model import (
    CLUSTER_KEY,
    SHARD_KEYS,
    BrokerLife,
    ClusterState,
    DeletedTopic,
    PartitionState,
    StateShard,
    Topic,
    shard_of,
)
from millrace.core.metadata.objects.encoding import decode_cluster, decode_shard
from millrace.core.metadata.requests import (
    CreateTopics,
    ElectionKind,
    ElectLeaders,
    NewTopic,
    Request,
)
from millrace.core.metadata.topic_config import Durability
from millrace.core.topics import POSITIONS_TOPIC

_LOOKS_EVERY_US: Final = 80 * MILLISECOND
_FINAL_US: Final = 90 * SECOND
_TO_THE_END: Final = Expectations(ok_shares={"poll": 0.5})
_UP_TO_NOW: Final = Expectations(ok_shares={}, final_polls=False)
_FLUSHED_US: Final = 5 * SECOND
"""All replicas of a topic that becomes durable are flushed within this time."""
_STORED_AFTER_US: Final = 10 * SECOND
"""A deletion is stored within this time after a controller has begun to count."""
_PORT: Final = 7092
_KAFKA_PORT: Final = 9092
_KAFKA_TOO: Final = (Reader, UncommittedReader, KafkaMember, KafkaConsumerMember)
"""Readers that may speak Kafka's protocol."""
_COPIERS: Final = 2
_OPERATES_EVERY_US: Final = 3 * SECOND


class SimulatedCluster:
    """The machines, clients and judges of one run: a `Cluster` of the simulator.

    Attributes:
        states: the latest stored state of every partition.
        stored_topics: the topics that have clients, likewise.
        stored_deleted: the deleted topics that can be brought back, likewise.
        stored_all: all topics, likewise.
        stored_cluster: the cluster's state, likewise; None before the first.
        deleted: topics that were deleted, as stored, and are not to come back.
    """

    brokers = 3
    hosts = "10.0.0"
    """How the addresses of brokers begin."""
    is_calm = False
    """Whether nothing fails, so that no call of a client may block."""
    topics: Sequence[TopicPlan] = (TopicPlan(),)
    families: tuple[Family, ...] = ()
    settings: Settings = Settings()
    new_store: Callable[[SimulatedStore, str], CoordinationStore] = BlockingStore
    drpc_shares: DrpcShares | None = None
    """Who uses DRPC; None: the seed draws it."""
    kafka_member: type[KafkaMember] = KafkaMember
    """What members of the group are that speak Kafka's protocol."""
    kafka_share: float | None = NOBODY
    """Which share of writers and readers speaks Kafka's protocol; None: the seed draws it."""

    def __init__(self, world: World) -> None:
        self.network = Network(world)
        self.store = SimulatedStore(world, self.network)
        self.states: dict[TopicPartition, PartitionState] = {}
        self.stored_topics: dict[TopicId, Topic] = {}
        self.stored_deleted: dict[TopicId, DeletedTopic] = {}
        self.stored_all: dict[TopicId, Topic] = {}
        self.stored_cluster: ClusterState | None = None
        self.deleted: dict[TopicId, None] = {}
        self._world = world
        self._drpc = Drpc(world, self.drpc_shares)
        self._kafka = Kafka(world, self.kafka_share)
        self._processes: dict[str, str] = {}
        logs = LogWitness()
        replicas = ReplicaWitness(logs)
        states = StateWitness(self, logs, replicas, self._is_led)
        self.witness = Witness(logs, CleanerWitness(), replicas, states)
        self.machines: dict[str, BrokerMachine] = {
            f"broker-{number}": BrokerMachine(
                world,
                f"broker-{number}",
                self.network,
                f"{self.hosts}.{number + 1}",
                self._new_process,
            )
            for number in range(self.brokers)
        }
        self._bootstrap = ",".join(f"{machine.host}:{_PORT}" for machine in self.machines.values())
        self._kafka_bootstrap = ",".join(
            f"{machine.host}:{_KAFKA_PORT}" for machine in self.machines.values()
        )
        self._clients: dict[str, ClientMachine] = {}
        self.invariants = Invariants(self)
        self._administration = Administration(
            self._new_client("admin"),
            self._bootstrap,
            self.stored_topics,
            self.stored_deleted,
            self.invariants.on_trimmed,
        )
        self.operator = Operator(world, self.machines)
        self._probes = Probes(self)
        self.watching = self._probes.watching
        self.running: dict[TopicId, RunningTopic] = {}
        self._plans: dict[str, TopicPlan] = {topic.name: topic for topic in self.topics}
        self._keys_used = 0
        self._writers_made = 0
        self.tombstones: dict[TopicId, int] = {}  # Since when.
        self._deleted_since: dict[TopicId, int] = {}  # Of `stored_deleted`.
        self._durable_since: dict[TopicId, int] = {}
        self._unclean_until: dict[TopicId, int] = {}
        self._elected_uncleanly: dict[TopicPartition, None] = {}
        self._writes_seen = 0
        self._looks_at = 0
        self._had_odd_store = False
        self._had_unclean_internal = False
        self._ended_by_hand: Counter[str] = Counter()
        self.quiet = Quiet(self)
        self.ownership = Ownership(
            self._may_lose_positions,
            lambda: self._has_had_two_coordinators,
        )
        self._two_coordinators_at = -SECOND * 3600

    def _new_process(self, machine: BrokerMachine, name: str) -> BrokerProcess:
        return BrokerProcess(
            machine,
            name,
            self.settings.of(
                machine.name,
                machine.host,
                _PORT,
                self._drpc,
                kafka_port=_KAFKA_PORT if self._kafka.is_served else -1,
            ),
            lambda: self.new_store(self.store, machine.name),
            self._on_unexpected,
        )

    def _on_unexpected(self, error: BaseException) -> None:
        if self._probes.violation is None:
            text = "".join(traceback.format_exception(error))
            self._probes.violation = Violation(f"a broker fails unexpectedly\n{text}")

    def process_of(self, incarnation_id: str) -> str:
        """Return the name of the process with this incarnation id."""
        drawn = bytes.fromhex(incarnation_id)
        for machine in self.machines.values():
            if machine.node is not None and drawn in machine.node.host.drawn:
                self._processes[incarnation_id] = machine.node.name
        return self._processes.get(incarnation_id, "")

    def _is_led(self) -> bool:
        return any(
            node.is_controller and not self.machines[name].is_frozen
            for name, node in self.nodes().items()
        )

    def _new_kafka_client(self, name: str) -> ClientMachine:
        return self._new_client(name, speaks_kafka=True)

    def _new_client(
        self, name: str, *, may_speak_kafka: bool = False, speaks_kafka: bool = False
    ) -> ClientMachine:
        transport = self._drpc.transport(name)
        speaks_kafka = speaks_kafka or (may_speak_kafka and self._kafka.is_spoken_by(name))
        self._clients[name] = ClientMachine(
            self._world,
            name,
            self.network,
            transport,
            kafka=self._kafka_bootstrap if speaks_kafka else "",
        )
        self._clients[name].login = self.login_of(name)
        return self._clients[name]

    def login_of(self, client: str) -> Login | None:
        """Return as whom a client of Kafka logs in; None: it does not."""
        del client
        return None

    # --- Cluster -----------------------------------------------------------------------------

    @property
    def clients(self) -> Mapping[str, ClientMachine]:
        return self._clients

    @property
    def administered(self) -> "SimulatedCluster":
        return self

    @property
    def has_lost_disks(self) -> bool:
        """Whether any machine ever got an empty disk."""
        return any(machine.disk.wipes for machine in self.machines.values())

    @property
    def config(self) -> ClusterConfig:
        return self.settings.cluster

    @property
    def now(self) -> int:
        """Microseconds of virtual time."""
        return self._world.now

    @property
    def has_odd_store(self) -> bool:
        """Whether the store was ever slow or wrong, or a caller ever had to wait for it."""
        if self.store.weather != StoreWeather() or self.network.has_been_cut(STORE_NAME):
            self._had_odd_store = True
        return self._had_odd_store

    def live_replicas(self, state: PartitionState) -> list[BrokerLife]:
        """The registered lives of a partition's replicas that are not fenced."""
        assert self.stored_cluster is not None
        brokers = [self.stored_cluster.brokers[replica] for replica in state.replicas]
        return [broker.life for broker in brokers if not broker.is_fenced]

    def start(self) -> None:
        for machine in self.machines.values():
            machine.start()
        self._create_topics()

    def _create_topics(self) -> None:
        """Send requests until the topics exist."""
        there = {str(topic.name) for topic in self.stored_topics.values()}
        missing = [plan for name, plan in self._plans.items() if name not in there]
        if not missing:
            return
        missing = [plan for plan in missing if plan.made_at_us <= self._world.now]
        if self._is_time_for_topics():
            for plan in missing:
                new = NewTopic(
                    name=plan.name,
                    partitions=plan.partitions,
                    replication_factor=plan.replication_factor,
                    config=plan.config,
                )
                self._administration.ask(CreateTopics(topics=[new], topic_ids=[]))
        self._world.after(2 * SECOND, "admin asks", self._create_topics)

    def _is_time_for_topics(self) -> bool:
        return self.stored_brokers() >= len(self.machines)

    def disposable(self) -> list[TopicId]:
        return [
            topic.topic_id
            for topic in self.running.values()
            if topic.plan.is_disposable and not topic.is_gone
        ]

    def returnable(self) -> list[TopicId]:
        return [
            topic.topic_id
            for topic in self.running.values()
            if topic.plan.comes_back and topic.topic_id not in self.stored_deleted
        ]

    def administer(self, request: Request | TrimRecords) -> None:
        if isinstance(request, ElectLeaders) and request.kind is ElectionKind.UNCLEAN:
            self._elected_uncleanly.update(dict.fromkeys(request.partitions))
        self._administration.ask(request)

    def nodes(self) -> dict[str, BrokerProcess]:
        """The running brokers, by name."""
        return {
            name: machine.node
            for name, machine in self.machines.items()
            if machine.node is not None
        }

    def role(self, role: str) -> list[str]:
        found: list[str] = []
        for name, node in self.nodes().items():
            if role == "controller":
                plays = node.is_controller
            elif node.replicas is None:
                plays = False
            elif role == "coordinator":
                plays = self._coordinates(node)
            else:
                leads = [node.replicas.get(replica).leads for replica in node.replicas]
                plays = any(leads) if role == "leader" else not all(leads)
            if plays:
                found.append(name)
        return found

    def _coordinates(self, node: BrokerProcess) -> bool:
        """Whether a broker leads the partition that keeps the group, as far as it knows."""
        image, replicas = node.metadata, node.replicas
        topic = None if image is None else image.topics.get(POSITIONS_TOPIC)
        if topic is None or replicas is None:
            return False
        number = partition_of(GROUP.encode(), len(topic.partitions))
        place = TopicPartition(topic.topic_id, number)
        return place in replicas and replicas.get(place).leads

    @property
    def _has_had_two_coordinators(self) -> bool:
        """Whether two brokers have coordinated the group within about a session."""
        since = self._world.now - self._two_coordinators_at
        return since <= self.settings.groups.session_timeout_ms * MILLISECOND + SECOND

    def stored_brokers(self) -> int:
        """How many brokers are registered and not fenced."""
        if self.stored_cluster is None:
            return 0
        return sum(broker.is_there for broker in self.stored_cluster.brokers.values())

    def may_be_cut(self, topic_partition: TopicPartition) -> bool:
        """Whether records may be lost, by an unclean election of the partition that is stored."""
        state = self.states.get(topic_partition)
        return state is None or state.unclean_epoch >= 0

    def kept_from(self, topic_partition: TopicPartition) -> Offset:
        """The offset below which retention may have deleted a partition's records; 0: none."""
        topic = self.running.get(topic_partition.topic_id)
        if topic is None or not topic.plan.gives_up:
            return Offset(0)
        known = self.invariants.log_starts.get(topic_partition, Offset(0))  # As of the last look.
        logs = (node.log(topic_partition) for node in self.nodes().values())
        return max([known, *(log.log_start_offset for log in logs if log is not None)])

    def _newest_epoch(self, topic_partition: TopicPartition) -> LeaderEpoch:
        state = self.states.get(topic_partition)
        return NO_LEADER_EPOCH if state is None else state.leader_epoch

    def check(self) -> None:
        if self._probes.violation is not None:
            raise self._probes.violation
        while self._writes_seen < len(self.store.writes):
            self._on_stored(self._writes_seen)
            self._writes_seen += 1
        if self._world.now >= self._looks_at:
            self._looks_at = self._world.now + _LOOKS_EVERY_US
            self.invariants.look()
            self.witness.states.look()
            if self.ownership.sites and len(self.role("coordinator")) > 1:
                self._two_coordinators_at = self._world.now

    def all_writers(self) -> Iterator[Writer]:
        """The writers of all existing topics."""
        for topic in self.running.values():
            if not topic.is_gone:
                yield from topic.writers

    def all_transacting(self) -> Iterator[Transacting]:
        """The clients with transactions of all existing topics."""
        for topic in self.running.values():
            if not topic.is_gone:
                yield from topic.transacting

    def begin_quiet(self) -> None:
        self.quiet.begin()

    def end_quiet(self) -> None:
        self.quiet.end()

    def finish(self) -> Mapping[str, float]:
        topics = [topic for topic in self.running.values() if not topic.is_gone]
        for topic in topics:
            for client in (*topic.writers, *topic.transacting, *topic.readers):
                client.is_stopped = True
        end = self._world.now + _FINAL_US
        self._run_until(end, lambda: all(writer.is_over for writer in self.all_writers()))
        transacting = [client for topic in topics for client in topic.transacting]
        self._run_until(end, lambda: all(client.is_over for client in transacting))
        topics = [topic for topic in topics if not self._may_hang(topic)]
        for topic in topics:
            name = f"final-{topic.plan.name}-{topic.plan.incarnation}"
            machine = self._new_client(name, may_speak_kafka=True)
            topic.final = FinalReader(Job(name, self._site(topic), machine, MILLISECOND))
            topic.final.start()
        self._run_until(
            end, lambda: all(topic.final is not None and topic.final.is_over for topic in topics)
        )
        self._record_replicas()
        measures: dict[str, float] = {}
        for topic in topics:
            judge = self._judge_copy if topic.plan.copies else self._judge_history
            for name, value in judge(topic).items():
                known = measures.get(name, 0.0)
                measures[name] = max(known, value) if name.startswith("longest") else known + value
        measures["operations"] = sum(
            op.type != "invoke" and op.f in ("send", "poll", "list_offsets")
            for topic in topics
            for op in topic.recorder.ops
        )
        measures["brokers"] = len(self.machines)
        measures["partitions"] = sum(topic.plan.partitions for topic in topics)
        return measures

    def end(self) -> None:
        """End all processes."""
        for machine in self.machines.values():
            machine.kill()
        for client in self._clients.values():
            client.process.bury()

    def _judge_history(
        self, topic: RunningTopic, expectations: Expectations = _TO_THE_END
    ) -> Mapping[str, float]:
        modes = topic.plan.modes
        if any(map(self.may_be_cut, topic.partitions)):
            modes.append("unclean-election")
            if topic.plan.is_compacted:
                modes.append("compacted-unclean-election")
        log_starts = {
            key: self.kept_from(topic_partition)
            for key, topic_partition in zip(topic.keys, topic.partitions, strict=True)
        }
        report = check(
            topic.recorder.ops, modes=modes, expectations=expectations, log_starts=log_starts
        )
        if not report.is_good:
            raise Violation(f"{', '.join([*report.failures, *report.missing])}\n{report.text()}")
        return report.measures

    def _judge_copy(self, topic: RunningTopic) -> Mapping[str, float]:
        """Judge what committed readers have seen of a copy."""
        [original] = [
            other
            for other in self.running.values()
            if other.plan.name == topic.plan.copies and not other.is_gone
        ]
        if original.plan.incarnation or topic.plan.incarnation:
            return {}  # One was deleted for good, as a clock was far ahead.
        report = check_copy(original.recorder.ops, topic.recorder.ops, original.keys, topic.keys)
        if not any(map(self.may_be_cut, original.partitions)) and not report.is_good:
            raise Violation(f"{', '.join(report.failures)}\n{report.text()}")
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
        self._on_deletions(shard)
        kept = [deleted_topic.topic for deleted_topic in shard.deleted.values()]
        for topic in (*shard.topics.values(), *kept):
            topic_id = topic.topic_id
            if topic_id in self.deleted:
                continue
            if str(topic.name) not in self._plans:  # An internal topic.
                is_unclean = any(state.unclean_epoch >= 0 for state in topic.partitions)
                self._had_unclean_internal = self._had_unclean_internal or is_unclean
                continue
            if topic_id not in self.running:
                self._begin_topic(self._plans[str(topic.name)], topic_id)
            self._on_settings(topic)
            running = self.running[topic_id]
            for partition, state in enumerate(topic.partitions):
                topic_partition = TopicPartition(topic_id, partition)
                known = self.states.get(topic_partition)
                if known == state:
                    continue
                self.states[topic_partition] = state
                self._world.note(f"{topic.name}-{partition}: {told_state(state)}")
                self.invariants.on_state(topic_partition, known, state)
                self.witness.states.on_state(topic_partition, topic, known, state)
                self.record(
                    running.recorder,
                    INFO,
                    STORE,
                    "metadata",
                    {
                        "key": running.keys[partition],
                        "partition_epoch": state.partition_epoch,
                        "leader_epoch": state.leader_epoch,
                        "controller_epoch": shard.controller_epoch,
                        "leader": state.leader,
                        "isr": [life.broker_id for life in state.isr],
                        "replicas": list(state.replicas),
                    },
                )

    def _on_deletions(self, shard: StateShard) -> None:
        """Take note of deleted topics: one that comes back is judged as if it were there."""
        deleted_since = self._deleted_since.copy()
        for topic_id in (*shard.topics, *shard.deletions):
            self.stored_deleted.pop(topic_id, None)
            self._deleted_since.pop(topic_id, None)
        self.stored_deleted.update(shard.deleted)
        for topic_id in shard.deleted:
            self._deleted_since.setdefault(topic_id, self._world.now)
        before = [tombstone for tombstone in self.tombstones if shard_of(tombstone) == shard.number]
        for topic_id in {*before} - {*shard.deletions}:
            del self.tombstones[topic_id]
        for topic_id in shard.deletions:
            self.tombstones.setdefault(topic_id, self._world.now)
        for topic_id in (*shard.deletions, *shard.deleted):
            self.stored_all.pop(topic_id, None)
        self.stored_all.update(shard.topics)
        for deleted in shard.deleted.values():
            for state in deleted.topic.partitions:
                if state.isr:  # Nothing may be committed (P75).
                    raise Violation(f"{deleted.topic.name} is deleted, and not closed: {state}")
        for topic_id in (*shard.deletions, *shard.deleted):
            topic = self.running.get(topic_id)
            if topic is None or topic_id in self.deleted:
                continue
            if not topic.plan.comes_back:
                self._on_deleted(topic)
            elif topic_id in shard.deletions:
                if not self._may_be_over(deleted_since.get(topic_id, self._world.now)):
                    raise Violation(f"{topic.plan.name} is gone for good, and was to come back")
                self._on_deleted(topic)

    def _may_be_over(self, deleted_since: int) -> bool:
        """Whether the time of a deleted topic is over, by clocks that run too fast, but jump not.

        Controllers begin to count before the deletion is stored.
        """
        counted_us = (self._world.now - deleted_since + _STORED_AFTER_US) * CLOCK_RATE_MAX
        return counted_us >= self.settings.cluster.deleted_topic_retention_ms * MILLISECOND

    def _begin_topic(self, plan: TopicPlan, topic_id: TopicId) -> None:
        topic = self.running[topic_id] = RunningTopic(plan, topic_id, self._keys_used)
        self._keys_used += plan.partitions
        site = self._site(topic)
        writer = WriterExplorer if plan.is_explored else Writer
        suffix = f"{plan.name}-{plan.incarnation}"
        self._begin_transactions(topic, site)
        for load in plan.loads:
            number, self._writers_made = self._writers_made, self._writers_made + 1
            name = f"producer-{number}"
            machine = self._new_client(name, may_speak_kafka=not plan.is_explored)
            job = Job(name, site, machine, load.every_us)
            topic.writers.append(writer(job, number=number, load=load))

        def add(kind: str, client: Callable[..., Client], **arguments: object) -> None:
            name = f"{kind}-{suffix}"
            machine = self._new_client(name, may_speak_kafka=client in _KAFKA_TOO)
            job = Job(name, site, machine, plan.polls_every_us)
            topic.readers.append(client(job, **arguments))

        add("consumer", Reader)
        if plan.reads_followers:
            zone = self._world.random(f"neighbour-{suffix}").choice(list(self.machines))
            add("neighbour", Reader, zone=zone)
        if plan.asks_ends:
            add("asker", EndReader)
        if plan.keeps_positions:
            add("keeper", Keeper, may_be_lost=self._may_lose_positions)
        if plan.group is not None or self._is_read_by_pattern(plan.name):
            self.ownership.sites[plan.name] = site
        if plan.group is not None:
            kinds = (self.kafka_member, GroupMember)
            kind, other = kinds if self._kafka.is_spoken_by_groups else reversed(kinds)
            for number in range(plan.group.members + plan.group.others):
                is_other = number >= plan.group.members
                add(
                    f"other-{number}" if is_other else f"member-{number}",
                    other if is_other else kind,
                    number=number,
                    plan=plan.group,
                    ownership=self.ownership,
                )
            add("observer", Observer, ownership=self.ownership)
        if plan.is_transactional:
            add("open-reader", UncommittedReader)
        if plan.is_trimmed or (plan.transactions is not None and plan.transactions.has_operator):
            name = f"operator-{suffix}"
            job = Job(name, site, self._new_client(name), _OPERATES_EVERY_US)
            trimmed = self.invariants.on_trimmed if plan.is_trimmed else None
            topic.readers.append(
                TransactionOperator(job, may_be_lost=self.may_lose_transactions, on_trimmed=trimmed)
            )
        if plan.is_explored:
            add("explorer", ConsumerExplorer, is_calm=self.is_calm)
            add(
                "inspector",
                AdminExplorer,
                is_calm=self.is_calm,
                may_be_lost=self._may_lose_positions,
            )
        if plan.is_administered and self._kafka.is_served:
            self._begin_administration(topic, site)
        for client in (*topic.writers, *topic.transacting, *topic.readers):
            client.start()

    def _begin_administration(self, topic: RunningTopic, site: Site) -> None:
        """Make the administrators that speak Kafka's protocol."""
        may_be_lost = self.may_lose_transactions
        names = [f"{kind}-{topic.plan.name}" for kind in ("administrator", "group-administrator")]
        [of_topics, of_groups] = [
            Job(name, site, self._new_kafka_client(name), topic.plan.polls_every_us)
            for name in names
        ]
        topic.transacting += [
            ReplicaAdministrator(of_topics, may_be_lost=may_be_lost, stored=self._stored),
            GroupAdministrator(of_groups, may_be_lost=may_be_lost),
        ]

    def _begin_transactions(self, topic: RunningTopic, site: Site) -> None:
        """Make the clients that write transactions into a topic."""
        plan, may_be_lost = topic.plan, self.may_lose_transactions
        every_us = plan.polls_every_us
        if plan.transactions is not None:
            for _ in range(plan.transactions.writers):
                number, self._writers_made = self._writers_made, self._writers_made + 1
                name = f"transactions-{number}"
                job = Job(name, site, self._new_client(name, may_speak_kafka=True), every_us)
                topic.transacting.append(
                    TransactionalWriter(
                        job, number=number, plan=plan.transactions, may_be_lost=may_be_lost
                    )
                )
        if plan.application is not None:
            board = Board()
            number, self._writers_made = self._writers_made, self._writers_made + 1
            name = f"application-{number}"
            job = Job(name, site, self._new_client(name), every_us)
            topic.transacting.append(
                Application(
                    job,
                    number=number,
                    plan=plan.application,
                    board=board,
                    may_be_lost=may_be_lost,
                )
            )
            for executor in range(plan.application.executors):
                job = Job(f"{name}-{executor}", site, self._new_client(f"{name}-{executor}"), 0)
                topic.readers.append(Executor(job, application=name, board=board))
        if plan.copies:
            for number in range(_COPIERS):
                name = f"copier-{number}-{plan.name}"
                machine = self._new_client(name, may_speak_kafka=True)
                copier = KafkaCopier if machine.kafka else Copier
                job = Job(name, site, machine, every_us)
                topic.transacting.append(copier(job, source=plan.copies, may_be_lost=may_be_lost))

    def may_lose_transactions(self) -> bool:
        """Whether any partition that takes part in transactions may have lost some."""
        return self._had_unclean_internal or any(
            self.may_be_cut(topic_partition)
            for topic in self.running.values()
            if topic.plan.is_transactional and not topic.is_gone
            for topic_partition in topic.partitions
        )

    def _may_hang(self, topic: RunningTopic) -> bool:
        """Whether a marker of a topic may be lost, so that its readers wait for ever."""
        return topic.plan.is_transactional and self.may_lose_transactions()

    def _is_read_by_pattern(self, name: str) -> bool:
        patterns = [topic.group.pattern for topic in self.topics if topic.group is not None]
        return any(re.fullmatch(pattern, name) for pattern in patterns if pattern)

    def _may_lose_positions(self) -> bool:
        return self._had_unclean_internal

    def _stored(self, name: str) -> Topic | None:
        found = (topic for topic in self.stored_all.values() if str(topic.name) == name)
        return next(found, None)

    def _site(self, topic: RunningTopic) -> Site:
        return Site(
            self._world,
            self._bootstrap,
            topic.plan.name,
            topic.recorder,
            topic.keys,
            topic.partitions,
            self.may_be_cut,
            self.kept_from,
            self._newest_epoch,
            lambda partition: self.witness.replicas.committed.get(partition, Offset(0)),
            lambda: topic.is_gone,
            lambda name: self._stored(name) is not None,
            lambda: self.quiet.is_now,
            lambda: any(machine.disk.is_damaged for machine in self.machines.values()),
            topic.marks,
            topic.plan.is_transactional,
            topic.untimed,
            topic.plan.config.get("message.timestamp.type") == "LogAppendTime",
            self._ended_by_hand,
        )

    def _on_deleted(self, topic: RunningTopic) -> None:
        """Judge the history of a deleted topic, then let a new topic have its name."""
        self._judge_history(topic, _UP_TO_NOW)
        topic.is_gone = True
        self.deleted[topic.topic_id] = None
        self.stored_topics.pop(topic.topic_id, None)
        for topic_partition in topic.partitions:
            self.states.pop(topic_partition, None)
        for client in (*topic.writers, *topic.transacting, *topic.readers):
            self._clients[client.name].process.bury()
        plan = topic.plan
        self._plans[plan.name] = dataclasses.replace(plan, incarnation=plan.incarnation + 1)
        self._world.after(0, "admin asks", self._create_topics)

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
        """Whether committed records must be on disk; a topic that became durable has some time."""
        durability = self.stored_topics[topic_id].config.durability
        is_settled = self._world.now >= self._durable_since.get(topic_id, 0)
        return durability is Durability.FSYNC and is_settled

    def was_unclean_wanted(self, topic_partition: TopicPartition) -> bool:
        """Whether an operator asked for the election, or the topic allowed it up to this write."""
        until = self._unclean_until.get(topic_partition.topic_id, -1)
        return topic_partition in self._elected_uncleanly or until == self._world.now

    def describe(self) -> str:
        """Describe the state of partitions and brokers."""
        return f"states {self.states}, up {list(self.nodes())}, roles: " + ", ".join(
            f"{role} {self.role(role)}" for role in ("controller", "leader", "follower")
        )

    def _record_replicas(self) -> None:
        for name, node in self.nodes().items():
            if node.replicas is None:
                continue
            for topic_partition in node.replicas:
                topic = self.running.get(topic_partition.topic_id)
                log = node.logs.get(topic_partition)
                if topic is None or topic.is_gone or log is None:
                    continue
                replica = node.replicas.get(topic_partition)
                end = replica.high_watermark
                try:
                    if topic.marks is None:
                        batches = batches_of(log)
                    else:
                        records = committed_records(log)
                        batches = batches_of_values(records)
                        end = replica.last_stable_offset  # Cleaned or not, the same counts.
                        if self._is_final(topic, log):
                            marks = marks_among(records)
                            topic.marks.judge(topic_partition.partition, marks, where=name)
                except (CorruptBatchError, CorruptLogError):
                    self.operator.hear_of_damage(name)
                    continue
                details = {
                    "key": topic.keys[topic_partition.partition],
                    "log_start": log.log_start_offset,
                    "high_watermark": end,
                    "batches": batches,
                    "epochs": [list(entry) for entry in log.leader_epochs.entries],
                }
                self.record(topic.recorder, INFO, name, "replica", details)

    def _is_final(self, topic: RunningTopic, log: PartitionLog) -> bool:
        """Whether a log must end with what writers were told."""
        is_open = log.undecided.open_offset < log.log_end_offset
        return not (is_open or self._may_hang(topic) or self.may_be_cut(log.topic_partition))

    def record(self, recorder: Recorder, type: str, process: str, f: str, details: object) -> None:
        recorder.record(Op(self._world.now * 1000, process, type, f, details=details))
