"""Scenarios of transactions: coordinators that die at each step of the protocol, markers, ends and
batches that come late, producers that are replaced, and partitions that cannot have their marker.

Each runs with a largest epoch of 2 in half of its seeds, so that epochs run out all the time. The
checkers of transactions and copies have what must hold (`tests.checkers`).
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from tests.checkers.history import INVOKE, OK
from tests.sim.clients.readers_and_writers import Load
from tests.sim.clients.transactional import TransactionalWriter, TransactionPlan
from tests.sim.faults.family import Family, Scene, Undo
from tests.sim.machines.machine import BrokerMachine
from tests.sim.machines.network import KEEPALIVE_US, Weather
from tests.sim.scenarios.scenario import Scenario, ScenarioCluster, Step, again
from tests.sim.settings import CLUSTER, REPLICATION, TRANSACTIONS, Settings
from tests.sim.topics import TopicPlan
from tests.sim.world import MILLISECOND, SECOND, Violation, World

from millrace.broker.storage.log import PartitionLog
from millrace.core.coordinator.transactions.config import EPOCH_MAX
from millrace.core.coordinator.transactions.records import IdRecord, decode
from millrace.core.coordinator.transactions.transaction import State
from millrace.core.ids import Offset, TopicPartition, WallMs
from millrace.core.records.batch import open_batch, walk
from millrace.core.topics import TRANSACTIONS_TOPIC

_SOON: Final = 100 * MILLISECOND
_LOAD: Final = (Load(every_us=10 * _SOON, burst_max=2),)
_LOOK_US: Final = MILLISECOND // 2
_LAST_RECORDS: Final = 8
_COMMIT_US_MAX: Final = 5 * _SOON
_LATE_US: Final = (SECOND, 4 * SECOND)
_TOO_LATE_US: Final = (5500 * MILLISECOND, 9 * SECOND)
"""Later than clients wait for an answer; some of it later than copies may be open."""
_AFTER_KEEPALIVE_US: Final = (KEEPALIVE_US + SECOND // 2, 14 * SECOND)
"""The sender has given the call up by then, and called again."""


class Transacting(ScenarioCluster):
    """Two writers of transactions, and a copy of their topic."""

    source = TopicPlan(loads=_LOAD, polls_every_us=3 * _SOON)
    transactions = TransactionPlan(every_us=_SOON, closes=0.03)
    cluster = dataclasses.replace(CLUSTER, transactions_partitions=1)
    coordinators = TRANSACTIONS

    def __init__(self, world: World) -> None:
        source = dataclasses.replace(self.source, transactions=self.transactions)
        copy = dataclasses.replace(self.source, name="copy", loads=(), copies="t", comes_back=False)
        self.topics = (source, copy) if self.is_copied else (source,)
        epoch_max = 2 if world.seed % 2 else EPOCH_MAX
        self.settings = Settings(
            transactions=dataclasses.replace(self.coordinators, epoch_max=epoch_max),
            cluster=self.cluster,
            replication=REPLICATION,
        )
        super().__init__(world)

    is_copied = True


class Alone(Transacting):
    """The same without the copy."""

    is_copied = False


class Replaced(Alone):
    """Producers are replaced again and again, many within a transaction."""

    transactions = TransactionPlan(every_us=_SOON, leaves=0.3, closes=0.2)


class TimedOut(Alone):
    """Many transactions are open for longer than their time-out, or left."""

    transactions = TransactionPlan(every_us=_SOON, timeout_ms=2_000, sleeps=0.2, leaves=0.1)

    def finish(self) -> Mapping[str, float]:
        """Check that none of them is committed after twice the time (P53)."""
        measures = super().finish()
        longest_ns = 2 * self.transactions.timeout_ms * 1_000_000
        for topic in self.running.values():
            began: dict[str, int] = {}
            asked: dict[str, int] = {}
            for op in topic.recorder.ops:
                if op.f == "txn" and op.type == INVOKE:
                    began[op.process] = op.at_ns
                elif op.f == "end":
                    asked[op.process] = op.at_ns
                elif op.f == "txn" and op.type == OK:
                    open_ns = asked[op.process] - began[op.process]
                    if open_ns >= longest_ns:
                        raise Violation(
                            f"{op.process} is committed, and was open for {open_ns / 1e9:.1f} s, "
                            f"with a time-out of {self.transactions.timeout_ms} ms (P53)"
                        )
        return measures


class OpenForLong(Alone):
    """Many transactions are open while brokers come and go."""

    transactions = TransactionPlan(every_us=_SOON, timeout_ms=10_000, sleeps=0.15)


class Returning(Alone):
    """The topic is deleted for longer than transactions may be open, and brought back."""

    transactions = TransactionPlan(every_us=_SOON, timeout_ms=2_000)
    source = dataclasses.replace(Transacting.source, comes_back=True)


class InDoubt(Alone):
    """Transactions may be open for longer than a client waits for the answer to an end."""

    transactions = TransactionPlan(every_us=_SOON, timeout_ms=15_000)


class Replaceable(Alone):
    """Who is cut off from the others is replaced after a second, and transactions are rare.

    So the first that a coordinator hears of the next transaction may be its end. It leads no
    partition in which the transaction writes, as there is a broker more.
    """

    brokers = 4
    source = dataclasses.replace(Transacting.source, partitions=2)
    transactions = TransactionPlan(
        writers=1, every_us=SECOND, aborts=0.0, leaves=0.0, sleeps=0.0, closes=0.0
    )
    cluster = dataclasses.replace(
        Transacting.cluster, broker_session_timeout_ms=1_000, broker_heartbeat_interval_ms=100
    )


class Prompt(Alone):
    """Commits do not wait for markers."""

    def finish(self) -> Mapping[str, float]:
        """Check that an end is answered when it is decided (T12)."""
        measures = super().finish()
        commits = sorted(
            taken
            for client in self.all_transacting()
            if isinstance(client, TransactionalWriter)
            for taken in client.commits_us
        )
        slow = commits[len(commits) * 19 // 20]
        if slow > _COMMIT_US_MAX:
            raise Violation(f"one commit of 20 takes {slow / SECOND:.3f} s (T12)")
        return {**measures, "slow_commit_s": slow / SECOND}


def _place(machine: BrokerMachine) -> TopicPartition | None:
    """The only partition of coordinators."""
    node = machine.node
    image = None if node is None else node.metadata
    topic = None if image is None else image.topics.get(TRANSACTIONS_TOPIC)
    return None if topic is None else TopicPartition(topic.topic_id, 0)


def _log(machine: BrokerMachine) -> PartitionLog | None:
    """The log of coordinators of a machine."""
    place, node = _place(machine), machine.node
    return None if place is None or node is None else node.log(place)


def _coordinator(scene: Scene) -> BrokerMachine | None:
    for machine in scene.machines.values():
        place, node = _place(machine), machine.node
        replicas = None if node is None else node.replicas
        if place is None or replicas is None or place not in replicas:
            continue
        if replicas.get(place).leads:
            return machine
    return None


def _last_state(log: PartitionLog) -> State | None:
    """The state in the last record of an id, if it is among the last records of a log."""
    found: State | None = None
    offset = max(log.log_start_offset, log.log_end_offset - _LAST_RECORDS)
    plan = log.reader.plan_read(Offset(offset), 1 << 20, log.log_end_offset)
    for header, batch in walk(log.reader.read(plan)) if plan is not None else ():
        opened = open_batch(log.topic_partition, header, batch, 1 << 30)
        for key, value in zip(
            opened.column("key").to_pylist(), opened.column("value").to_pylist(), strict=True
        ):
            record = decode(key, value, WallMs(0))
            if isinstance(record, IdRecord) and record.transaction is not None:
                found = record.transaction.state
    return found


def _is_written(states: frozenset[State], *, is_committed: bool) -> Callable[[BrokerMachine], bool]:
    """Whether the last record of a coordinator has one of these states, and is committed or not."""

    def look(machine: BrokerMachine) -> bool:
        log, place, node = _log(machine), _place(machine), machine.node
        if log is None or place is None or node is None or node.replicas is None:
            return False
        high_watermark = node.replicas.get(place).high_watermark
        if (high_watermark >= log.log_end_offset) is not is_committed:
            return False
        return _last_state(log) in states

    return look


def _end_when(
    is_due: Callable[[BrokerMachine], bool],
    end: Callable[[BrokerMachine], object],
    scene: Scene,
) -> Undo | None:
    """Kill the coordinator as soon as it is at some step."""
    coordinator = _coordinator(scene)
    if coordinator is None:
        return None
    life = coordinator.node
    is_over = False

    def look() -> None:
        if is_over or coordinator.node is not life:
            return
        if is_due(coordinator):
            end(coordinator)
        else:
            scene.world.after(_LOOK_US, "a step of the coordinator", look)

    def undo() -> None:
        nonlocal is_over
        is_over = True
        coordinator.start()

    look()
    return undo


def _at(name: str, states: frozenset[State], *, is_committed: bool) -> Family:
    """The coordinator dies when its last record says this."""
    is_due = _is_written(states, is_committed=is_committed)
    return Family("F67", name, partial(_end_when, is_due, BrokerMachine.kill), _SHORT)


def _late(
    what: str, *methods: str, lateness: float = 0.5, late_us: tuple[int, int] = _LATE_US
) -> Family:
    """Calls of some methods come late, from and to all."""

    def delay(scene: Scene) -> Undo | None:
        names = [*scene.machines, *scene.clients]
        weather = Weather(lateness=lateness, late_us=late_us, late_calls=frozenset(methods))
        links = [(a, b) for a in names for b in scene.machines if a != b]
        links += [(b, a) for a, b in links if a in scene.clients]
        return scene.network.impose(links, weather)

    return Family("F18", what, delay, _SHORT)


def _cut_off(scene: Scene) -> Undo | None:
    """The coordinator is cut off from the other brokers, and not from clients."""
    coordinator = _coordinator(scene)
    if coordinator is None:
        return None
    return scene.cut([coordinator.name], scene.others(coordinator))


_SHORT: Final = (3 * SECOND, 5 * SECOND)
_PREPARED: Final = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})
_COMPLETE: Final = frozenset({State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
BEGUN: Final = _at(
    "the coordinator dies between a record of init and the answer",
    frozenset({State.EMPTY}),
    is_committed=False,
)
JOINED: Final = _at(
    "the coordinator dies before it has committed that a partition takes part",
    frozenset({State.ONGOING}),
    is_committed=False,
)
UNDECIDED: Final = _at(
    "the coordinator dies with a decision that is not committed", _PREPARED, is_committed=False
)
DECIDED: Final = _at(
    "the coordinator dies between a decision and its markers", _PREPARED, is_committed=True
)
COMPLETED: Final = _at(
    "the coordinator dies between markers and completion", _COMPLETE, is_committed=False
)
CUT_OFF: Final = Family("F14", "the coordinator is cut off from all brokers", _cut_off, _SHORT)
LATE_MARKERS: Final = _late("markers come seconds late", "WriteMarkers")
REPEATED_MARKERS: Final = _late(
    "markers come after they were told again",
    "WriteMarkers",
    lateness=0.2,
    late_us=_AFTER_KEEPALIVE_US,
)
LATE_ENDS: Final = _late("ends of transactions come seconds late", "EndTransaction")
LATE_BATCHES: Final = _late(
    "batches, and the question whether they may join, come seconds late",
    "Produce",
    "JoinTransaction",
    lateness=0.1,
)
LOST_ENDS: Final = _late(
    "ends of transactions, or their answers, come later than clients wait",
    "EndTransaction",
    lateness=0.3,
    late_us=_TOO_LATE_US,
)
LATE_COMMITS: Final = _late(
    "commits of shared transactions, or their answers, come later than clients wait",
    "EndSharedTransaction",
    lateness=0.4,
    late_us=_TOO_LATE_US,
)
LOST_BATCHES: Final = _late(
    "batches come later than their transaction may be open",
    "Produce",
    lateness=0.1,
    late_us=_TOO_LATE_US,
)


def _kills(family: Family, times: int = 5) -> list[Step]:
    return again(family, 6, 7, times, 4)


# fmt: off
TRANSACTION_SCENARIOS: Final = (
    Scenario("P10, P52", "transactions of every day", Alone, by_day=True, seeds=2, quiet_s=12,
             mutants=["a consumer hands out aborted records",
                      "a consumer skips what its producer committed before",
                      "a consumer hands out markers",
                      "a reader stays before what it passes by",
                      "readers see open transactions",
                      "nobody hears what was aborted",
                      "readers of committed records are served what is not decided",
                      "a broker names no aborted transaction",
                      "a marker does not say where its records lie",
                      "the next transaction has the epoch of the last one",
                      "epochs that have run out begin again with the same producer id",
                      "a batch opens a transaction of which its coordinator knows nothing"]),
    Scenario("P47", "producers are replaced again and again, many within a transaction", Replaced,
             by_day=True, seeds=2, quiet_s=30,
             mutants=["an open transaction goes on under the next producer of its id"]),
    Scenario("P47: inits", "coordinators die between a record of init and its answer", Replaced,
             _kills(BEGUN), seeds=2, quiet_s=25),
    Scenario("B13, P48", "ends of transactions come late, and are repeated", Alone,
             again(LATE_ENDS, 5, 12, 3, 10), by_day=True, seeds=2, quiet_s=25,
             mutants=["a late end decides the next transaction"]),
    Scenario("B12, P49", "batches and the question whether they may join come late", Alone,
             again(LATE_BATCHES, 5, 12, 3, 10), seeds=4, quiet_s=25),
    Scenario("B14, P49", "coordinators die before a partition has joined", Alone,
             _kills(JOINED), seeds=2, quiet_s=25),
    Scenario("P50, T9", "coordinators die with a decision that is not committed", Transacting,
             _kills(UNDECIDED), seeds=4, quiet_s=25),
    Scenario("T9: cuts", "coordinators are cut off from all brokers, and decide on", Alone,
             again(CUT_OFF, 6, 12, 4, 8), seeds=4, quiet_s=25),
    Scenario("P50", "coordinators die between a decision and its markers", Transacting,
             _kills(DECIDED), by_day=True, seeds=2, quiet_s=25),
    Scenario("P50, T1", "coordinators die between markers and completion", Alone,
             _kills(COMPLETED), seeds=3, quiet_s=25),
    Scenario("T1", "markers come late, while coordinators die", Alone,
             [*again(LATE_MARKERS, 5, 14, 3, 12), *again(DECIDED, 8, 14, 3, 3)], seeds=3,
             quiet_s=25),
    Scenario("T1: twice", "markers come after they were told again", Alone,
             again(REPEATED_MARKERS, 5, 30, 2, 20), seeds=3, quiet_s=25,
             mutants=["a marker ends a later transaction than its own",
                      "a marker that was not written is not told again"]),
    Scenario("T2, T12", "markers come late, and writers go on", Prompt,
             again(LATE_MARKERS, 5, 14, 3, 12), by_day=True, seeds=3, quiet_s=25,
             mutants=["an end is answered when all partitions know it",
                      "the next transaction does not wait for the last marker",
                      "a transaction is over before all partitions know it",
                      "a batch joins the transaction before its own"]),
    Scenario("T13", "many transactions are open for longer than their time-out", TimedOut,
             [(30, "F17", 1)], by_day=True, seeds=4, quiet_s=25,
             mutants=["a transaction that is open for too long stays open"]),
    Scenario("P52", "leaders die while transactions are open", Transacting,
             again("F02", 6, 7, 4, 4), seeds=3, quiet_s=25),
    Scenario("P56", "copiers come and go while brokers die", Transacting,
             again("F01", 6, 8, 4, 5), seeds=3, quiet_s=25,
             mutants=["a member gives partitions up while a transaction commits for it"]),
    Scenario("P56, T18", "copiers come and go while markers come late", Transacting,
             again(LATE_MARKERS, 5, 14, 3, 12), seeds=3, quiet_s=25,
             mutants=["members begin while positions wait for a transaction",
                      "a member does not ask for positions that are certain"]),
    Scenario("P56: ends", "ends of copies come after their time-out", Transacting,
             [(5, LOST_ENDS, 15)], seeds=3, quiet_s=20,
             mutants=["positions of a transaction count at once"]),
    Scenario("T8: late", "a topic comes back after the time of its open transactions", Returning,
             again("F74", 6, 12, 3, 6), seeds=3, quiet_s=25,
             mutants=["markers of a topic that is gone for now are lost"]),
    Scenario("T17", "ends, or their answers, come later than clients wait", InDoubt,
             again(LOST_ENDS, 5, 16, 3, 12), seeds=3, quiet_s=25,
             mutants=["a commit whose answer is lost counts as aborted",
                      "the outcome of another transaction is taken for that of the one in doubt",
                      "records of an aborted transaction go out in the next one"]),
    Scenario("T18", "copies are aborted, as batches come too late", Transacting,
             again(LOST_BATCHES, 5, 16, 3, 12), seeds=3, quiet_s=25,
             mutants=["a consumer goes on after an abort where it was"]),
    Scenario("P55", "coordinators are cut off from all brokers, and not from clients", Replaceable,
             again(CUT_OFF, 6, 7, 6, 4), seeds=4, quiet_s=25,
             mutants=["a coordinator that was replaced refuses a producer by what it knew"]),
    Scenario("T4", "brokers are restarted in order while transactions are open",
             OpenForLong, again("F47", 6, 4, 8, 2), seeds=3, quiet_s=25,
             mutants=["a snapshot forgets which transactions are open"]),
)
# fmt: on
