"""Faults of consumer groups and of their coordinator, and quotas that change during a fault.

Groups are those of both protocols: Millrace's, and Kafka's classic one.
"""

import threading
import time
from contextlib import suppress
from typing import Final

from tests.faults.catalogue import SEEN_SECONDS_MAX, NotSeenError
from tests.faults.cluster import SESSION_MS, Node
from tests.faults.fault import Scene, fault
from tests.faults.load import text_of, value_of
from tests.faults.members import MemberProcess, Members
from tests.integration.running_broker import wait_until

from millrace.client import SyncAdmin, SyncConsumer, SyncProducer
from millrace.core.client.producer.murmur2 import partition_of
from millrace.core.errors import MillraceError, QuotaNotFoundError
from millrace.core.topics import POSITIONS_TOPIC

_CLIENT: Final = "limited"
_VALUE_BYTES: Final = 500
_MEASURE_SECONDS: Final = 4.0
_MOST: Final = 1.1
"""The part of its limit that a client may use over this time."""
_SLACK_BYTES: Final = 24_000
"""Requests that are under way when a measurement begins or ends."""
_RATE_SECONDS_MAX: Final = 60.0


def _owner(scene: Scene, members: Members) -> MemberProcess:
    """Any member that owns something."""
    owners = [member for member in members.running if member.owned()]
    if not owners:
        raise NotSeenError("no member owns anything")
    return scene.dice.choice(owners)


def _wait_for_others(members: Members, member: MemberProcess, keys: set[int]) -> str:
    """Wait until the other members own what a member had; return a description."""

    def have_all() -> bool:
        others = [other for other in members.running if other is not member]
        return keys <= set().union(*(other.owned() for other in others))

    wait_until(have_all, f"others own {keys} of {member.name}", SEEN_SECONDS_MAX)
    return f"others took keys {sorted(keys)} of {member.name}"


def _coordinator(scene: Scene, group: str) -> tuple[Node, int]:
    """The broker that coordinates a group, and its leader epoch."""
    topic = scene.cluster.look().topics.get(str(POSITIONS_TOPIC))
    if topic is None:
        raise NotSeenError("there is no coordinator")
    state = topic.partitions[partition_of(group.encode(), len(topic.partitions))]
    return scene.cluster.node(state.leader), state.leader_epoch


@fault("F66", "SIGSTOP of a group's member beyond its session, then SIGCONT")
def pause_a_member(scene: Scene) -> str:
    return _pause_a_member(scene, scene.members)


@fault("F67", "SIGKILL of a group's coordinator while members come and go")
def kill_a_coordinator(scene: Scene) -> str:
    return _kill_a_coordinator(scene, scene.members)


@fault("F68", "SIGKILL of a group's members, one after the other")
def kill_members(scene: Scene) -> str:
    return _kill_members(scene, scene.members)


@fault("F88", "SIGSTOP of a member of Kafka's classic protocol beyond its session, then SIGCONT")
def pause_a_member_of_kafka(scene: Scene) -> str:
    return _pause_a_member(scene, scene.kafka.members)


@fault("F89", "SIGKILL of the coordinator of a group of Kafka's while members come and go")
def kill_a_coordinator_of_kafka(scene: Scene) -> str:
    return _kill_a_coordinator(scene, scene.kafka.members)


@fault("F90", "SIGKILL of members of Kafka's classic protocol, one after the other")
def kill_members_of_kafka(scene: Scene) -> str:
    return _kill_members(scene, scene.kafka.members)


def _pause_a_member(scene: Scene, members: Members) -> str:
    member = _owner(scene, members)
    keys = member.owned()
    member.pause()
    try:
        seen = _wait_for_others(members, member, keys)
        time.sleep(scene.dice.uniform(0, SESSION_MS / 1000))  # How long it goes on is any time.
    finally:
        member.resume()
    members.wait_until_shared()
    return f"{seen}; then it went on, and got others"


def _kill_a_coordinator(scene: Scene, members: Members) -> str:
    coordinator, before = _coordinator(scene, members.group)
    stored = members.stored()
    joining = members.join()
    time.sleep(scene.dice.uniform(0, 1))  # Until it dies at any step of that.
    coordinator.kill()
    wait_until(
        lambda: _coordinator(scene, members.group)[1] > before,
        "another coordinator",
        SEEN_SECONDS_MAX,
    )

    def goes_on() -> bool:
        try:
            now = members.stored()
        except MillraceError:
            return False
        return all(now[key] > at for key, at in stored.items())

    wait_until(goes_on, "the group commits on", 2 * SEEN_SECONDS_MAX)
    members.wait_until_shared()
    keys = joining.owned()
    members.kill(joining)
    seen = _wait_for_others(members, joining, keys)
    now = _coordinator(scene, members.group)[1]
    return f"{coordinator.name} in epoch {before}, then {now}; {seen}"


def _kill_members(scene: Scene, members: Members) -> str:
    seen = []
    for _ in range(2):
        member = _owner(scene, members)
        keys = member.owned()
        members.kill(member)
        seen.append(_wait_for_others(members, member, keys))
        members.join()
    members.wait_until_shared()
    return "; ".join(seen)


class _Limited(threading.Thread):
    """Writes all that its quota lets it, until it is stopped.

    Attributes:
        sent: how many records.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(name=_CLIENT, daemon=True)
        self.sent = 0
        self._producer = SyncProducer(
            bootstrap,
            client_id=_CLIENT,
            compression="none",
            batch_size=4_000,
            buffer_memory=40_000,
            delivery_timeout_ms=120_000,
        )
        self._topic = topic
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.is_set():
            self._producer.send(self._topic, text_of(self.sent, _VALUE_BYTES), partition=0)
            self.sent += 1

    def metrics(self) -> dict[str, int]:
        return self._producer.metrics()

    def rate(self, seconds: float) -> float:
        """Return the bytes a second that are acknowledged, over this time."""
        began, before = time.monotonic(), self.metrics()["acknowledged_records"]
        time.sleep(seconds)  # What is measured is a rate.
        written = (self.metrics()["acknowledged_records"] - before) * _VALUE_BYTES
        return written / (time.monotonic() - began)

    def stop(self) -> None:
        self._is_over.set()
        if self.is_alive():
            self.join()
        self._producer.close()


@fault("F72b", "quotas are set and changed while a leader is killed")
def change_quotas(scene: Scene) -> str:
    cluster, name = scene.cluster, f"{_CLIENT}-{scene.dice.randrange(10**9)}"
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topic(name, replication_factor=3)
        writer = _Limited(cluster.bootstrap, name)
        try:
            seen = _change_quotas(scene, admin, writer, name)
        finally:
            with suppress(QuotaNotFoundError):
                admin.delete_quota(_CLIENT)
            writer.stop()
        failed = writer.metrics()["failed_records"]
        assert failed == 0, f"{failed} records were refused where a quota may only delay"
        _read_back(cluster.bootstrap, name, writer.sent)
        admin.delete_topic(name)
    return seen


def _change_quotas(scene: Scene, admin: SyncAdmin, writer: _Limited, name: str) -> str:
    cluster = scene.cluster
    low, high = 10_000, 80_000

    def limit(bytes_per_second: int) -> None:
        admin.set_quota(_CLIENT, client_id=_CLIENT, produce_bytes_per_second=bytes_per_second)

    limit(high)
    writer.start()
    wait_until(lambda: writer.metrics()["throttled_ms"] > 0, "the quota delays its client")
    state = cluster.look().topics[name].partitions[0]
    leader = cluster.node(state.leader)
    leader.kill()
    limit(low)
    cluster.wait_for(
        lambda view: view.topics[name].partitions[0].leader_epoch > state.leader_epoch,
        "another leader",
        SEEN_SECONDS_MAX,
    )
    slow = _rate(writer, low, low / 2)
    leader.start()
    cluster.wait_until_whole()
    limit(high)
    fast = _rate(writer, high, 2 * low)
    return (
        f"{slow / 1000:.0f} kB/s with a limit of {low // 1000} that was set while "
        f"{leader.name} was down, then {fast / 1000:.0f} with {high // 1000}"
    )


def _rate(writer: _Limited, limit: int, least: float) -> float:
    """Return at what rate is written, once it is at least so much: machines may be slow."""
    most = limit * _MOST + _SLACK_BYTES / _MEASURE_SECONDS
    deadline = time.monotonic() + _RATE_SECONDS_MAX
    while (rate := writer.rate(_MEASURE_SECONDS)) < least:
        assert time.monotonic() < deadline, f"{rate:.0f} bytes/s with a limit of {limit}"
    assert rate <= most, f"{rate:.0f} bytes/s with a limit of {limit}"
    return rate


def _read_back(bootstrap: str, name: str, count: int) -> None:
    """Check that all values are there, once and in order."""
    values: list[int] = []
    deadline = time.monotonic() + 2 * SEEN_SECONDS_MAX
    with SyncConsumer(bootstrap) as consumer:
        consumer.assign([name], start="beginning")
        while len(values) < count and time.monotonic() < deadline:
            values += [value_of(record.value) for record in consumer.poll(1000)]
    assert values == list(range(count)), f"{count} values were written, {len(values)} read"
