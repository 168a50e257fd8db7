"""Each process that takes part in a transaction is killed, or paused for too long, at each step.

A member copies a topic exactly once, by transactions over three partitions and its group's
positions. One message of a step is held (`held_broker`). Once it is seen to be held, somebody is
killed, or paused for longer than the transaction may be open, and the message goes on. Whatever
was reached, the copy goes on, has each record once and in order, and leaves nothing open.

| who | is |
|---|---|
| coordinator | of the transactional id |
| groups | the coordinator of the member's group, another broker |
| leader | of a partition of the copy, the third broker |
| member | the process that copies: consumer and producer |
| brokers | all of them |
"""

import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import pytest
from tests.faults.load import text_of, value_of
from tests.faults.transactional import ClientProcess
from tests.faults.transactor import TIMEOUT_MS
from tests.integration.held_broker import Holds
from tests.integration.running_broker import RunningBroker, wait_until
from tests.integration.running_cluster import RunningCluster

from millrace.client import SyncAdmin, SyncConsumer, SyncProducer
from millrace.core.client.producer.murmur2 import partition_of

Who = Literal["coordinator", "groups", "leader", "member", "brokers"]
_WHO: Final[tuple[Who, ...]] = ("coordinator", "groups", "leader", "member", "brokers")
_TRANSACTIONS, _POSITIONS = "__transactions", "__positions"
_PLACES: Final = 12
"""Partitions of the internal topics."""
_PARTITIONS: Final = 3
_RECORDS: Final = 4
"""In each partition: some before the step, and as many in it."""
_SETTINGS: Final = {
    "cluster.transactions_partitions": _PLACES,
    "cluster.positions_partitions": _PLACES,
    # A pause of the machine must not move jobs; who is killed is known by its broken connection.
    "cluster.broker_session_timeout_ms": 4000,
    "groups.session_timeout_ms": 4000,
    "groups.heartbeat_interval_ms": 1000,
}
_BEYOND_SECONDS: Final = TIMEOUT_MS / 1000 + 2.5
"""A coordinator looks once a second for what is open for too long."""
_SECONDS_MAX: Final = 60.0


@dataclass(frozen=True)
class Step:
    """A step of a transaction.

    Attributes:
        at: who holds the message.
        point: of `held_broker`; `{leader}` is the leader's id.
        kept: of whose log a record is written then, and does not get to followers; empty: none.
        is_first: the step is that of a new producer.
        is_decided: the transaction must be committed, whatever happens.
    """

    at: Who
    point: str
    kept: Literal["", "copy", "transactions"] = ""
    is_first: bool = False
    is_decided: bool = False


STEPS: Final = {
    "init asked": Step("coordinator", "InitProducerId.asked", is_first=True),
    "init stored": Step("coordinator", "InitProducerId.answered", is_first=True),
    "join asked": Step("leader", "JoinTransaction.asking.*"),
    "joined": Step("leader", "JoinTransaction.told.*"),
    "first batch written": Step("leader", "JoinTransaction.told.*", "copy"),
    "first batch committed": Step("leader", "Produce.Produce.answers"),
    "positions asked": Step("groups", "CommitPositions.asked"),
    "group joined": Step("groups", "JoinTransaction-of-group.told.*"),
    "positions stored": Step("groups", "CommitPositions.answered"),
    "end asked": Step("coordinator", "EndTransaction.asked"),
    "end written": Step("coordinator", "EndTransaction.asked", "transactions"),
    "end decided": Step("coordinator", "EndTransaction.answered", is_decided=True),
    "no marker told": Step("coordinator", "WriteMarkers.asking.*", is_decided=True),
    "one marker not told": Step("coordinator", "WriteMarkers.asking.{leader}", is_decided=True),
    "marker written": Step("leader", "WriteMarkers.asked", "copy", is_decided=True),
    "all markers written": Step("coordinator", "WriteMarkers.told.*", is_decided=True),
    "completion written": Step(
        "coordinator", "WriteMarkers.told.*", "transactions", is_decided=True
    ),
}
_BY_DAY: Final = {
    ("joined", "leader"),
    ("positions stored", "groups"),
    ("end written", "coordinator"),
    ("one marker not told", "member"),
}


@dataclass
class Stage:
    """A cluster whose messages can be held."""

    cluster: RunningCluster
    holds: Holds
    admin: SyncAdmin
    folder: Path
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def leader(self, topic: str, partition: int) -> int:
        return self.admin.describe_topic(topic).partitions[partition].leader

    def wait_until_whole(self) -> None:
        """Wait until all replicas are in sync, and let the preferred ones lead."""

        def is_whole() -> bool:
            return all(
                len(partition.isr) == len(self.cluster.brokers)
                for topic in self.admin.list_topics(internal=True)
                for partition in self.admin.describe_topic(topic).partitions
            )

        wait_until(is_whole, "all replicas are in sync", _SECONDS_MAX)
        self.admin.elect_leaders()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("cluster")
    cluster = RunningCluster(folder, _SETTINGS)
    (folder / "holds").mkdir()
    holds = Holds(cluster, folder / "holds")
    with cluster, SyncAdmin(cluster.bootstrap) as admin:
        with SyncProducer(cluster.bootstrap, transactional_id="first") as producer:
            producer.init_transactions()
        admin.create_topic("first", replication_factor=3)
        with SyncConsumer(cluster.bootstrap, group="first") as consumer:
            consumer.subscribe(["first"])  # So both internal topics are there.
            consumer.poll(100)
        yield Stage(cluster, holds, admin, folder)


class Copying:
    """A topic, its copy, and the member that makes it; all others are brokers."""

    def __init__(self, stage: Stage) -> None:
        number = next(stage.numbers)
        self.source, self.copy = f"source-{number}", f"copy-{number}"
        self._stage = stage
        self._lives = itertools.count()
        self._values = itertools.count()
        self._written: list[list[int]] = [[] for _ in range(_PARTITIONS)]
        stage.wait_until_whole()
        for topic in (self.source, self.copy):
            stage.admin.create_topic(topic, partitions=_PARTITIONS, replication_factor=3)
        self._choose_brokers(number)
        self.member: ClientProcess | None = None

    def _choose_brokers(self, number: int) -> None:
        """Choose names by their coordinators, so that each of the three brokers has another job."""
        stage = self._stage
        self.partition = number % _PARTITIONS
        leader = stage.leader(self.copy, self.partition)

        def found(topic: str, prefix: str, others: set[int]) -> tuple[str, int, int]:
            leaders = [p.leader for p in stage.admin.describe_topic(topic).partitions]
            for attempt in itertools.count():
                name = f"{prefix}-{number}-{attempt}"
                full = f"default/{name}" if topic == _TRANSACTIONS else name
                place = partition_of(full.encode(), _PLACES)
                if leaders[place] not in others:
                    return name, place, leaders[place]
            raise AssertionError

        self.transactional_id, self.id_place, coordinator = found(_TRANSACTIONS, "id", {leader})
        self.group, self._group_place, groups = found(_POSITIONS, "group", {leader, coordinator})
        self._brokers: dict[Who, int] = {
            "coordinator": coordinator,
            "groups": groups,
            "leader": leader,
        }

    def broker(self, who: Who) -> RunningBroker:
        return self._stage.cluster[self._brokers[who]]

    def broker_id(self, who: Who) -> int:
        return self._brokers[who]

    def present_leader(self, who: Who) -> int:
        """Return the broker that leads the partition of a job now."""
        topic, partition = {
            "coordinator": (_TRANSACTIONS, self.id_place),
            "groups": (_POSITIONS, self._group_place),
            "leader": (self.copy, self.partition),
        }[who]
        return self._stage.leader(topic, partition)

    def log_size(self, kind: str) -> int:
        """Return the bytes of a log, where its leader was at first."""
        who: Who = "leader" if kind == "copy" else "coordinator"
        topic, partition = (
            (self.copy, self.partition) if kind == "copy" else (_TRANSACTIONS, self.id_place)
        )
        topic_id = self._stage.admin.describe_topic(topic).topic_id
        directory = self.broker(who).partition_directory(topic_id, partition)
        return sum(file.stat().st_size for file in directory.glob("*.log"))

    def write(self) -> None:
        """Write some records to each partition of the topic that is copied."""
        with SyncProducer(self._stage.cluster.bootstrap, linger_ms=0) as producer:
            for partition, _ in itertools.product(range(_PARTITIONS), range(_RECORDS)):
                value = next(self._values)
                self._written[partition].append(value)
                producer.send(self.source, text_of(value), partition=partition)

    def start_member(self) -> ClientProcess:
        self.member = ClientProcess(
            f"{self.transactional_id}.{next(self._lives)}",
            self._stage.folder,
            *("tests.faults.copier", self._stage.cluster.bootstrap, self.group),
            *(self.source, self.copy, self.transactional_id),
        )
        return self.member

    def wait_until_committed(self) -> None:
        """Wait until the transaction is over everywhere, by the producer's own commit."""

        def is_committed() -> bool:
            described = self._stage.admin.describe_transaction(self.transactional_id)
            assert described is not None
            assert (described.ending, described.ended_committed) == ("producer", True)
            return described.state == "complete_commit"

        wait_until(is_committed, "what is decided is over", _SECONDS_MAX)

    def wait_until_copied(self) -> None:
        """Wait until all is copied and nothing is open; each record is there once, in order."""
        admin, places = self._stage.admin, [(self.copy, number) for number in range(_PARTITIONS)]
        found: list[list[int]] = [[] for _ in range(_PARTITIONS)]
        with SyncConsumer(self._stage.cluster.bootstrap) as consumer:
            consumer.assign([self.copy], start="beginning")

            def is_all() -> bool:
                assert self.member is not None
                assert not self.member.failure, self.member.failure
                for record in consumer.poll(200):
                    found[record.partition].append(value_of(record.value))
                ends = admin.list_offsets(self.copy, isolation="read_uncommitted")
                return sum(map(len, found)) >= sum(map(len, self._written)) and all(
                    consumer.position(place) >= ends[place].offset for place in places
                )

            try:
                wait_until(is_all, "all is copied, and nothing is open", _SECONDS_MAX)
            except AssertionError:
                assert found == self._written
                raise
        assert found == self._written
        ends = {place: end.offset for place, end in admin.list_offsets(self.source).items()}

        def positions() -> dict[tuple[str, int], int]:
            return {place: at.offset for place, at in admin.fetch_positions(self.group).items()}

        # The coordinator of the group may get its marker after the partitions of the copy.
        wait_until(lambda: positions() == ends, "the positions are committed, too", _SECONDS_MAX)

    def close(self) -> None:
        if self.member is not None:
            self.member.kill()
        for topic in (self.source, self.copy):
            self._stage.admin.delete_topic(topic)


def reach(stage: Stage, copying: Copying, step: Step) -> None:
    """Let a member come to a step, and stand there."""
    holder = copying.broker(step.at)
    point = step.point.format(leader=copying.broker_id("leader"))
    if step.is_first:
        copying.write()
        stage.holds.hold(holder, point)
        copying.start_member()
    else:
        member = copying.start_member()
        copying.write()
        copying.wait_until_copied()
        member.pause()  # So nothing of it is held before all is there.
        copying.write()
        stage.holds.hold(holder, point)
        member.resume()
    stage.holds.wait_until_held(holder)
    if step.kept:
        size = copying.log_size(step.kept)
        stage.holds.hold(holder, "Replica.Fetch.answers")
        wait_until(lambda: copying.log_size(step.kept) > size, "the leader alone has it")


def steps_and_who(by_day: set[tuple[str, Who]]) -> list[object]:
    return [
        pytest.param(
            step,
            who,
            id=f"{name}, {who}",
            marks=[] if (name, who) in by_day else [pytest.mark.nightly],
        )
        for (name, step), who in itertools.product(STEPS.items(), _WHO)
    ]


@pytest.mark.parametrize(("step", "who"), steps_and_who(_BY_DAY))  # type: ignore[arg-type]
def test_who_dies_at_a_step_leaves_all_of_the_transaction_or_nothing(
    stage: Stage, step: Step, who: Who
) -> None:
    with ExitStack() as left:
        copying = Copying(stage)
        left.callback(copying.close)
        left.callback(stage.holds.release)
        reach(stage, copying, step)
        if who == "member":
            assert copying.member is not None
            copying.member.kill()
            stage.holds.release()
            if step.is_decided:
                copying.wait_until_committed()
            copying.start_member()
        elif who == "brokers":
            left.callback(start_again, *stage.cluster.brokers)
            for broker in stage.cluster.brokers:
                broker.kill()
            stage.holds.release()
            start_again(*stage.cluster.brokers)
        else:
            killed = copying.broker(who)
            left.callback(start_again, killed)
            killed.kill()
            stage.holds.release()
            wait_until(
                lambda: copying.present_leader(who) not in (copying.broker_id(who), -1),
                "another broker does its work",
            )
            start_again(killed)
        copying.wait_until_copied()


@contextmanager
def paused(member: ClientProcess) -> Iterator[None]:
    member.pause()
    try:
        yield
    finally:
        member.resume()


def start_again(*brokers: RunningBroker) -> None:
    """Start those that are dead, all at a time."""
    dead = [broker for broker in brokers if not broker.is_running]
    with ThreadPoolExecutor(len(brokers)) as pool:
        for started in [pool.submit(broker.start) for broker in dead]:
            started.result()


@pytest.mark.nightly
@pytest.mark.parametrize("who", ["who holds", "member"])
@pytest.mark.parametrize("step", [pytest.param(step, id=name) for name, step in STEPS.items()])
def test_who_stands_still_beyond_the_time_out_changes_nothing_later(
    stage: Stage, step: Step, who: str
) -> None:
    """P47, P49, P53, P55: what it was about to do belongs to a transaction that may be over."""
    with ExitStack() as left:
        copying = Copying(stage)
        left.callback(copying.close)
        left.callback(stage.holds.release)
        reach(stage, copying, step)
        assert copying.member is not None
        broker = copying.broker(step.at)
        with paused(copying.member) if who == "member" else broker.paused():
            stage.holds.release()
            time.sleep(_BEYOND_SECONDS)
        copying.wait_until_copied()
