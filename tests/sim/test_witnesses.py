"""Witnesses say nothing about what is in order, and name what is not."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest
from tests.fakes.log_on_disk import LogOnDisk
from tests.fakes.stamped_batches import stamped_batch
from tests.sim.disk import SimulatedDisk
from tests.sim.log_witness import LogWitness
from tests.sim.machine import Machine
from tests.sim.replica_witness import ReplicaWitness
from tests.sim.world import Violation, World

from millrace.broker.storage.log import PartitionLog
from millrace.core.ids import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
    TopicId,
    TopicPartition,
    WallMs,
)
from millrace.core.log.leader_epochs import LeaderEpochs
from millrace.core.metadata.model import BrokerLife
from millrace.core.replication.follower import FetchFrom
from millrace.core.replication.leader_session import SessionRequest
from millrace.core.replication.progress import FollowerProgress
from millrace.core.replication.replicas import Replicas

NOW = WallMs(1_000)
TOPIC_PARTITION = TopicPartition(TopicId(bytes(16)), 0)
LEADER = BrokerLife(BrokerId(1), BrokerEpoch(1))
FOLLOWER = BrokerLife(BrokerId(2), BrokerEpoch(2))


@dataclass
class FakeLog:
    """What a witness asks a log."""

    leader_epochs: LeaderEpochs
    log_end_offset: Offset
    log_start_offset: Offset = field(default=Offset(0))

    @property
    def flushed_offset(self) -> Offset:
        return self.log_end_offset


class FakeReplicas:
    """One follower, whose log begins at 0."""

    log_start_offset = Offset(0)

    @property
    def follower(self) -> "FakeReplicas":
        return self

    def find(self, topic_partition: TopicPartition) -> "FakeReplicas":
        return self


def log_of(*epochs: tuple[int, int], end: int) -> PartitionLog:
    return cast(PartitionLog, FakeLog(LeaderEpochs(epochs), Offset(end)))


def say(witness: ReplicaWitness, log: PartitionLog, epoch: int) -> FetchFrom:
    end = log.log_end_offset
    position = FetchFrom(LEADER.broker_id, LeaderEpoch(5), end, LeaderEpoch(epoch), 1)
    progress = FollowerProgress(end, end, Offset(0), LeaderEpoch(epoch))
    request = SessionRequest(added=[(1, TOPIC_PARTITION, position, progress)])
    replicas = cast(Replicas, FakeReplicas())
    witness.on_said(FOLLOWER, LEADER.broker_id, request, replicas, {TOPIC_PARTITION: log})
    return position


def serve(own: PartitionLog, theirs: PartitionLog) -> None:
    witness = ReplicaWitness(LogWitness())
    position = say(witness, theirs, theirs.leader_epochs.latest_epoch)
    witness.on_served(LEADER, own, FOLLOWER, 1, position, diverges=False)


def test_a_prefix_may_be_served() -> None:
    own = log_of((0, 0), (2, 10), (5, 20), end=30)
    serve(own, log_of(end=0))
    serve(own, log_of((0, 0), end=7))
    serve(own, log_of((0, 0), (2, 10), end=20))
    serve(own, log_of((0, 0), (2, 10), (5, 20), end=30))


@pytest.mark.parametrize(
    "theirs",
    [
        log_of((0, 0), end=11),
        log_of((0, 0), (1, 5), end=8),
        log_of((0, 0), (3, 10), end=15),
        log_of((0, 0), (2, 10), (5, 20), end=31),
    ],
)
def test_what_is_no_prefix_may_not(theirs: PartitionLog) -> None:
    with pytest.raises(Violation):
        serve(log_of((0, 0), (2, 10), (5, 20), end=30), theirs)


def test_a_follower_that_says_what_is_not_so_is_found_out() -> None:
    with pytest.raises(Violation):
        say(ReplicaWitness(LogWitness()), log_of((0, 0), (2, 10), end=20), epoch=0)


def on_disk(witness: LogWitness) -> tuple[Machine, PartitionLog]:
    """Return a log of which ten records are flushed and ten are not."""
    disk = SimulatedDisk(World(1), "m")
    machine = cast(Machine, SimpleNamespace(name="m", lives=1, disk=disk))
    log = LogOnDisk(disk).log
    log.append([stamped_batch(offset) for offset in range(10)], NOW)
    log.flush()
    witness.on_flushed(machine, log)
    log.append([stamped_batch(offset) for offset in range(10, 20)], NOW)
    return machine, log


@pytest.mark.parametrize("end_offset", [15, 10, 5])
def test_a_tail_may_be_cut_that_nobody_flushed(end_offset: int) -> None:
    witness = LogWitness()
    machine, log = on_disk(witness)
    log.truncate_to(Offset(end_offset), NOW)
    witness.on_cut(machine, log)


def test_a_flush_that_did_nothing_is_found_out() -> None:
    witness = LogWitness()
    machine, log = on_disk(witness)
    log._flushed_offset = log.log_end_offset
    with pytest.raises(Violation, match="for flushed, and it is not"):
        witness.on_flushed(machine, log)


def test_a_file_is_durable_with_its_bytes_and_names() -> None:
    disk = SimulatedDisk(World(1), "m")
    disk.make_directory("/data")
    file = disk.open("/data/a", create=True, writable=True)
    file.append([b"one"])
    assert not disk.is_durable("/data/a")
    file.fdatasync()
    assert not disk.is_durable("/data/a")  # Its name may vanish.
    disk.fsync_directory("/data")
    assert not disk.is_durable("/data/a")  # Its directory may.
    disk.fsync_directory("/")
    assert disk.is_durable("/data/a")
    disk.open("/data/b", create=True, writable=True)
    disk.rename("/data/b", "/data/a")
    assert not disk.is_durable("/data/a")


def test_what_a_failed_flush_left_behind_is_not_durable() -> None:
    disk = SimulatedDisk(World(1), "m")
    file = disk.open("/a", create=True, writable=True)
    disk.fsync_directory("/")
    file.append([b"one"])
    disk.fail_next_flush()
    with pytest.raises(OSError, match="error"):
        file.fdatasync()
    file.fdatasync()
    assert not disk.is_durable("/a")
    file.rewrite(3, 0)
    file.fdatasync()
    assert disk.is_durable("/a")
