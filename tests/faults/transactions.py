"""Faults of transactions: of their coordinators, of who writes them, and of who copies."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tests.faults.catalogue import SEEN_SECONDS_MAX, NotSeenError
from tests.faults.cluster import Node
from tests.faults.fault import Scene, fault
from tests.faults.machine import Need
from tests.faults.transactional import COPY, ClientProcess
from tests.integration.running_broker import wait_until

from millrace.client import SyncAdmin, SyncConsumer, SyncProducer, TransactionInDoubtError
from millrace.core.client.producer.murmur2 import partition_of
from millrace.core.errors import AbortedError, MillraceError
from millrace.core.topics import TRANSACTIONS_TOPIC

_PARTITIONS: Final = 3
_HOUR: Final = 3600.0
_DOUBT_SECONDS: Final = 0.2
_LOOKS_SECONDS: Final = 2.5
"""A coordinator looks for what is open for too long once a second."""
_SLOW_SECONDS: Final = 60.0
"""A time-out that is not reached within a fault."""
_PAUSES_MAX: Final = 20
"""Attempts to pause a writer within a transaction."""


def _coordinator(scene: Scene, transactional_id: str) -> tuple[Node, int]:
    """The broker that coordinates an id, and its leader epoch."""
    topic = scene.cluster.look().topics.get(str(TRANSACTIONS_TOPIC))
    if topic is None:
        raise NotSeenError("there is no coordinator")
    key = f"default/{transactional_id}".encode()
    state = topic.partitions[partition_of(key, len(topic.partitions))]
    if state.leader < 0:
        raise NotSeenError("nobody coordinates the id")
    return scene.cluster.node(state.leader), state.leader_epoch


class _Steps:
    """One transactional id on a topic of its own, whose coordinator dies at each step."""

    def __init__(self, scene: Scene, producer: SyncProducer, topic: str) -> None:
        self.committed: list[bytes] = []
        self._scene = scene
        self._producer = producer
        self._topic = topic
        self._id = topic

    def before_the_end(self) -> str:
        """All partitions have joined, and nobody has asked for the end."""
        self._send(b"joined")
        killed = self._kill()
        self._commit(b"joined")
        return killed

    def while_they_join(self) -> str:
        """The first records are on their way."""
        for partition in range(_PARTITIONS):
            self._producer.send(self._topic, b"joining", partition=partition)
        time.sleep(self._scene.dice.uniform(0, 0.02))
        killed = self._kill()
        self._commit(b"joining")
        return killed

    def during_the_end(self) -> str:
        """The end was asked for."""
        self._send(b"ending")
        committing = threading.Thread(target=self._commit, args=(b"ending",))
        committing.start()
        time.sleep(self._scene.dice.uniform(0, 0.02))
        killed = self._kill()
        committing.join()
        return killed

    def before_the_markers(self) -> str:
        """The answer came with the decision: markers are written after it."""
        self._send(b"decided")
        self._commit(b"decided")
        return self._kill()

    def during_an_abort(self) -> str:
        """As the end, for nothing."""
        self._send(b"aborted")
        aborting = threading.Thread(target=self._abort)
        aborting.start()
        time.sleep(self._scene.dice.uniform(0, 0.02))
        killed = self._kill()
        aborting.join()
        return killed

    def _kill(self) -> str:
        node, epoch = _coordinator(self._scene, self._id)
        node.kill()

        def is_replaced() -> bool:
            with suppress(NotSeenError):
                return _coordinator(self._scene, self._id)[1] > epoch
            return False

        wait_until(is_replaced, "another coordinator", SEEN_SECONDS_MAX)
        node.start_in_background()
        return node.name

    def _send(self, value: bytes) -> None:
        for partition in range(_PARTITIONS):
            self._producer.send(self._topic, value, partition=partition)
        self._producer.flush()

    def _commit(self, value: bytes) -> None:
        """Commit, whatever happens; an abort by time writes nothing."""
        while True:
            try:
                self._producer.commit_transaction()
            except TransactionInDoubtError:
                time.sleep(_DOUBT_SECONDS)
            except AbortedError:
                return
            except MillraceError as error:
                if not error.retriable:
                    raise
                time.sleep(_DOUBT_SECONDS)
            else:
                self.committed += [value] * _PARTITIONS
                return

    def _abort(self) -> None:
        while True:
            try:
                self._producer.abort_transaction()
            except MillraceError as error:
                if not error.retriable and not isinstance(error, TransactionInDoubtError):
                    raise
                time.sleep(_DOUBT_SECONDS)
            else:
                return


@fault("F83", "SIGKILL of the coordinator of a transactional id, at each step of a transaction")
def kill_the_coordinator_at_each_step(scene: Scene) -> str:
    cluster = scene.cluster
    _need_transactions(scene)
    name = f"steps-{scene.dice.randrange(10**9)}"
    killed: list[str] = []
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topic(name, partitions=_PARTITIONS, replication_factor=3)
        with SyncProducer(
            cluster.bootstrap,
            transactional_id=name,
            request_timeout_ms=5_000,
            delivery_timeout_ms=90_000,
            linger_ms=1,
        ) as producer:
            producer.init_transactions()
            at = _Steps(scene, producer, name)
            steps: list[Callable[[], str]] = [
                at.while_they_join,
                at.before_the_end,
                at.during_the_end,
                at.before_the_markers,
                at.during_an_abort,
            ]
            for step in steps:
                producer.begin_transaction()
                killed.append(step())
                for node in cluster.nodes:
                    node.wait_until_started()
                cluster.wait_until_whole()
        found = _read_back(cluster.bootstrap, name)
        admin.delete_topic(name)
    if sorted(found) != sorted(at.committed):
        raise AssertionError(f"{at.committed} were committed, and {found} are read")
    if not at.committed:
        raise NotSeenError("every transaction was aborted by time")
    return f"coordinators {', '.join(killed)} were killed; {len(found)} records count, once each"


def _read_back(bootstrap: str, topic: str) -> list[bytes]:
    """Return all that is committed, once no transaction is open there."""
    places = [(topic, number) for number in range(_PARTITIONS)]
    found: list[bytes] = []
    with SyncAdmin(bootstrap) as admin, SyncConsumer(bootstrap) as consumer:
        consumer.assign([topic], start="beginning")

        def is_all() -> bool:
            found.extend(record.value for record in consumer.poll(300))
            ends = admin.list_offsets(topic, isolation="read_uncommitted")
            return all(consumer.position(place) >= ends[place].offset for place in places)

        wait_until(is_all, f"{topic} is read to its end", 2 * SEEN_SECONDS_MAX)
    return found


@fault("F84", "SIGKILL of members that copy exactly once, one after the other")
def kill_copiers(scene: Scene) -> str:
    _need_transactions(scene)
    transactional = scene.transactional
    for name in list(transactional.copiers):
        transactional.wait_for_more()
        time.sleep(scene.dice.uniform(0, 0.3))  # Within a transaction, or between two.
        transactional.copiers[name].kill()
        seen = transactional.seen[COPY]
        transactional.start_copier(name)
        wait_until(
            lambda seen=seen: transactional.seen[COPY] > seen,  # type: ignore[misc]
            "the copy goes on",
            2 * SEEN_SECONDS_MAX,
        )
    return "each was killed, and the copy went on"


@fault("F91", "SIGKILL of Kafka's clients that copy exactly once, one after the other")
def kill_copiers_of_kafka(scene: Scene) -> str:
    _need_transactions(scene)
    transactional = scene.kafka.transactional
    for name in list(transactional.copiers):
        transactional.wait_for_more()
        time.sleep(scene.dice.uniform(0, 0.3))  # Within a transaction, or between two.
        transactional.copiers[name].kill()
        transactional.start_copier(name)
        transactional.wait_for_more()
    return "each was killed, and the copy went on"


@fault("F85", "SIGSTOP of a writer beyond its transaction's time-out, then SIGCONT; then SIGKILL")
def pause_a_writer(scene: Scene) -> str:
    _need_transactions(scene)
    transactional = scene.transactional
    endings = _pause_within_a_transaction(scene, transactional.writer, "writer-")
    transactional.wait_for_more()
    transactional.writer.kill()
    transactional.start_writer()
    transactional.wait_for_more()
    return f"transactions of {endings} were aborted by time; then its ids had another"


@fault("F92", "SIGSTOP of a writer of Kafka's beyond its transaction's time-out; then SIGKILL")
def pause_a_writer_of_kafka(scene: Scene) -> str:
    _need_transactions(scene)
    transactional = scene.kafka.transactional
    endings = _pause_within_a_transaction(scene, transactional.writer, "kafka-writer-")
    transactional.wait_for_more()
    transactional.writer.kill()
    transactional.start_writer()
    transactional.wait_for_more()
    return f"transactions of {endings} were aborted by time; then its ids had another"


def _pause_within_a_transaction(scene: Scene, writer: ClientProcess, prefix: str) -> str:
    """Pause a writer until its open transactions are aborted by time; return their ids."""
    with SyncAdmin(scene.cluster.bootstrap) as admin:
        for _ in range(_PAUSES_MAX):
            writer.pause()
            time.sleep(_DOUBT_SECONDS)  # What is under way arrives.
            if ids := _open_ids(admin, prefix):
                break
            writer.resume()
            time.sleep(scene.dice.uniform(0, _DOUBT_SECONDS))
        else:
            raise NotSeenError("no transaction was open")
        try:
            wait_until(
                lambda: not ids & _open_ids(admin, prefix),
                "it is aborted by time",
                SEEN_SECONDS_MAX,
            )
            endings = {name: _ending(admin, name) for name in sorted(ids)}
        finally:
            writer.resume()
        if set(endings.values()) != {"timeout"}:
            raise AssertionError(f"the transactions of a paused writer ended so: {endings}")
    return ", ".join(endings)


def _open_ids(admin: SyncAdmin, prefix: str) -> set[str]:
    listed = admin.list_transactions(["ongoing"])
    return {one.transactional_id for one in listed if one.transactional_id.startswith(prefix)}


def _ending(admin: SyncAdmin, name: str) -> str | None:
    described = admin.describe_transaction(name)
    return None if described is None else described.ending


@fault("F86", "the wall clock of an id's coordinator jumps an hour ahead, and back", Need.PRELOAD)
def jump_the_coordinators_clock(scene: Scene) -> str:
    _need_transactions(scene)
    cluster, name = scene.cluster, f"clock-{scene.dice.randrange(10**9)}"
    jumps = scene.dice.sample([_HOUR, -_HOUR], 2)
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topic(name, partitions=_PARTITIONS, replication_factor=3)
        with SyncProducer(cluster.bootstrap, transactional_id=name) as producer:
            producer.init_transactions()
            node, epoch = _coordinator(scene, name)
            for jump in jumps:
                with producer.transaction() as t:
                    for partition in range(_PARTITIONS):
                        t.send(name, b"open", partition=partition)
                    producer.flush()
                    node.control.set_clock(wall_shift_s=jump)
                    scene.load.wait_for_more(60)
                    scene.transactional.wait_for_more()
                    time.sleep(_LOOKS_SECONDS)
                    listed = admin.list_transactions(["ongoing"])
                    if all(one.transactional_id != name for one in listed):
                        raise AssertionError(f"a wall clock ended the transaction: {listed}")
        found = _read_back(cluster.bootstrap, name)
        admin.delete_topic(name)
    if _coordinator(scene, name)[1] != epoch:
        raise NotSeenError("another broker coordinates the id")
    if found != [b"open"] * _PARTITIONS * len(jumps):
        raise AssertionError(f"two transactions were committed, and {found} are read")
    return f"the clock of {node.name} was {jumps} s off; both open transactions were committed"


@fault("F87", "the monotonic clocks of an id's coordinator jump beyond the time-out", Need.PRELOAD)
def jump_the_coordinators_steady_clock(scene: Scene) -> str:
    _need_transactions(scene)
    cluster, name = scene.cluster, f"steady-{scene.dice.randrange(10**9)}"
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topic(name, partitions=_PARTITIONS, replication_factor=3)
        with SyncProducer(
            cluster.bootstrap,
            transactional_id=name,
            transaction_timeout_ms=round(_SLOW_SECONDS * 1000),
        ) as producer:
            producer.begin_transaction()
            for partition in range(_PARTITIONS):
                producer.send(name, b"open", partition=partition)
            producer.flush()
            node, epoch = _coordinator(scene, name)
            node.control.set_clock(steady_jump_s=2 * _SLOW_SECONDS)
            aborted = True
            try:
                wait_until(lambda: _ending(admin, name), "it is aborted", _SLOW_SECONDS / 3)
                producer.commit_transaction()
            except AbortedError:
                pass
            except AssertionError:
                aborted = False
                producer.commit_transaction()
            else:
                raise AssertionError("a transaction was committed after its abort by time")
            with producer.transaction() as t:
                for partition in range(_PARTITIONS):
                    t.send(name, b"next", partition=partition)
        found = sorted(_read_back(cluster.bootstrap, name))
        admin.delete_topic(name)
    if found != [b"next"] * _PARTITIONS + ([] if aborted else [b"open"] * _PARTITIONS):
        raise AssertionError(f"aborted: {aborted}; {found} are read")
    if not aborted:
        raise NotSeenError(f"it stayed open; the epoch was {epoch}: {_coordinator(scene, name)}")
    return f"{node.name} aborted it by its clock, its commit was refused, and the next one counts"


def _need_transactions(scene: Scene) -> None:
    if not scene.transactional.is_begun:
        raise NotSeenError("brokers of the last release know no transactions")
