"""The cluster's metadata, read from its store without the brokers: it shows a fault's effect.

`Metadata` makes views of the store's objects, from any source; `Watcher` reads a file.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.checkers.history import INFO
from tests.faults import transactional
from tests.faults.history import History
from tests.faults.latest import TOPIC
from tests.faults.load import Places

from millrace.core.ids import NO_BROKER, BrokerId, ControllerEpoch
from millrace.core.metadata.model import (
    CLUSTER_KEY,
    BrokerRegistration,
    ClusterState,
    PartitionState,
    Topic,
)
from millrace.core.metadata.objects.encoding import decode_cluster, decode_shard
from millrace.core.metadata.objects.stored_object import StoredObject

PLACES: Final = Places(
    topics=("t0", "t1", "t2", "acks-1", "acks-0"),
    partitions=2,
    acks={"acks-1": 1, "acks-0": 0},
)
ACKS_1_KEYS: Final = range(6, 8)
ACKS_0_KEYS: Final = range(8, 10)
"""Partitions that are written with `acks=0`; faults aim at those with `acks=all`."""
SURE_KEYS: Final = range(6)
SURE_PLACES: Final = Places(topics=PLACES.topics[:3], partitions=PLACES.partitions)
"""The partitions of these keys."""

_LOOK_SECONDS: Final = 0.05
_SHARD_PREFIX: Final = "shards/"


@dataclass(frozen=True, slots=True)
class View:
    """One reading of the store.

    Attributes:
        controller: the name of the broker that holds the controller's lease.
        places: the partitions that the load is on.
    """

    cluster: ClusterState
    topics: dict[str, Topic]
    controller: str
    places: Places = PLACES

    def partition(self, key: int) -> PartitionState:
        """The state of a partition under load."""
        topic, number = self.places.place_of(key)
        return self.topics[topic].partitions[number]

    def partitions(self) -> Iterator[tuple[int, PartitionState]]:
        """All partitions under load, by key."""
        for key in self.places.keys:
            if self.places.place_of(key)[0] in self.topics:
                yield key, self.partition(key)

    def broker(self, name: str) -> BrokerRegistration:
        """A broker's registration by its name."""
        found = self.cluster.broker_named(name)
        assert found is not None, name
        return found

    def led_by(self, name: str) -> list[int]:
        """The keys that a broker leads, among those that are written with `acks=all`."""
        broker_id = self.broker(name).broker_id
        sure = filter(self.places.is_sure, self.places.keys)
        return [key for key in sure if self.partition(key).leader == broker_id]

    def what_is_missing(self) -> str:
        """Describe what keeps the cluster from being whole; empty when it is whole."""
        for registration in self.cluster.brokers.values():
            if registration.is_fenced:
                return f"{registration.name} is fenced"
        states = [(f"key {key}", state) for key, state in self.partitions()]
        for topic in (TOPIC, *transactional.TOPICS, transactional.KAFKA_COPY):
            if topic in self.topics:
                states += [(topic, state) for state in self.topics[topic].partitions]
        for what, state in states:
            if state.leader == NO_BROKER:
                return f"nobody leads {what}"
            lives = set(state.isr)
            expected = {self.cluster.brokers[replica].life for replica in state.replicas}
            if lives != expected:
                return f"{what} has ISR {sorted(lives)}, not {sorted(expected)}"
        return ""

    def isr_ids(self, key: int) -> set[BrokerId]:
        return {life.broker_id for life in self.partition(key).isr}


class Metadata:
    """Collects the objects of a store; the history gets each state of a partition.

    Args:
        places: the partitions under load; the history gets only these.
    """

    def __init__(self, history: History, places: Places) -> None:
        self._history = history
        self._places = places
        self._cluster: ClusterState | None = None
        self._topics: dict[str, dict[str, Topic]] = {}  # By shard and name.
        self._seen: dict[int, PartitionState] = {}

    def take(self, key: str, stored: StoredObject) -> None:
        """Take an object in a version newer than the last one."""
        if key == CLUSTER_KEY:
            self._cluster = decode_cluster(stored)
            return
        shard = decode_shard(int(key.removeprefix(_SHARD_PREFIX)), stored)
        self._topics[key] = {str(topic.name): topic for topic in shard.topics.values()}
        for name, topic in self._topics[key].items():
            if name in self._places.topics:
                for number, state in enumerate(topic.partitions):
                    self._report(self._places.key_of(name, number), state, stored)

    def view(self, controller: str) -> View | None:
        """Return the present view; None before there is a cluster."""
        if self._cluster is None:
            return None
        topics = {name: topic for shard in self._topics.values() for name, topic in shard.items()}
        return View(self._cluster, topics, controller, self._places)

    def _report(self, key: int, state: PartitionState, stored: StoredObject) -> None:
        if self._seen.get(key) == state:
            return
        self._seen[key] = state
        self._history.record(
            "watcher",
            INFO,
            "metadata",
            details={
                "key": key,
                "partition_epoch": state.partition_epoch,
                "leader_epoch": state.leader_epoch,
                "controller_epoch": stored.controller_epoch,
                "leader": state.leader,
                "isr": [life.broker_id for life in state.isr],
                "replicas": list(state.replicas),
            },
        )


class Watcher(threading.Thread):
    """Reads a store's file again and again.

    Attributes:
        view: the latest; None before there is one.
        reading: lock for one reader at a time, or for a fault that removes the file.
    """

    def __init__(self, path: Path, history: History) -> None:
        super().__init__(name="watcher", daemon=True)
        self.view: View | None = None
        self.reading = threading.Lock()
        self._path = path
        self._metadata = Metadata(history, PLACES)
        self._revision = 0
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.wait(_LOOK_SECONDS):
            self.look()

    def look(self) -> None:
        """Read once; do nothing if the store cannot be read at the moment."""
        with self.reading:
            try:
                with closing(
                    sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=0.2)
                ) as store:
                    rows = store.execute(
                        "SELECT key, value, version, controller_epoch, revision FROM objects "
                        "WHERE revision > ? ORDER BY revision",
                        (self._revision,),
                    ).fetchall()
                    lease = store.execute("SELECT holder FROM lease").fetchone()
            except sqlite3.Error:
                return
            for key, value, version, controller_epoch, revision in rows:
                stored = StoredObject(value, version, ControllerEpoch(controller_epoch))
                self._metadata.take(key, stored)
                self._revision = revision
            self.view = self._metadata.view(lease[0] if lease else "") or self.view

    def stop(self) -> None:
        self._is_over.set()
        if self.is_alive():
            self.join()
