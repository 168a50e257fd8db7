"""A witness of what controllers decide: it checks every stored state against its rule.

Stored states follow one another. The previous state, the brokers, and the leaders' requests decide
which state may follow. One write may combine several changes, so rules about the previous state
apply to single steps only.

- A new leader gets a new leader epoch, and was in sync or eligible, unless an unclean election is
  stored (P25, P30). An unclean election needs permission, or that no broker has everything, and
  that each replica has been back since then (P31).
- A replica joins the ISR because the leader asked for it, on the present state, and in its
  registered life, which may join. So what the controller grants is the next state of the same
  leader (P19, P37).
- A replica that leaves while too few are left stays eligible (P26); with enough in sync, none is.
- A restarted broker stays eligible only with its data (P27); its earlier life is in no state (P37).
- A fenced broker leads nothing, and is not in sync (P29); a stopping one has handed over (P32).
- Brokers get only stored objects (P36). A repeated request to create a topic gets the existing one,
  for example when the first answer was lost.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from math import inf
from typing import Final, Protocol

from tests.sim.judges.log_witness import LogWitness
from tests.sim.judges.replica_witness import ReplicaWitness
from tests.sim.machines.machine import BrokerMachine
from tests.sim.world import SECOND, Violation

from millrace.core.errors import MalformedRequestError, MillraceError, TopicAlreadyExistsError
from millrace.core.ids import NO_BROKER, BrokerId, ControllerEpoch, TopicId, TopicPartition
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.model import (
    BrokerLife,
    BrokerRegistration,
    ClusterState,
    PartitionState,
    Topic,
)
from millrace.core.metadata.objects.stored_object import StoredObject
from millrace.core.metadata.requests import AlterPartitions, CreateTopics
from millrace.core.metadata.topic_config import Durability

_UNCLEAN: Final = "unclean.leader.election.enable"
_ELECTED_US: Final = 2 * SECOND
"""An election is stored within this time after the state that requires it."""
_STOPS_US: Final = 10 * SECOND
"""A broker that has waited for longer may give up."""


class Judged(Protocol):
    """The part of the cluster that a witness of states needs."""

    @property
    def config(self) -> ClusterConfig: ...
    @property
    def machines(self) -> Mapping[str, BrokerMachine]: ...
    @property
    def states(self) -> Mapping[TopicPartition, PartitionState]: ...
    @property
    def stored_topics(self) -> Mapping[TopicId, Topic]: ...
    @property
    def stored_all(self) -> Mapping[TopicId, Topic]: ...
    @property
    def stored_cluster(self) -> ClusterState | None: ...
    @property
    def now(self) -> int: ...
    @property
    def has_odd_store(self) -> bool: ...
    @property
    def has_lost_disks(self) -> bool: ...
    def was_unclean_wanted(self, topic_partition: TopicPartition) -> bool: ...
    def process_of(self, incarnation_id: str) -> str: ...


class StateWitness:
    """Judges each stored state, and what brokers are told of it.

    Args:
        cluster: the stored objects, and the running processes.
        logs: knows in which state processes found their disks.
        replicas: knows the requests of leaders.
        is_led: whether a controller is active, and not paused.
    """

    def __init__(
        self,
        cluster: Judged,
        logs: LogWitness,
        replicas: ReplicaWitness,
        is_led: Callable[[], bool],
    ) -> None:
        self._cluster = cluster
        self._logs = logs
        self._replicas = replicas
        self._is_led = is_led
        self._not_led_at = 0
        self._led_epoch: ControllerEpoch | None = None
        self._written: dict[tuple[str, int], StoredObject] = {}
        self._wipes: dict[str, int] = {}
        self._fenced_since: dict[BrokerLife, int] = {}
        self._changed_at: dict[TopicPartition, int] = {}
        self._epoch_since: dict[TopicPartition, int] = {}
        self._were_alive: set[BrokerLife] = set()
        self._durability: dict[tuple[TopicPartition, BrokerLife], Durability] = {}
        """The topic's durability when a life entered a state: it may change before the grant."""

    # --- What is stored ----------------------------------------------------------------------

    def on_written(self, key: str, stored: StoredObject) -> None:
        """An object was written."""
        self._written[key, stored.version] = stored

    def on_published(self, name: str, objects: Mapping[str, StoredObject]) -> None:
        """A controller sends objects to brokers."""
        for key, stored in objects.items():
            if self._written.get((key, stored.version)) != stored:
                raise Violation(f"{name} tells of version {stored.version} of {key}: not stored")

    def on_answered(self, request: object, result: object) -> None:
        """A controller answers a request."""
        if not isinstance(request, CreateTopics) or not isinstance(result, list):
            return
        for topic_id, outcome in zip(request.topic_ids, result, strict=True):
            is_refused = isinstance(outcome, MalformedRequestError | TopicAlreadyExistsError)
            if is_refused and topic_id in self._cluster.stored_all:
                raise Violation(f"a topic is there, and a second request for it gets: {outcome}")

    def on_altered(
        self,
        request: AlterPartitions,
        results: Sequence[PartitionState | MillraceError],
        allowed: Sequence[Container[BrokerLife]],
    ) -> None:
        """A controller answers what leaders have asked for.

        Args:
            allowed: of each change, who might be in sync when it decided.
        """
        for change, after, lives in zip(request.changes, results, allowed, strict=True):
            if isinstance(after, MillraceError):
                continue
            what = f"{change} is granted: {after}"
            if after.leader_life != change.leader or after.leader_epoch != change.leader_epoch:
                raise Violation(f"somebody else leads, and {what}")
            if after.partition_epoch not in (change.partition_epoch, change.partition_epoch + 1):
                raise Violation(f"the state was another one, and {what}")
            for life in change.isr:
                if life not in lives:
                    raise Violation(f"{life} may not join, and {what}")

    # --- Brokers -----------------------------------------------------------------------------

    def on_cluster(self, before: ClusterState | None, after: ClusterState) -> None:
        """The brokers changed."""
        for broker_id, broker in after.brokers.items():
            if broker.is_fenced:
                self._fenced_since.setdefault(broker.life, self._cluster.now)
            else:
                self._fenced_since.pop(broker.life, None)
                self._were_alive.add(broker.life)
            known = None if before is None else before.brokers.get(broker_id)
            if known is None or known.life != broker.life:
                self._on_registered(broker)

    def _on_registered(self, broker: BrokerRegistration) -> None:
        process = self._cluster.process_of(broker.incarnation_id)
        start = self._logs.starts.get(process)
        if self._cluster.machines[broker.name].disk.is_older_copy:
            raise Violation(f"{broker.name} is registered with an older copy of its disk")
        wipes = self._wipes.get(broker.name, 0)
        if start is not None:
            self._wipes[broker.name] = start.wipes
        for topic_partition, state in self._cluster.states.items():
            has_another_disk = start is not None and start.wipes != wipes
            if has_another_disk and broker.broker_id in state.last_known_elr:
                raise Violation(f"{broker.life} is last known in {state}, with another disk")
            for life in (*state.isr, *state.elr):
                if life.broker_id != broker.broker_id:
                    continue
                if life != broker.life:
                    raise Violation(f"{broker.life} begins, and {life} is in {state}")
                if start is None:
                    continue
                is_flushed = self._durability[topic_partition, life] is Durability.FSYNC
                if start.wipes != wipes:
                    raise Violation(f"{life} stays in {state}, with another disk")
                if not is_flushed and not start.was_closed:
                    raise Violation(f"{life} stays in {state}, and was not closed in order")

    def on_stopping(self, life: BrokerLife, waited_us: int) -> None:
        """A broker may stop, after it has waited for some time."""
        if self._cluster.has_odd_store or waited_us > _STOPS_US:
            return
        stored = self._cluster.stored_cluster
        assert stored is not None
        able = {broker.life for broker in stored.brokers.values() if broker.is_there}
        for topic_partition, state in self._cluster.states.items():
            if state.leader_life == life and any(broker in able for broker in state.isr):
                raise Violation(f"{life} stops, and leads {topic_partition}: {state}")

    def look(self) -> None:
        """Judge what takes time to show; to be called now and then."""
        now = self._cluster.now
        stored = self._cluster.stored_cluster
        epoch = None if stored is None else stored.controller_epoch
        if not self._is_led() or epoch != self._led_epoch:
            self._led_epoch = epoch  # The witness may have missed controllers in between.
            self._not_led_at = now
        if self._cluster.has_odd_store or now - self._not_led_at < _ELECTED_US:
            return
        past = now - _ELECTED_US
        late = {life for life, since in self._fenced_since.items() if since < past}
        if late:
            for topic_partition, state in self._cluster.states.items():
                if self._changed_at.get(topic_partition, 0) >= past:
                    continue  # A broker that is back may be elected a moment before that is stored.
                for life in state.isr:
                    if life in late:
                        raise Violation(f"{life} is fenced, and in sync in {topic_partition}")

    # --- Partitions --------------------------------------------------------------------------

    def on_state(
        self,
        topic_partition: TopicPartition,
        topic: Topic,
        before: PartitionState | None,
        after: PartitionState,
    ) -> None:
        """The state of a partition changed."""
        self._changed_at[topic_partition] = self._cluster.now
        epoch_since = self._epoch_since.get(topic_partition, self._cluster.now)
        if before is None or before.leader_epoch != after.leader_epoch:
            self._epoch_since[topic_partition] = self._cluster.now
        what = f"{before}, then {after}"
        min_isr = topic.config.effective_min_insync_replicas(after.replication_factor)
        if len(after.isr) >= min_isr and after.elr:
            raise Violation(f"enough are in sync, and others are eligible: {what}")
        for life in (*after.isr, *after.elr):
            self._durability.setdefault((topic_partition, life), topic.config.durability)
        if before is None:
            return
        leads = after.leader_life
        if leads not in (None, before.leader_life) and after.leader_epoch <= before.leader_epoch:
            raise Violation(f"another leader, and no other leader epoch: {what}")
        asked = self._asked(topic_partition, before, after)
        is_unclean = after.unclean_epoch > before.unclean_epoch
        if is_unclean:
            if not self._cluster.was_unclean_wanted(topic_partition):
                self._judge_unclean(topic, before, after, epoch_since)
            return
        had = {life.broker_id for life in (*before.isr, *before.elr)} | {
            life.broker_id for life in asked
        }
        if leads is not None and leads != before.leader_life and leads.broker_id not in had:
            raise Violation(f"{leads} leads, and was neither in sync nor eligible: {what}")
        for life in after.isr:
            if life not in before.isr and life != leads and life not in asked:
                raise Violation(f"{life} joins, and no leader asked for it: {what}")
        if len(after.isr) < min_isr and after.partition_epoch == before.partition_epoch + 1:
            self._judge_eligible(topic, before, after)

    def _asked(
        self, topic_partition: TopicPartition, before: PartitionState, after: PartitionState
    ) -> set[BrokerLife]:
        """The replicas that leaders have asked for on a state between two states."""
        return {
            life
            for proposal in self._replicas.proposals.get(topic_partition, ())
            if before.leader_epoch <= proposal.leader_epoch <= after.leader_epoch
            and before.partition_epoch <= proposal.partition_epoch < after.partition_epoch
            for life in proposal.isr
        }

    def _judge_eligible(self, topic: Topic, before: PartitionState, after: PartitionState) -> None:
        # A topic that has just become durable has records in memory only.
        is_flushed = topic.config.durability is Durability.FSYNC and not before.is_unflushed
        disks = [machine.disk for machine in self._cluster.machines.values()]
        if not is_flushed or self._cluster.has_lost_disks:
            return
        if any(disk.is_damaged or disk.failures for disk in disks):
            return  # The controller gives up a replica that cannot be read.
        kept = {life.broker_id for life in (*after.isr, *after.elr)}
        for life in (*before.isr, *before.elr):
            if life.broker_id in after.replicas and life.broker_id not in kept:
                raise Violation(f"{life} has everything, and is forgotten: {before}, then {after}")

    def _judge_unclean(
        self, topic: Topic, before: PartitionState, after: PartitionState, epoch_since: int
    ) -> None:
        what = f"an unclean election: {before}, then {after}"
        may_be = self._cluster.config.unclean_leader_election_enable
        if topic.overrides.get(_UNCLEAN, str(may_be)).lower() == "true":
            return
        if after.partition_epoch == before.partition_epoch + 1 and (before.isr or before.elr):
            raise Violation(f"{what}, though others have everything")
        last = before.last_known_leader
        if last == after.leader != NO_BROKER and before.last_known_elr == (last,):
            return  # It was the last in-sync replica (P31).
        for broker_id in before.replicas:
            if self._alive_until(broker_id) < epoch_since and not self._cluster.has_odd_store:
                raise Violation(f"{what}, and {broker_id} was not back since nobody leads")

    def _alive_until(self, broker_id: BrokerId) -> float:
        """Until when any life of a broker was not fenced; infinity: one still is not."""
        ends = (
            self._fenced_since.get(life, inf)
            for life in self._were_alive
            if life.broker_id == broker_id
        )
        return max(ends, default=-1)
