"""Changes of the metadata during faults, and requests that no correct client sends."""

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing

from tests.faults.catalogue import NotSeenError
from tests.faults.cluster import Node
from tests.faults.disks import refusals
from tests.faults.fault import Scene, fault
from tests.faults.metadata import PLACES
from tests.integration.raw_client import RawClient, batch_of, resealed

from millrace.client import SyncAdmin, SyncConsumer, SyncProducer
from millrace.core.errors import (
    CorruptBatchError,
    InvalidRecordError,
    MessageTooLargeError,
    MillraceError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
)
from millrace.core.ids import TopicPartition
from millrace.proto.v1 import cluster_pb2, common_pb2

_THIEF = "nobody-known"
_TOO_FEW = (NotEnoughReplicasError, NotEnoughReplicasAfterAppendError)
"""Each writer waits for its own records, so some are refused after the append."""


def _refusals(node: Node, kinds: Sequence[type[MillraceError]]) -> float:
    return sum(refusals(node, kind.name()) for kind in kinds)


@fault("F40", "somebody else writes himself into the controller's lease")
def steal_the_lease(scene: Scene) -> str:
    before = scene.cluster.look()
    with closing(sqlite3.connect(scene.cluster.store_file, isolation_level=None)) as store:
        store.execute("UPDATE lease SET holder = ?, version = version + 1", (_THIEF,))
    return scene.cluster.wait_for_new_controller(before, but=_THIEF)


@fault("F70", "a topic is deleted and made again under its name while a broker is down")
def make_a_topic_again(scene: Scene) -> str:
    name = f"passing-{scene.dice.randrange(10**9)}"
    cluster = scene.cluster
    with SyncAdmin(cluster.bootstrap) as admin, SyncProducer(cluster.bootstrap) as producer:
        old = admin.create_topic(name, replication_factor=3)
        producer.send(name, b"old").result(30)
        node = scene.any_node()
        node.kill()
        admin.delete_topic(name)
        new = admin.create_topic(name, replication_factor=2)
        node.start()
        cluster.wait_until_whole()
    with SyncProducer(cluster.bootstrap) as producer, SyncConsumer(cluster.bootstrap) as consumer:
        producer.send(name, b"new").result(30)
        consumer.assign([name], start="beginning")
        found: list[bytes] = []
        deadline = time.monotonic() + 10
        while not found and time.monotonic() < deadline:
            found = [record.value for record in consumer.poll(1000)]
        if found != [b"new"]:
            raise AssertionError(f"the new topic holds {found}")
    left = list(node.log_dirs[0].glob(f"{old.topic_id.hex()}-0"))
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.delete_topic(name)
    if left:
        raise NotSeenError(f"{node.name} still has {left}")
    return f"topic id {old.topic_id.hex()[:8]}, then {new.topic_id.hex()[:8]}; {node.name} let go"


@fault("F71", "replicas are reassigned while the one that leaves is killed")
def reassign(scene: Scene) -> str:
    key = scene.key()
    cluster = scene.cluster
    state = scene.view.partition(key)
    everybody = list(state.replicas)
    leaving = scene.dice.choice(everybody)
    kept = [broker_id for broker_id in everybody if broker_id != leaving]
    _reassign(scene, key, kept)
    node = cluster.node(leaving)
    node.kill()
    cluster.wait_for(
        lambda view: set(view.partition(key).replicas) == set(kept), "a replica leaves", 30
    )
    scene.load.wait_for_more()
    node.start()
    _reassign(scene, key, [leaving, *kept])
    cluster.wait_for(
        lambda view: (
            view.partition(key).replicas == (leaving, *kept) and not view.partition(key).adding
        ),
        "it is a replica again",
        40,
    )
    return f"key {key}: broker {leaving} left the replicas, came back, and is preferred"


def _reassign(scene: Scene, key: int, replicas: Sequence[int]) -> None:
    topic, partition = PLACES.place_of(key)
    request = cluster_pb2.ReassignPartitionsRequest(
        reassignments=[
            cluster_pb2.Reassignment(
                topic_partition=common_pb2.TopicPartition(
                    topic_id=scene.view.topics[topic].topic_id, partition=partition
                ),
                replicas=replicas,
            )
        ]
    )
    deadline = time.monotonic() + 20
    while True:
        running = [node for node in scene.cluster.nodes if node.is_running]
        with RawClient(scene.dice.choice(running).address) as client:
            (result,) = client.cluster.ReassignPartitions(request, timeout=20).results
        if not result.HasField("error"):
            return
        if time.monotonic() > deadline:
            raise NotSeenError(f"the reassignment was refused: {result.error.message}")
        time.sleep(0.2)


@fault("F72", "min.insync.replicas is raised, a follower is killed, and it is lowered")
def change_min_isr(scene: Scene) -> str:
    key = scene.key()
    topic, _ = PLACES.place_of(key)
    leader, follower = scene.leader(key), scene.follower(key)
    before = _refusals(leader, _TOO_FEW)
    with SyncAdmin(scene.cluster.bootstrap) as admin:
        admin.alter_topic(topic, set_config={"min.insync.replicas": "3"})
        try:
            follower.kill()
            scene.wait_until_out_of_sync(key, follower)
            deadline = time.monotonic() + 10
            while _refusals(leader, _TOO_FEW) == before:
                if time.monotonic() > deadline:
                    raise NotSeenError("nothing was refused")
                time.sleep(0.1)
        finally:
            _retried(lambda: admin.alter_topic(topic, unset_config=["min.insync.replicas"]))
    count = _refusals(leader, _TOO_FEW) - before
    scene.load.wait_for_more()
    return f"{count:.0f} writes refused for want of replicas, until two were enough again"


def _retried(work: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            work()
        except MillraceError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


def _refused(
    scene: Scene, make: Callable[[TopicPartition], bytes], *expected: type[MillraceError]
) -> str:
    """Send a bad batch to a leader; return what it said."""
    key = scene.key()
    topic, partition = PLACES.place_of(key)
    place = TopicPartition(scene.view.topics[topic].topic_id, partition)
    leader = scene.leader(key)
    before = _refusals(leader, expected)
    with RawClient(leader.address) as client:
        error = client.produce_batch(place, make(place)).error
    is_expected = error.code in {kind.code for kind in expected}
    if not is_expected or error.appended != common_pb2.APPENDED_NO:
        raise AssertionError(f"answered with {error}, and not with {expected}")
    if _refusals(leader, expected) <= before:
        raise NotSeenError("no refusal was counted")
    return f"{leader.name} refused it: {error.message[:100]}"


@fault("F54", "a batch that is larger than its topic allows")
def send_too_much(scene: Scene) -> str:
    value = bytes(scene.dice.randint(1_048_589, 2_000_000))
    return _refused(scene, lambda place: batch_of(place, [value]), MessageTooLargeError)


@fault("F55", "a batch in which a bit was turned on its way")
def send_a_corrupt_batch(scene: Scene) -> str:
    def corrupt(place: TopicPartition) -> bytes:
        batch = bytearray(batch_of(place, [scene.dice.randbytes(100)]))
        batch[scene.dice.randrange(96, len(batch))] ^= 1 << scene.dice.randrange(8)
        return bytes(batch)

    return _refused(scene, corrupt, CorruptBatchError)


@fault("F56", "a batch that says it inflates to less, or to more, than it does")
def send_a_bomb(scene: Scene) -> str:
    def lie(place: TopicPartition) -> bytes:
        honest = batch_of(place, [bytes(900_000)], codec="zstd")
        return resealed(place, honest, inflated_length=scene.dice.choice([1000, 2**31]))

    return _refused(scene, lie, MessageTooLargeError, InvalidRecordError, CorruptBatchError)
