"""What each alert is about, caused in a watched cluster: one context manager for each cause.

A cause breaks something when its block begins, and mends it at the end. Those of one stage break
different parts, and last at the same time, because most alerts hold for a while.
"""

import itertools
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from typing import Final

from tests.background import repeated
from tests.fakes.certificate_files import CertificateFiles
from tests.faults.machine import Need
from tests.faults.volume import Volume
from tests.integration.running_broker import RunningBroker
from tests.watching.cluster import TRANSACTION_TIMEOUT_MS, WatchedCluster, wait_until
from tests.watching.disks import FaultyBrokers
from tests.watching.operator import RunningOperator

from millrace.client import MillraceError, PartitionDescription, Position, SyncAdmin, SyncProducer
from millrace.core.ids import ControllerEpoch
from millrace.core.metadata.model import SHARD_KEYS
from millrace.core.metadata.objects.encoding import decode_shard
from millrace.core.metadata.objects.stored_object import StoredObject

_PAIR: Final = "pair"
"""A topic of two replicas; two of its three partitions have one on the controller."""
_STRICT: Final = "strict"
"""A topic of three replicas, all of which have to be in sync for a write."""
_SURE: Final = "sure"
"""A topic of three replicas that is written by a cause alone."""
_FILLED_BYTES: Final = 320 << 20
_FILLING_BYTES: Final = 128 << 10
_AGAIN_SECONDS: Final = 0.5
_SLOW_NS: Final = 1_500_000_000
_STALL_NS: Final = 900_000_000
_NOWHERE: Final = Position(1 << 40)
_ANYBODY: Final = """
[[rules]]
who = ["anonymous"]
may = ["produce", "consume", "describe", "create", "alter", "delete", "transact", "administer"]
topics = ["*/*", "*/__*"]
groups = ["*/*"]
transactions = ["*/*"]
cluster = true
"""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What causes break."""

    watched: WatchedCluster
    faulty: FaultyBrokers
    operator: RunningOperator

    def prepare(self) -> None:
        """Create the topics of the causes."""
        with self.admin() as admin:
            admin.create_topic(_PAIR, 3, 2, {"min.insync.replicas": "1"})
            admin.create_topic(_SURE, 1, 3, {"min.insync.replicas": "2"})
            admin.create_topic(_STRICT, 1, 3, {"min.insync.replicas": "3"})

    def admin(self) -> SyncAdmin:
        """Connect to the brokers."""
        return SyncAdmin(self.watched.brokers.bootstrap)

    def others(self) -> list[RunningBroker]:
        """Return the brokers that are not the controller."""
        controller = self.watched.controller
        return [broker for broker in self.watched.brokers.brokers if broker is not controller]

    def is_whole(self) -> bool:
        """Return whether each replica of each topic is in sync."""
        with self.admin() as admin:
            try:
                found = admin.describe_topics(admin.list_topics(internal=True))
            except MillraceError:  # Brokers that have just started do not answer yet.
                return False
            return all(
                set(partition.isr) == set(partition.replicas) and partition.leader >= 0
                for topic in found.values()
                for partition in topic.partitions
            )

    def wait_until_whole(self) -> None:
        """Start what does not run; return once each replica is in sync."""
        for broker in self.watched.brokers.brokers:
            if not broker.is_running:
                broker.abandon()
                broker.start()
        wait_until(self.is_whole, "all replicas are in sync", seconds=90)

    def number_of(self, broker: RunningBroker) -> int:
        """Return a broker's id."""
        return self.watched.brokers.brokers.index(broker)


@contextmanager
def _other_settings(scene: Scene) -> Iterator[None]:
    """A broker has another [cluster] section."""
    broker = scene.others()[0]
    before = broker.settings
    broker.stop()
    broker.settings = {**before, "cluster.deleted_topic_retention_ms": 1000}
    broker.start()
    yield
    broker.stop()
    broker.settings = before
    broker.start()


@contextmanager
def _ended_certificate(scene: Scene) -> Iterator[None]:
    """The certificate of a listener has ended."""
    broker = scene.others()[0]
    before = broker.settings
    files = CertificateFiles(broker.folder / "certificates").make("b", "127.0.0.1", days=-1 / 24)
    broker.stop()
    broker.settings = {
        **before,
        "listeners.outside.port": 0,
        "listeners.outside.tls_certificate_file": files.certificate,
        "listeners.outside.tls_key_file": files.key,
    }
    broker.start()
    yield
    broker.stop()
    broker.settings = before
    broker.start()


@contextmanager
def _mistaken_rules(scene: Scene) -> Iterator[None]:
    """The rules of who may do what have a mistake while a broker follows them."""
    broker = scene.others()[0]
    before = broker.settings
    rules = broker.folder / "rules.toml"
    rules.write_text(_ANYBODY)
    broker.stop()
    broker.settings = {**before, "access.rules_file": rules}
    broker.start()
    rules.write_text(_ANYBODY + "[[rule]]\n")
    yield
    broker.stop()
    broker.settings = before
    broker.start()


@contextmanager
def _full_disk(scene: Scene) -> Iterator[None]:
    """The disk of a compacted log is full, and stays so."""
    broker = scene.others()[1]
    with scene.admin() as admin:
        topic_id = admin.describe_topic("latest").topic_id
    full = broker.partition_directory(topic_id)
    disk = next(disk for disk in scene.faulty.disks_of(broker) if full.is_relative_to(disk.path))
    assert isinstance(disk, Volume)
    disk.fill()
    with repeated(disk.fill, _AGAIN_SECONDS):
        yield
    disk.heal()


@contextmanager
def _filling_disk(scene: Scene) -> Iterator[None]:
    """A disk has less space from moment to moment."""
    disk = scene.faulty.disks_of(scene.watched.controller)[0]
    assert isinstance(disk, Volume)
    sizes = itertools.count(_FILLED_BYTES, _FILLING_BYTES)

    def take_more() -> None:
        disk.take(next(sizes))

    take_more()
    with repeated(take_more, _AGAIN_SECONDS):
        yield
    disk.heal()


@contextmanager
def _full_tier(scene: Scene) -> Iterator[None]:
    """The HDD of a broker is full, and stays so."""
    _, disk = scene.faulty.disks_of(scene.watched.controller)
    assert isinstance(disk, Volume)
    disk.fill()
    with repeated(disk.fill, _AGAIN_SECONDS):
        yield
    disk.heal()


@contextmanager
def _no_members(scene: Scene) -> Iterator[None]:
    """The members of a group are gone, and writers go on."""
    scene.watched.stop_group()
    yield


@contextmanager
def _lost_position(scene: Scene) -> Iterator[None]:
    """A reader's position lies beyond the end of the log."""
    with scene.admin() as admin:
        admin.commit_positions("lost", {("orders", 0): _NOWHERE})
        yield
        admin.delete_group("lost")


@contextmanager
def _failing_operator(scene: Scene) -> Iterator[None]:
    """The API server fails whenever the operator asks for its Cluster, which is edited."""
    with scene.operator.refused():
        yield


@contextmanager
def _stalled_query(scene: Scene) -> Iterator[None]:
    """A streaming query runs, and does no micro-batch."""
    scene.watched.query.stand_still()
    yield
    scene.watched.query.go_on()


@contextmanager
def _failed_query(scene: Scene) -> Iterator[None]:
    """A streaming query has ended with an error."""
    scene.watched.query.fail()
    yield


@contextmanager
def _dead_operator(scene: Scene) -> Iterator[None]:
    """The only operator is killed."""
    scene.operator.kill()
    yield


@contextmanager
def _slow_disk(scene: Scene) -> Iterator[None]:
    """Each flush of a broker takes 1.5 s."""
    control = scene.faulty.control_of(scene.others()[0])
    control["sync_delay"] = _SLOW_NS
    yield
    control.heal()


@contextmanager
def _slow_loop(scene: Scene) -> Iterator[None]:
    """The event loop of a broker stands still for 0.9 s, again and again."""
    control = scene.faulty.control_of(scene.others()[1])

    def stall() -> None:
        control["stall"] = _STALL_NS

    stall()
    with repeated(stall, _AGAIN_SECONDS):
        yield
    control.heal()


@contextmanager
def _failed_disk(scene: Scene) -> Iterator[None]:
    """One of the two disks of a broker refuses everything."""
    broker = scene.others()[0]
    disk = scene.faulty.disks_of(broker)[0]
    assert isinstance(disk, Volume)
    disk.detach()
    yield
    broker.abandon()  # It trusts the disk again only after a restart.
    disk.heal()


@contextmanager
def _owed_markers(scene: Scene) -> Iterator[None]:
    """A transaction is committed, and a partition has too few replicas in sync to take its end."""
    with (
        SyncProducer(
            scene.watched.brokers.bootstrap,
            transactional_id="owed",
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        ) as producer,
        scene.admin() as admin,
    ):
        producer.begin_transaction()
        producer.send(_STRICT, b"v").result(30)
        scene.others()[0].kill()
        wait_until(lambda: len(_partition(admin, _STRICT, 0).isr) == 2, "two are in sync")
        producer.commit_transaction()
    yield


@contextmanager
def _one_dead(scene: Scene) -> Iterator[None]:
    """One of three brokers is dead."""
    scene.others()[0].kill()
    yield


@contextmanager
def _two_dead(scene: Scene) -> Iterator[None]:
    """Two of three brokers are dead, and with them all replicas of a partition."""
    for broker in scene.others():
        broker.kill()
    yield


@contextmanager
def _unclean_election(scene: Scene) -> Iterator[None]:
    """A replica that was not in sync is elected on request."""
    first, last = scene.others()
    with scene.admin() as admin:
        numbers = {scene.number_of(first), scene.number_of(last)}
        place = next(
            number
            for number, partition in enumerate(admin.describe_topic(_PAIR).partitions)
            if set(partition.replicas) == numbers
        )
        first.kill()
        wait_until(
            lambda: _partition(admin, _PAIR, place).isr == (scene.number_of(last),),
            "one replica is in sync",
        )
        last.kill()
        wait_until(lambda: _partition(admin, _PAIR, place).leader < 0, "nobody leads")
        first.start()
        wait_until(
            lambda: not any(admin.elect_leaders([(_PAIR, place)], kind="unclean").values()),
            "the replica that is back is elected",
        )
    yield


@contextmanager
def _all_dead(scene: Scene) -> Iterator[None]:
    """No broker runs."""
    for broker in scene.watched.brokers.brokers:
        broker.kill()
    yield


@contextmanager
def _cut_log(scene: Scene) -> Iterator[None]:
    """Of the replicas that have everything, one is damaged and the other one is down."""
    brokers = scene.watched.brokers
    with scene.admin() as admin:
        topic = admin.describe_topic(_SURE)
        first = brokers[topic.partitions[0].leader]
        eligible, third = (broker for broker in brokers.brokers if broker is not first)
        _produce(brokers.bootstrap, 20)
        third.kill()
        wait_until(lambda: len(_partition(admin, _SURE, 0).isr) == 2, "two are in sync")
        _produce(brokers.bootstrap, 20)
        end = admin.list_offsets([(_SURE, 0)])[_SURE, 0].offset
        eligible.kill()
        number = scene.number_of(eligible)
        wait_until(lambda: number in _partition(admin, _SURE, 0).elr, "it is eligible")
        topic_id = topic.topic_id
        wait_until(
            lambda: _committed(scene, topic_id) >= end, "its leader has said what is committed"
        )
    first.kill()
    directory = eligible.partition_directory(topic_id)
    segment = max(path for path in directory.glob("*.log") if path.stat().st_size)
    os.truncate(segment, segment.stat().st_size - 1)
    eligible.start()
    yield


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A cause.

    Attributes:
        alerts: which should fire.
        begin: breaks something, and mends it at the end.
        needs: capabilities of the machine.
    """

    alerts: tuple[str, ...]
    begin: Callable[[Scene], AbstractContextManager[None]]
    needs: tuple[Need, ...] = ()

    @property
    def what(self) -> str:
        """What happens, in a sentence."""
        return (self.begin.__doc__ or "").strip()


STAGES: Final[tuple[tuple[Cause, ...], ...]] = (
    (
        Cause(alerts=("SettingsDiffer",), begin=_other_settings),
        Cause(alerts=("CertificateEnds", "CertificateEndsNow"), begin=_ended_certificate),
        Cause(alerts=("AccessFileRefused",), begin=_mistaken_rules),
        Cause(alerts=("GroupLag",), begin=_no_members),
        Cause(alerts=("GroupLagUnknown",), begin=_lost_position),
        Cause(alerts=("OperatorStuck", "OperatorFails"), begin=_failing_operator),
        Cause(alerts=("SparkQueryStalled",), begin=_stalled_query),
    ),
    (
        # Apart from those above: a position is not committed on a full disk.
        Cause(alerts=("DiskFull", "CleaningRefused"), begin=_full_disk, needs=(Need.VOLUMES,)),
        Cause(alerts=("DiskFillsUp",), begin=_filling_disk, needs=(Need.VOLUMES,)),
        Cause(alerts=("TierMovesRefused",), begin=_full_tier, needs=(Need.VOLUMES,)),
    ),
    (
        Cause(alerts=("DiskSlow",), begin=_slow_disk, needs=(Need.PRELOAD,)),
        Cause(alerts=("EventLoopSlow",), begin=_slow_loop, needs=(Need.PRELOAD,)),
        Cause(alerts=("SparkQueryFailed",), begin=_failed_query),
        Cause(alerts=("NoOperator",), begin=_dead_operator),
    ),
    (
        Cause(
            alerts=("LogDirectoryOffline", "ReplicasOffline"),
            begin=_failed_disk,
            needs=(Need.VOLUMES,),
        ),
    ),
    (Cause(alerts=("BrokerDown", "UnderReplicated"), begin=_one_dead),),
    (Cause(alerts=("MarkersOwed", "HangingTransaction"), begin=_owed_markers),),
    (Cause(alerts=("WritesRefused", "PartitionsOffline"), begin=_two_dead),),
    (Cause(alerts=("RecordsLost",), begin=_unclean_election),),
    (Cause(alerts=("NoController",), begin=_all_dead),),
    (Cause(alerts=("ReplicasHalted",), begin=_cut_log),),
)


def _partition(admin: SyncAdmin, topic: str, number: int) -> PartitionDescription:
    return admin.describe_topic(topic).partitions[number]


def _produce(bootstrap: str, count: int) -> None:
    with SyncProducer(bootstrap) as producer:
        for future in [producer.send(_SURE, b"%d" % number) for number in range(count)]:
            future.result(30)


def _committed(scene: Scene, topic_id: bytes) -> int:
    """Return what eligible replicas of a topic are counted on for, as it is stored."""
    store = scene.watched.brokers.brokers[0].settings["coordination.path"]
    with closing(sqlite3.connect(str(store))) as opened:
        rows = opened.execute("SELECT key, value, version, controller_epoch FROM objects")
        objects = {key: StoredObject(v, n, ControllerEpoch(e)) for key, v, n, e in rows}
    return max(
        topic.partitions[0].committed_end.end_offset
        for number, key in enumerate(SHARD_KEYS)
        if key in objects
        for topic in decode_shard(number, objects[key]).topics.values()
        if topic.topic_id == topic_id
    )
