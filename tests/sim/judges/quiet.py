"""What must hold after all faults have ended: writes and reads go on, and replicas are in sync.

The run is quiet for a while, and then the judge compares with what was there before.
"""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tests.checkers.history import INFO
from tests.sim.clients.readers_and_writers import Reader, Writer
from tests.sim.clients.transactional import Copier
from tests.sim.topics import Transacting
from tests.sim.world import SECOND, Violation

from millrace.core.ids import BrokerId, Offset, TopicPartition
from millrace.core.metadata.model import PartitionState

if TYPE_CHECKING:
    from tests.sim.cluster import SimulatedCluster

_WAIT_MAX: Final = 5 * SECOND
"""How long an acknowledgement may take in quiet."""
_IN_SYNC_US: Final = 15 * SECOND
"""A machine with an empty disk has all replicas again within this time."""
_DELETED_US: Final = 10 * SECOND
"""Brokers have deleted the files of a topic that is gone for good within this time."""
_COPIED_OF: Final = 50
"""Some of so many new offsets are copied in quiet."""


class Quiet:
    """Judges a cluster at the end of its quiet time.

    Attributes:
        is_now: whether all faults have ended for a while.
        committed_before: the high watermarks at its beginning.
    """

    def __init__(self, cluster: "SimulatedCluster") -> None:
        self.is_now = False
        self.committed_before: dict[TopicPartition, Offset] = {}
        self._cluster = cluster
        self._since = 0
        self._done_before: dict[Transacting, int] = {}
        self._copied_before: Counter[tuple[str, int]] = Counter()
        self._acknowledged_before: dict[tuple[Writer, int], int] = {}

    def begin(self) -> None:
        self.is_now = True
        self.committed_before = dict(self._cluster.witness.replicas.committed)
        self._since = self._cluster.now
        self._acknowledged_before = {
            (writer, key): count
            for writer in self._cluster.all_writers()
            for key, count in writer.acknowledged.items()
        }
        self._done_before = {client: client.done for client in self._cluster.all_transacting()}
        self._copied_before = self._copied()
        for topic in self._cluster.running.values():
            self._cluster.record(topic.recorder, INFO, "swarm", "window", "open")

    def end(self) -> None:
        self.is_now = False
        for topic in self._cluster.running.values():
            self._cluster.record(topic.recorder, INFO, "swarm", "window", "close")
        self._judge_transactions()
        self._judge_writers()
        ends = {
            topic_partition: end
            for topic_partition, end in self.committed_before.items()
            if not self._cluster.may_be_cut(topic_partition)
        }
        self.judge_readers(ends)
        self._judge_groups(ends)
        self._judge_replicas()

    def _judge_writers(self) -> None:
        """Check that writes were acknowledged, and soon."""
        for writer in self._cluster.all_writers():
            for key, count in writer.acknowledged.items():
                before = self._acknowledged_before.get((writer, key))
                if before is None:
                    continue  # Its topic was created in the meantime.
                # A writer may send seldom and be between two bursts; no burst may wait for long.
                is_short = count - before < 5 and writer.load.every_us <= SECOND
                since = writer.waits_since.get(key, self._cluster.now)
                # It may wait for the session of a broker that was stopped for a new disk.
                is_late = self._cluster.now - since > _WAIT_MAX and not self._just_replaced()
                if is_short or is_late:
                    raise Violation(
                        f"{writer.name} was told of {count - before} values of key {key} only, "
                        f"though all is quiet; {self._cluster.describe()}"
                    )

    def _judge_transactions(self) -> None:
        """Check that writers of transactions have gone on while all was quiet."""
        if self._cluster.may_lose_transactions():
            return
        for client in self._cluster.all_transacting():
            before = self._done_before.get(client)
            if before is None:
                continue
            done = client.done - before
            if done < client.least_in_quiet:
                raise Violation(
                    f"{client.name} has done {done} in quiet, from "
                    f"{client.doing}; {self._cluster.describe()}"
                )
        self._judge_copies()

    def _copied(self) -> Counter[tuple[str, int]]:
        """How many records were given to copiers, by copy and partition."""
        found: Counter[tuple[str, int]] = Counter()
        for topic in self._cluster.running.values():
            for client in () if topic.is_gone else topic.transacting:
                if isinstance(client, Copier):
                    for partition, count in client.copied.items():
                        found[topic.plan.name, partition] += count
        return found

    def _judge_copies(self) -> None:
        """Check that all partitions were copied that have got records while all was quiet."""
        copied = self._copied()
        copies = {
            topic.plan.copies: topic.plan.name
            for topic in self._cluster.running.values()
            if not topic.is_gone
        }
        for place, before in self.committed_before.items():
            topic = self._cluster.running.get(place.topic_id)
            copy = "" if topic is None or topic.is_gone else copies.get(topic.plan.name, "")
            key = copy, place.partition
            grown = self._cluster.witness.replicas.committed.get(place, before) - before
            if copy and grown > _COPIED_OF and copied[key] == self._copied_before[key]:
                raise Violation(
                    f"{place} has {grown} offsets more, and nothing of them is copied; "
                    f"{self._cluster.describe()}"
                )

    def judge_readers(self, ends: Mapping[TopicPartition, int]) -> None:
        """Check that a reader that reads when quiet begins reaches these ends before quiet ends."""
        for topic in self._cluster.running.values():
            for reader in () if topic.is_gone else topic.readers:
                if not isinstance(reader, Reader) or reader.began_at > self._since:
                    continue
                for topic_partition in topic.partitions:
                    end = ends.get(topic_partition, 0)
                    at = reader.next_offsets.get(topic_partition.partition, 0)
                    if at < end:
                        raise Violation(
                            f"{reader.name} is at {at} of {topic_partition}, and should be at "
                            f"{end}; {self._cluster.describe()}"
                        )

    def _judge_groups(self, ends: Mapping[TopicPartition, int]) -> None:
        """Check that groups have read on to these ends while all was quiet."""
        ownership = self._cluster.ownership
        for topic, site in ownership.sites.items():
            for number, topic_partition in enumerate(site.partitions):
                end = ends.get(topic_partition, 0)
                at = ownership.next_offsets.get((topic, number), 0)
                if at < end:
                    owners = {
                        key: life.name for key, life in self._cluster.ownership.owners.items()
                    }
                    raise Violation(
                        f"the group is at {at} of {topic}-{number}, and should be at {end}; "
                        f"owners are {owners}; {self._cluster.describe()}"
                    )

    def _judge_replicas(self) -> None:
        """Check that all replicas are in sync, and that deleted topics are gone."""
        for topic_partition, state in self._cluster.states.items():
            is_moving = bool(state.adding or state.removing)
            if self._behind(topic_partition, state) or (is_moving and not self._just_replaced()):
                raise Violation(
                    f"not all are in sync, though all is quiet; {self._cluster.describe()}"
                )
        late = [
            topic_id
            for topic_id, since in self._cluster.tombstones.items()
            if self._cluster.now - since > _DELETED_US
        ]
        if late:
            raise Violation(f"deletions are not done, though all is quiet: {late}")

    def _behind(self, topic_partition: TopicPartition, state: PartitionState) -> list[BrokerId]:
        """Replicas that should be in sync and are not; damage may be found late, even in quiet."""
        assert self._cluster.stored_cluster is not None
        since = self._cluster.now - _IN_SYNC_US
        in_sync = [life.broker_id for life in state.isr]
        late = self._just_replaced()
        late += [
            name
            for name in self._cluster.machines
            if self._cluster.invariants.damaged_at.get((name, topic_partition), since) > since
            or self._cluster.invariants.renewed.get((name, topic_partition), since) > since
        ]
        brokers = self._cluster.stored_cluster.brokers
        return [
            replica
            for replica in state.replicas
            if replica not in in_sync and brokers[replica].name not in late
        ]

    def _just_replaced(self) -> list[str]:
        since = self._cluster.now - _IN_SYNC_US
        return [name for name, at in self._cluster.operator.replaced_at.items() if at > since]
