"""Invariants of a simulated cluster at every moment, judged with the knowledge of all brokers.

No broker can check them: each invariant is about several brokers. The product's rules exist to keep
them, so a missing rule shows here long before a client gets a wrong answer.

- Each epoch has one leader, whose high watermark never goes back and starts with everything that
  was ever committed (P9, P25).
- The last stable offset is never before the log's start (T6) nor beyond the high watermark, and a
  leader's never goes back (P52).
- Everything below the high watermark is on every replica that the stored state calls in sync,
  flushed or written as the topic requires (P9, P13, P19 to P22), and on every eligible one (P26).
- A leader that knows of too few in-sync replicas appends nothing for `acks=all`, and commits
  nothing (P9, P14).
- Each controller has an epoch of its own (P35), and writes only while it holds the lease (P38). No
  broker follows an earlier controller than before (P39).
- An unclean election needs an operator's request, or is the last resort. Then it takes the best
  log, including those of dead brokers (P30, P31).
- A reassignment removes replicas only when the new ones are in sync (P33).
- A broker that may lead knows that it is registered (P28). A replica that joins the ISR is not
  fenced, and is in its registered life (P19), as far as the store was quick to say so.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.sim.machines.disk import SimulatedDisk
from tests.sim.settings import DIRECTORIES
from tests.sim.world import MILLISECOND, Violation

from millrace.broker.storage import inspection
from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.log_directory import is_log_directory, read_identity
from millrace.core.controller.partitions.elections import Rules
from millrace.core.ids import (
    NO_BROKER,
    NO_LEADER_EPOCH,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    Offset,
    TopicPartition,
)
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import (
    BrokerLife,
    BrokerRegistration,
    ClusterState,
    PartitionState,
)
from millrace.core.metadata.topic_config import Durability
from millrace.core.replica.replication.effects import RecordsLost
from millrace.core.replica.replication.leader import PartitionLeader

if TYPE_CHECKING:
    from tests.sim.cluster import SimulatedCluster
    from tests.sim.machines.machine import BrokerMachine, BrokerProcess


_BROKER_EPOCH: Final = "broker-epoch"
"""The file of a log directory that names the life that used it last."""

_Logs = Mapping[TopicPartition, PartitionLog]
_NONE_OPEN: Final[_Logs] = {}

_KNOWN_US: Final = 200 * MILLISECOND
"""A change, and what follows from it, is stored within this time."""


@dataclass(slots=True)
class _Reign:
    """One leader in one epoch, as of the last look."""

    broker: BrokerLife
    high_watermark: Offset
    stable: Offset
    short_since: tuple[object, object, Offset] | None = None


class _WhichDisk(NamedTuple):
    """Which disk a broker has.

    Attributes:
        wipes: how often it was replaced by an empty one.
        forgot: how often it lost the record of its life. Its age is then unknown, so its content
            counts as lost until the replica is in sync again.
        set_backs: how often it was set back to an earlier state of the same life.
    """

    wipes: int = 0
    forgot: int = 0
    set_backs: int = 0


class _Leading(NamedTuple):
    """A broker that leads; in a violation, its name, which is formatted only when needed."""

    name: str
    topic_partition: TopicPartition
    leader: PartitionLeader

    def __str__(self) -> str:
        return f"{self.name}, leader of {self.topic_partition} in {self.leader.leader_epoch}"


class Invariants:
    """What is known of all brokers: a `Judge` of the stored states.

    Attributes:
        committed: for each partition, the highest high watermark of any leader while it was the
            stored one.
        log_starts: for each partition, the highest log start offset of any leader.
        lost: for each partition, the records that brokers reported as lost in unclean elections.
        damaged_at: when a log of a broker was last seen to be damaged.
        renewed: when a broker last replaced a damaged log by an empty one.
    """

    def __init__(self, cluster: "SimulatedCluster") -> None:
        self.committed: dict[TopicPartition, Offset] = {}
        self.log_starts: dict[TopicPartition, Offset] = {}
        self.lost: dict[TopicPartition, list[RecordsLost]] = {}
        self.damaged_at: dict[tuple[str, TopicPartition], int] = {}
        self.renewed: dict[tuple[str, TopicPartition], int] = {}
        self._cluster = cluster
        self._reigns: dict[tuple[TopicPartition, LeaderEpoch], _Reign] = {}
        self._gone_for_good: dict[TopicPartition, Offset] = {}
        """The highest low watermark of any leader."""
        self._was_set_back = False  # Any disk, as of the last look.
        self._given_up: dict[TopicPartition, Offset] = {}
        """As `log_starts`, but at most the end of a leader that was elected uncleanly since: later
        offsets get other records."""
        self._controllers: dict[ControllerEpoch, str] = {}
        self._followed: dict[tuple[str, int], ControllerEpoch] = {}
        """By machine and disk: a new disk does not know the earlier controllers."""
        self._disks: dict[BrokerLife, _WhichDisk] = {}
        """The disk of each life; a new topic may name a life whose process is dead."""
        self._disk_in_sync: dict[tuple[TopicPartition, BrokerId], _WhichDisk] = {}
        """The disk that a replica had when it last came in sync."""
        self._unfit_since: dict[BrokerLife, int] = {}

    def on_trimmed(self, topic_partition: TopicPartition, offset: Offset) -> None:
        """A client was told that the records before an offset are deleted for good."""
        gone = self._gone_for_good.get(topic_partition, Offset(0))
        self._gone_for_good[topic_partition] = max(gone, offset)

    # --- At what is stored -------------------------------------------------------------------

    def on_write(self, controller_epoch: ControllerEpoch, writer: str) -> None:
        """A controller's write was applied."""
        known = self._controllers.setdefault(controller_epoch, writer)
        if known != writer:
            raise Violation(
                f"{writer} writes in controller epoch {controller_epoch}, which is {known}'s"
            )

    def on_cluster(self, before: ClusterState | None, after: ClusterState) -> None:
        """The brokers changed."""
        nodes = self._nodes_by_life()
        for broker_id, broker in after.brokers.items():
            old = None if before is None else before.brokers.get(broker_id)
            self._disks.setdefault(broker.life, self._disk_of(broker))
            if broker.is_fenced:
                self._unfit_since.setdefault(broker.life, self._cluster.now)
            else:
                self._unfit_since.pop(broker.life, None)
            if old is not None and old.life != broker.life:
                self._unfit_since[old.life] = self._cluster.now
            known = None if before is None else before.brokers.get(broker_id)
            node = nodes.get(broker.life)
            if node is None or broker.is_fenced or known is None or not known.is_fenced:
                continue
            image = node.metadata
            seen = None if image is None else image.cluster.brokers.get(broker_id)
            if seen is None or seen.life != broker.life:
                raise Violation(f"{broker.life} may lead, and does not know of itself: {seen}")

    def on_state(
        self, topic_partition: TopicPartition, before: PartitionState | None, after: PartitionState
    ) -> None:
        """The state of a partition changed."""
        if before is not None:
            self._judge_change(topic_partition, before, after)
        for life in after.isr:
            if before is None or life not in before.isr:
                self._disk_in_sync[topic_partition, life.broker_id] = self._disks[life]

    def _judge_change(
        self, topic_partition: TopicPartition, before: PartitionState, after: PartitionState
    ) -> None:
        if before.removing and not after.removing and after.replicas == before.target:
            in_sync = {life.broker_id for life in (*before.isr, *after.isr)}
            if not in_sync.issuperset(before.adding):
                raise Violation(f"replicas go before others came: {before}, then {after}")
        is_asked = before.leader_epoch == after.leader_epoch  # The leader asked for it.
        if is_asked and not self._cluster.has_odd_store:
            for life in after.isr:
                unfit_since = self._unfit_since.get(life)
                if (
                    life not in before.isr
                    and unfit_since is not None
                    and self._cluster.now - unfit_since > _KNOWN_US
                ):
                    raise Violation(f"{life} joins, and is fenced or past: {before}, then {after}")
        if after.unclean_epoch > before.unclean_epoch:
            self._on_unclean(topic_partition, before, after)

    def _on_unclean(
        self, topic_partition: TopicPartition, before: PartitionState, after: PartitionState
    ) -> None:
        cluster = self._cluster
        self.committed[topic_partition] = Offset(0)
        elected = (
            None if after.leader_life is None else self._nodes_by_life().get(after.leader_life)
        )
        log = None if elected is None else elected.log(topic_partition)
        if log is not None:
            end = log.log_end_offset
            given_up = self._given_up.get(topic_partition, Offset(0))
            self._given_up[topic_partition] = min(given_up, end)
        assert cluster.stored_cluster is not None
        topic = cluster.stored_topics[topic_partition.topic_id]
        rules = Rules.of(topic, cluster.stored_cluster.brokers, cluster.config)
        if rules.may_elect_unclean or cluster.was_unclean_wanted(topic_partition):
            return
        keeps = (
            topic.config.durability is Durability.FSYNC
            and not before.is_unflushed
            and not any(self._has_lost(topic_partition, replica) for replica in before.replicas)
        )
        if keeps and rules.min_isr(before) > 1:
            raise Violation(f"an unclean election that nobody wanted: {before}, then {after}")
        if any(life in cluster.live_replicas(before) for life in before.elr):
            raise Violation(f"an unclean election, though somebody is eligible: {before}")
        if before.last_known_elr == (after.leader,) and not before.elr:
            return  # It was the last in-sync replica, and still has its disk.
        nodes = self._nodes_by_life()
        ends: dict[BrokerLife, tuple[int, int]] = {}
        for broker_id in before.replicas:
            broker = cluster.stored_cluster.brokers[broker_id]
            node, machine = nodes.get(broker.life), cluster.machines[broker.name]
            log = None if node is None else node.log(topic_partition)
            # A life that died after it had told its end may be elected, and may have lost its disk.
            has_its_disk = self._disks[broker.life] == self._disk_of(broker)
            if log is not None:
                ends[broker.life] = (log.leader_epochs.latest_epoch, log.log_end_offset)
            elif machine.node is None and has_its_disk and not machine.disk.is_damaged:
                ends[broker.life] = _end_on_disk(machine.disk, topic_partition)
        chosen = after.leader_life
        if chosen in ends and ends[chosen] < max(ends.values()):
            raise Violation(f"{chosen} is elected uncleanly, and not the best of {ends}")

    def _disk_of(self, broker: BrokerRegistration) -> _WhichDisk:
        disk = self._cluster.machines[broker.name].disk
        forgot = sum(path.endswith(f"/{_BROKER_EPOCH}") for path in disk.damaged)
        return _WhichDisk(disk.wipes, forgot, disk.set_backs)

    def _has_lost(self, topic_partition: TopicPartition, broker_id: BrokerId) -> bool:
        """Whether a replica got another disk, or one of unknown age, and is not in sync since."""
        assert self._cluster.stored_cluster is not None
        disk = self._disk_of(self._cluster.stored_cluster.brokers[broker_id])
        return disk != self._disk_in_sync.get((topic_partition, broker_id), _WhichDisk())

    def _is_set_back(self, topic_partition: TopicPartition, life: BrokerLife) -> bool:
        """Whether a replica's disk was set back: it must show its log before it leads (P26)."""
        last = self._disk_in_sync.get((topic_partition, life.broker_id), _WhichDisk())
        return self._disks[life].set_backs != last.set_backs

    # --- At what brokers do ------------------------------------------------------------------

    def on_deleting(self, name: str, topic_partition: TopicPartition) -> None:
        """A broker is about to delete its data of a partition (P33, P70)."""
        cluster = self._cluster
        if topic_partition.topic_id not in cluster.running:
            return
        if topic_partition.topic_id in cluster.deleted:
            return
        state = cluster.states.get(topic_partition)
        assert cluster.stored_cluster is not None
        counts = () if state is None else (*state.isr, *state.elr)
        names = [cluster.stored_cluster.brokers[life.broker_id].name for life in counts]
        if state is None or name in names:
            raise Violation(f"{name} deletes {topic_partition}, and the state is {state}")

    def on_lost(self, records: RecordsLost) -> None:
        """A broker reports the cost of an unclean election (P30)."""
        self.lost.setdefault(records.topic_partition, []).append(records)

    def on_given_up(
        self, topic_partition: TopicPartition, leader_epoch: LeaderEpoch, offset: Offset
    ) -> None:
        """A leader, perhaps one that was replaced, keeps nothing before an offset."""
        state = self._cluster.states.get(topic_partition)
        if state is None or leader_epoch >= state.unclean_epoch:
            given_up = self._given_up.get(topic_partition, Offset(0))
            self._given_up[topic_partition] = max(given_up, offset)

    def on_full_state(self, machine: "BrokerMachine", controller_epoch: ControllerEpoch) -> None:
        """A broker has taken up what a controller says that there is (P39).

        It keeps the epoch on its disk before it follows; a damaged file, or a disk that was put
        back, does not tell it any more.
        """
        disk = machine.disk
        known = self._followed.get((machine.name, disk.wipes), controller_epoch)
        forgets = disk.is_damaged or disk.is_older_copy or disk.set_backs
        if controller_epoch < known and not forgets:
            raise Violation(
                f"{machine.name} takes up the state of controller epoch {controller_epoch}, and "
                f"has followed {known}"
            )

    # --- At every look -----------------------------------------------------------------------

    def look(self) -> None:
        """Judge all brokers in their present state."""
        by_life = self._logs_by_life()
        self._was_set_back = any(
            machine.disk.set_backs for machine in self._cluster.machines.values()
        )
        for name, node in self._cluster.nodes().items():
            replicas, image = node.replicas, node.metadata
            if replicas is None or self._cluster.machines[name].is_frozen:
                continue
            if image is not None:
                self._judge_image(name, image)
            for topic_partition in node.failed:
                self.damaged_at[name, topic_partition] = self._cluster.now
            for topic_partition in replicas:
                if topic_partition.topic_id not in self._cluster.running:
                    continue
                leader = replicas.get(topic_partition).leader
                if leader is None or leader.is_resigned:
                    continue
                log = node.log(topic_partition)
                if log is not None:
                    self._judge_leader(name, topic_partition, leader, log, by_life)
                    self._judge_start(name, topic_partition, log)
        for topic_partition, state in self._cluster.states.items():
            self._judge_eligible(topic_partition, state, by_life)

    def _nodes_by_life(self) -> "dict[BrokerLife, BrokerProcess]":
        return {node.life: node for node in self._cluster.nodes().values() if node.life is not None}

    def _logs_by_life(self) -> dict[BrokerLife, _Logs]:
        """The open logs of each running broker."""
        nodes = self._cluster.nodes().values()
        return {node.life: node.logs for node in nodes if node.life is not None}

    def _judge_image(self, name: str, image: MetadataImage) -> None:
        """A broker never follows an earlier controller than before (P39)."""
        controller_epoch = image.cluster.controller_epoch
        key = name, self._cluster.machines[name].disk.wipes
        known = self._followed.get(key)
        if known is not None and controller_epoch < known:
            raise Violation(f"{name} follows controller epoch {controller_epoch} after {known}")
        self._followed[key] = controller_epoch

    def _judge_leader(
        self,
        name: str,
        topic_partition: TopicPartition,
        leader: PartitionLeader,
        log: PartitionLog,
        logs: dict[BrokerLife, _Logs],
    ) -> None:
        committed = self.committed.get(topic_partition, Offset(0))
        what = _Leading(name, topic_partition, leader)
        state = self._cluster.states.get(topic_partition)
        reign = self._reigns.get((topic_partition, leader.leader_epoch))
        if reign is None:
            # A leader that hears late of its own epoch, which is over, may lack later commits.
            is_over = state is None or state.leader_epoch > leader.leader_epoch
            if leader.next_offset < committed and not is_over:
                raise Violation(f"{what}, ends at {leader.next_offset}; {committed} is committed")
            reign = _Reign(leader.broker, leader.high_watermark, leader.last_stable_offset)
            self._reigns[topic_partition, leader.leader_epoch] = reign
        elif reign.broker != leader.broker:
            raise Violation(f"{what}, is not alone: {reign.broker}")
        elif leader.high_watermark < reign.high_watermark:
            raise Violation(
                f"{what}, takes its high watermark back from {reign.high_watermark} to "
                f"{leader.high_watermark}"
            )
        self._judge_short(what, reign)
        self._judge_stable(what, reign, log)
        reign.high_watermark = leader.high_watermark
        self.on_given_up(topic_partition, leader.leader_epoch, log.log_start_offset)
        if state is None or state.leader_epoch != leader.leader_epoch:
            return  # It was deposed, and will hear of it.
        self.committed[topic_partition] = max(committed, leader.high_watermark)
        self._judge_deleted(what, state, logs)
        self._judge_members(what, state, logs)

    def _judge_deleted(
        self, what: _Leading, state: PartitionState, logs: dict[BrokerLife, _Logs]
    ) -> None:
        """Records that were deleted for good are on no replica that may lead (P71)."""
        _, topic_partition, leader = what
        gone = max(self._gone_for_good.get(topic_partition, Offset(0)), leader.low_watermark)
        self._gone_for_good[topic_partition] = gone
        if state.unclean_epoch >= 0 or self._was_set_back:
            return
        for life in (*state.isr, *state.elr):
            log = logs.get(life, _NONE_OPEN).get(topic_partition)
            if log is not None and log.log_start_offset < gone:
                raise Violation(
                    f"{what}: everything before {gone} was deleted for good, and the log of "
                    f"{life}, which may lead, begins at {log.log_start_offset}"
                )

    def _judge_start(self, name: str, topic_partition: TopicPartition, log: PartitionLog) -> None:
        """Check that retention deletes only committed records."""
        known = self.log_starts.get(topic_partition, Offset(0))
        if log.log_start_offset > known:
            self.log_starts[topic_partition] = log.log_start_offset
        # A deposed leader may delete records too; its successor has reported them before.
        committed = self._cluster.witness.replicas.committed.get(topic_partition, Offset(0))
        state = self._cluster.states.get(topic_partition)
        is_void = state is not None and state.unclean_epoch >= 0
        if log.log_start_offset > max(committed, known) and not is_void:
            raise Violation(
                f"{name} has given up {topic_partition} up to {log.log_start_offset}, and only "
                f"{committed} is committed"
            )

    def _judge_stable(self, what: _Leading, reign: _Reign, log: PartitionLog) -> None:
        leader, stable = what.leader, what.leader.last_stable_offset
        if not max(log.log_start_offset, reign.stable) <= stable <= leader.high_watermark:
            raise Violation(
                f"{what}, takes {stable} for stable, after {reign.stable}; its log begins at "
                f"{log.log_start_offset}, and {leader.high_watermark} is committed"
            )
        reign.stable = stable

    def _judge_short(self, what: _Leading, reign: _Reign) -> None:
        _, topic_partition, leader = what
        state, rules = leader.state, leader.rules
        if len(state.isr) >= min(rules.min_insync_replicas, state.replication_factor):
            reign.short_since = None
            return
        since = reign.short_since
        if since is None or since[0] is not state or since[1] is not rules:
            reign.short_since = (state, rules, leader.next_offset)
            return
        if leader.high_watermark > reign.high_watermark:
            raise Violation(f"{what}, commits, and only {state.isr} are in sync")
        plan = self._cluster.running[topic_partition.topic_id].plan
        if leader.next_offset > since[2] and all(load.acks == "all" for load in plan.loads):
            raise Violation(f"{what}, appends, and only {state.isr} are in sync")

    def _judge_members(
        self, what: _Leading, state: PartitionState, logs: dict[BrokerLife, _Logs]
    ) -> None:
        """Each replica in sync has all below the high watermark that no leader has deleted."""
        _, topic_partition, leader = what
        given_up = self._given_up.get(topic_partition, Offset(0))
        for life in state.isr:
            log = logs.get(life, _NONE_OPEN).get(topic_partition)
            if log is not None and log.log_start_offset > given_up:
                raise Violation(
                    f"{what}, takes {life} for in sync, whose log begins at "
                    f"{log.log_start_offset}, and given up was {given_up}"
                )
            kept = self._kept(logs.get(life, _NONE_OPEN), topic_partition)
            if kept is not None and kept < leader.high_watermark:
                raise Violation(
                    f"{what}, has committed up to {leader.high_watermark}, and {life}, which is "
                    f"in sync, keeps {kept}"
                )

    def _judge_eligible(
        self,
        topic_partition: TopicPartition,
        state: PartitionState,
        logs: dict[BrokerLife, _Logs],
    ) -> None:
        committed = self.committed.get(topic_partition, Offset(0))
        for life in state.elr or (state.isr if state.leader == NO_BROKER else ()):
            kept = self._kept(logs.get(life, _NONE_OPEN), topic_partition)
            if (
                kept is not None
                and kept < committed
                and not self._is_set_back(topic_partition, life)
            ):
                raise Violation(
                    f"{life} may lead {topic_partition}, where {committed} is committed, and "
                    f"keeps {kept}"
                )

    def _kept(self, logs: _Logs, topic_partition: TopicPartition) -> Offset | None:
        """What a broker keeps of a partition; None if that is not known."""
        log = logs.get(topic_partition)
        if log is None:
            return None
        state = self._cluster.states.get(topic_partition)
        is_settled = state is not None and not state.is_unflushed  # Else the leader may not know.
        if is_settled and self._cluster.is_flushed(topic_partition.topic_id):
            return log.flushed_offset
        return log.log_end_offset


def _end_on_disk(disk: SimulatedDisk, topic_partition: TopicPartition) -> tuple[int, int]:
    """Epoch and end of a log as the next life of its broker will find it."""
    there = [path for path in DIRECTORIES if is_log_directory(disk, path)]
    log_dirs = {read_identity(disk, path).directory_id: path for path in there}
    found = (inspection.partitions(disk, path, log_dirs) for path in there)
    for partition in chain.from_iterable(found):
        if partition.topic_partition == topic_partition:
            end = inspection.verify_partition(disk, partition).log_end_offset
            epochs = (
                batch.header.leader_epoch
                for batch in inspection.batches(disk, partition)
                if batch.header.next_offset <= end
            )
            return max(epochs, default=NO_LEADER_EPOCH), end
    return NO_LEADER_EPOCH, Offset(0)
