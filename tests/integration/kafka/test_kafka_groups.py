"""Group consumers of Kafka's own clients: who reads what, who takes over, what is kept."""

import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer
from kafka import TopicPartition as KafkaPartition
from kafka.errors import InconsistentGroupProtocolError
from kafka.structs import OffsetAndMetadata
from tests.integration.kafka.ends import KAFKA, bootstrap, closing, drop_sockets
from tests.integration.running_broker import RunningBroker, wait_until
from tests.integration.running_cluster import RunningCluster

from millrace.client import Position, SyncAdmin, SyncConsumer
from millrace.core.errors import GroupNotEmptyError, InvalidGroupError, UnknownMemberIdError

confluent = pytest.importorskip("confluent_kafka")
confluent_admin = pytest.importorskip("confluent_kafka.admin")

QUICK = {**KAFKA, "groups.classic_rebalance_delay_ms": 100}
PARTITIONS = 4
REBALANCE_SECONDS_MAX = 40.0
"""Several sessions: a member that a busy machine holds up for one has to join again."""
ASSIGNORS = ("range", "roundrobin", "cooperative-sticky")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker whose groups begin soon."""
    running = RunningBroker(tmp_path_factory.mktemp("kafka_groups"), dict(QUICK))
    yield running.start()
    running.abandon()


@pytest.fixture
def topic(broker: RunningBroker, topic_name: str) -> str:
    with SyncAdmin(broker.address) as admin:
        admin.create_topic(topic_name, PARTITIONS, 1)
    return topic_name


class Member:
    """A consumer of librdkafka, polled by a thread of its own."""

    def __init__(self, addresses: str, group: str, topic: str, **settings: object) -> None:
        times = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
        if "consumer" in settings.values():
            times = {}  # The broker says so.
        self.consumer = confluent.Consumer(
            {
                "bootstrap.servers": addresses,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **times,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        self.lost = 0
        self.rebalances = 0
        self.values: list[bytes] = []
        self._lock = threading.Lock()
        self._assigned: set[int] = set()
        self._stopped = threading.Event()
        is_cooperative = (
            "cooperative-sticky" in settings.values() or "consumer" in settings.values()
        )

        def assigned(consumer: Any, partitions: Sequence[Any]) -> None:
            with self._lock:
                self.rebalances += 1
                self._assigned |= {partition.partition for partition in partitions}
            if is_cooperative:
                consumer.incremental_assign(partitions)
            else:
                consumer.assign(partitions)

        def revoked(consumer: Any, partitions: Sequence[Any]) -> None:
            with self._lock:
                self._assigned -= {partition.partition for partition in partitions}
            if is_cooperative:
                consumer.incremental_unassign(partitions)
            else:
                consumer.unassign()

        def lost(consumer: Any, partitions: Sequence[Any]) -> None:
            self.lost += 1
            revoked(consumer, partitions)

        self.consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked, on_lost=lost)
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while not self._stopped.is_set():
            record = self.consumer.poll(0.1)
            if record is not None and not record.error():
                self.values.append(record.value())

    @property
    def assigned(self) -> set[int]:
        with self._lock:
            return set(self._assigned)

    def stop(self) -> None:
        """Poll no more; the member stays for its session."""
        self._stopped.set()
        self._thread.join(20)

    def close(self) -> None:
        self.stop()
        self.consumer.close()


@contextmanager
def members(*made: Callable[[], Member]) -> Iterator[list[Member]]:
    with ExitStack() as stack:
        found = []
        for make in made:
            member = make()
            stack.callback(member.close)
            found.append(member)
        yield found


def share(*consumers: Member) -> Callable[[], bool]:
    """Return whether these members have all partitions, each one of them."""

    def check() -> bool:
        assigned = [consumer.assigned for consumer in consumers]
        return (
            sum(map(len, assigned)) == PARTITIONS
            and set().union(*assigned) == set(range(PARTITIONS))
            and all(assigned)
        )

    return check


# --- librdkafka ------------------------------------------------------------------------------


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_members_of_librdkafka_share_the_partitions(
    broker: RunningBroker, topic: str, assignor: str
) -> None:
    def make() -> Member:
        return Member(bootstrap(broker), topic, topic, partition_assignment_strategy=assignor)

    with members(make, make) as (first, second):
        wait_until(share(first, second), "two members share the partitions", REBALANCE_SECONDS_MAX)
        with members(make) as (third,):
            wait_until(share(first, second, third), "three do", REBALANCE_SECONDS_MAX)
        wait_until(share(first, second), "two again", REBALANCE_SECONDS_MAX)


def test_a_static_member_that_restarts_keeps_its_partitions_and_disturbs_nobody(
    broker: RunningBroker, topic: str
) -> None:
    def make(name: str) -> Callable[[], Member]:
        return lambda: Member(
            bootstrap(broker), topic, topic, group_instance_id=name, session_timeout_ms=30_000
        )

    with members(make("a")) as (first,):
        with members(make("b")) as (second,):
            wait_until(share(first, second), "both share the partitions")
            had, kept = second.assigned, first.assigned
        with members(make("b")) as (again,):
            wait_until(lambda: again.assigned == had, "it has what it had")
            assert first.assigned == kept
            assert first.lost == 0


def test_the_partitions_of_a_member_that_was_killed_go_to_the_other_one(
    broker: RunningBroker, topic: str
) -> None:
    program = f"""
        import confluent_kafka
        consumer = confluent_kafka.Consumer({{
            "bootstrap.servers": {bootstrap(broker)!r}, "group.id": {topic!r},
            "session.timeout.ms": 6000, "heartbeat.interval.ms": 500,
            "auto.offset.reset": "earliest",
        }})
        consumer.subscribe([{topic!r}], on_assign=lambda *_: print("assigned", flush=True))
        while True:
            consumer.poll(0.1)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    )
    try:
        with members(lambda: Member(bootstrap(broker), topic, topic)) as (member,):
            assert process.stdout is not None
            assert process.stdout.readline() == "assigned\n"
            wait_until(
                lambda: 0 < len(member.assigned) < PARTITIONS,
                "both have some",
                REBALANCE_SECONDS_MAX,
            )
            process.kill()
            wait_until(share(member), "the other one has all", REBALANCE_SECONDS_MAX)
    finally:
        process.kill()
        process.communicate(timeout=20)


def test_positions_are_committed_with_their_metadata_and_found_again(
    broker: RunningBroker, topic: str
) -> None:
    with members(lambda: Member(bootstrap(broker), topic, topic)) as (member,):
        wait_until(share(member), "it has all partitions")
        member.stop()
        offsets = [
            confluent.TopicPartition(topic, 0, 7, metadata="seven"),
            confluent.TopicPartition(topic, 3, 9),
        ]
        member.consumer.commit(offsets=offsets, asynchronous=False)
        asked = [confluent.TopicPartition(topic, number) for number in range(PARTITIONS)]
        found = member.consumer.committed(asked, timeout=20)
        assert [place.offset for place in found] == [7, confluent.OFFSET_INVALID, -1001, 9]
        assert found[0].metadata == "seven"
    with SyncAdmin(broker.address) as admin:
        found = admin.fetch_positions(topic)
        assert {place: position.offset for place, position in found.items()} == {
            (topic, 0): 7,
            (topic, 3): 9,
        }


def test_a_group_of_kafka_is_described_with_its_members_and_its_lag(
    broker: RunningBroker, topic: str
) -> None:
    def make() -> Member:
        # With a session that outlives a pause: it is described as it is at one moment.
        return Member(
            bootstrap(broker), topic, topic, client_id="reader", session_timeout_ms=30_000
        )

    with SyncAdmin(broker.address) as admin:
        with members(make, make) as (first, second):
            wait_until(share(first, second), "two members share the partitions")
            described = admin.describe_group(topic)
            assert described is not None
            assert (described.kind, described.state) == ("consumer", "stable")
            assert [member.client_id for member in described.members] == ["reader", "reader"]
            assert {member.topics for member in described.members} == {(topic,)}
            assigned = sorted(
                number for member in described.members for _, number in member.assigned
            )
            assert assigned == list(range(PARTITIONS))
            listed = {group.name: group for group in admin.list_groups()}
            assert (listed[topic].kind, listed[topic].members) == ("consumer", 2)
            with pytest.raises(GroupNotEmptyError):
                admin.delete_group(topic)
            with pytest.raises(UnknownMemberIdError):
                admin.commit_positions(topic, {(topic, 0): Position(1)})
            with SyncConsumer(broker.address, group=topic) as consumer:
                consumer.subscribe([topic])
                with pytest.raises(InvalidGroupError, match="speak Kafka's protocol"):
                    consumer.poll(timeout_ms=20_000)
        wait_until(lambda: not listed_members(admin, topic), "both have left")
        admin.delete_group(topic)
        assert admin.describe_group(topic) is None


def listed_members(admin: SyncAdmin, group: str) -> int:
    return sum(listed.members for listed in admin.list_groups() if listed.name == group)


def test_a_group_of_millrace_refuses_consumers_of_kafka(broker: RunningBroker, topic: str) -> None:
    with SyncConsumer(broker.address, group=topic) as consumer:
        consumer.subscribe([topic])
        consumer.poll(timeout_ms=100)
        with SyncAdmin(broker.address) as admin:
            wait_until(lambda: listed_members(admin, topic), "it has joined")
        with closing(python_consumer(broker, topic)) as other:
            other.subscribe([topic])
            with pytest.raises(InconsistentGroupProtocolError):
                other.poll(timeout_ms=30_000)
        with closing(KafkaAdminClient(bootstrap_servers=bootstrap(broker))) as admin:
            wait_until(lambda: "Stable" in str(admin.describe_groups([topic])), "it is stable")


# --- KIP-848 ---------------------------------------------------------------------------------


def modern(broker: RunningBroker, topic: str, **settings: object) -> Callable[[], Member]:
    """Return what makes a member that lets the coordinator assign."""
    return lambda: Member(bootstrap(broker), topic, topic, group_protocol="consumer", **settings)


def test_members_of_kip_848_share_the_partitions(broker: RunningBroker, topic: str) -> None:
    make = modern(broker, topic)
    with members(make, make) as (first, second):
        wait_until(share(first, second), "two members share the partitions", 40)
        with members(make) as (third,):
            wait_until(share(first, second, third), "three do", 40)
        wait_until(share(first, second), "two again", 40)
        first.stop()
        number = min(first.assigned)
        place = confluent.TopicPartition(topic, number, 7)
        first.consumer.commit(offsets=[place], asynchronous=False)
        other = confluent.TopicPartition(topic, min(second.assigned), 7)
        with pytest.raises(confluent.KafkaException):
            first.consumer.commit(offsets=[other], asynchronous=False)
        with SyncAdmin(broker.address) as admin:
            described = admin.describe_group(topic)
            assert described is not None
            assert len(described.members) == 2
            assert {at: found.offset for at, found in described.committed.items()} == {
                (topic, number): 7
            }


def test_members_of_millrace_and_of_kip_848_share_a_group(
    broker: RunningBroker, topic: str
) -> None:
    with (
        SyncConsumer(broker.address, group=topic) as consumer,
        members(modern(broker, topic)) as (other,),
    ):
        consumer.subscribe([topic])

        def shared() -> bool:
            consumer.poll(timeout_ms=50)
            mine = {number for _, number in consumer.assignment()}
            return len(mine) == len(other.assigned) == 2 and not mine & other.assigned

        wait_until(shared, "both share the partitions", 40)


def test_a_group_of_kip_848_is_described(broker: RunningBroker, topic: str) -> None:
    with members(modern(broker, topic)) as (member,):
        wait_until(share(member), "it has all partitions", 40)
        client = confluent_admin.AdminClient({"bootstrap.servers": bootstrap(broker)})
        described = client.describe_consumer_groups([topic])[topic].result(20)
        assert described.state == confluent.ConsumerGroupState.STABLE
        assert [
            sorted(place.partition for place in found.assignment.topic_partitions)
            for found in described.members
        ] == [[0, 1, 2, 3]]
        listed = client.list_consumer_groups().result(20).valid
        assert topic in {group.group_id for group in listed}


# --- kafka-python ------------------------------------------------------------------------------


def python_consumer(broker: RunningBroker, group: str, **settings: object) -> Any:
    return KafkaConsumer(
        bootstrap_servers=bootstrap(broker),
        group_id=group,
        enable_auto_commit=False,
        session_timeout_ms=6000,
        heartbeat_interval_ms=500,
        **settings,
    )


# kafka-python leaves a socket to the garbage collector when a rebalance ends a connection.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_members_of_kafka_python_share_the_partitions(broker: RunningBroker, topic: str) -> None:
    # With all keys, as the threads change it while it is looked at.
    assigned: dict[int, set[int]] = {0: set(), 1: set()}
    stopped = threading.Event()

    def run(number: int) -> None:
        with closing(python_consumer(broker, topic)) as consumer:
            consumer.subscribe([topic])
            while not stopped.is_set():
                consumer.poll(timeout_ms=100)
                assigned[number] = {place.partition for place in consumer.assignment()}

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        wait_until(
            lambda: (
                sorted(map(len, assigned.values())) == [2, 2]
                and set().union(*assigned.values()) == set(range(PARTITIONS))
            ),
            "both share the partitions",
            REBALANCE_SECONDS_MAX,
        )
    finally:
        stopped.set()
        for thread in threads:
            thread.join(20)
        drop_sockets()


def test_kafka_python_commits_reads_lists_and_deletes(broker: RunningBroker, topic: str) -> None:
    places = [KafkaPartition(topic, number) for number in (0, 1)]
    with closing(python_consumer(broker, topic)) as consumer:
        consumer.assign(places)
        consumer.commit({places[0]: OffsetAndMetadata(5, "five", -1)})
        assert consumer.committed(places[0], metadata=True) == OffsetAndMetadata(5, "five", -1)
        assert consumer.committed(places[1]) is None
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap(broker))) as admin:
        assert topic in str(admin.list_groups())
        described = admin.describe_groups([topic])
        assert "Empty" in str(described)
        assert str(admin.delete_groups([topic]))
        assert topic not in str(admin.list_groups())


# --- A cluster ---------------------------------------------------------------------------------


def coordinator_of(cluster: RunningCluster, group: str) -> int | None:
    """Return the number of the broker that coordinates a group; None: there is none now."""
    admin = confluent_admin.AdminClient({"bootstrap.servers": bootstrap(*cluster.brokers)})
    try:
        described = admin.describe_consumer_groups([group], request_timeout=10)[group].result(20)
    except confluent.KafkaException:
        return None  # Whom the brokers name is dead, or has not loaded the group.
    found: int = described.coordinator.id
    return found


@pytest.mark.timeout(300)  # Its own waits are longer than two minutes.
def test_members_go_on_when_their_coordinator_is_killed(tmp_path: Path) -> None:
    settings = {**QUICK, "cluster.positions_replication_factor": 3}
    with RunningCluster(tmp_path, settings) as cluster:
        cluster.create_topic("t", PARTITIONS, 3)
        addresses = bootstrap(*cluster.brokers)

        def make(name: str) -> Callable[[], Member]:
            return lambda: Member(
                addresses, "g", "t", session_timeout_ms=30_000, group_instance_id=name
            )

        # Idempotent, as a batch whose answer the death delays is sent again.
        producer = confluent.Producer({"bootstrap.servers": addresses, "enable.idempotence": True})

        def write(begin: int, end: int) -> None:
            for number in range(begin, end):
                producer.produce("t", b"%d" % number)
            assert producer.flush(60) == 0

        with members(make("a"), make("b")) as both:
            first, second = both
            wait_until(share(first, second), "both share the partitions", 60)
            before = [(member.assigned, member.rebalances) for member in both]
            write(0, 1000)
            victim = coordinator_of(cluster, "g")
            assert victim is not None
            cluster[victim].kill()
            write(1000, 2000)
            wanted = {b"%d" % number for number in range(2000)}
            wait_until(
                lambda: {*first.values, *second.values} == wanted, "all records are read", 60
            )
            wait_until(
                lambda: coordinator_of(cluster, "g") not in (None, victim),
                "another coordinates",
                60,
            )
            for member in both:
                member.stop()
                member.consumer.commit(asynchronous=False)
            after = [(member.assigned, member.rebalances) for member in both]
            assert after == before, "the next coordinator has kept the members"
            assert len(first.values) + len(second.values) == 2000
        with SyncAdmin(cluster.bootstrap) as admin:
            found = admin.fetch_positions("g")
            assert sum(position.offset for position in found.values()) == 2000
