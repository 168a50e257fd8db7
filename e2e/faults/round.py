"""One round: a Cluster of its own, faults one after another under load, and the judgement.

After each fault the round waits until nodes, pods, replicas and the Cluster's conditions are whole.
At the end clients read all partitions from their beginning, and the checkers judge the history:
also that of transactions, and of their exactly-once copy.
Then the namespace is deleted with everything in it, and must end.
"""

import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from e2e.cluster.commands import CommandError
from e2e.cluster.native import NativeCluster
from e2e.faults.changes import load_topic
from e2e.faults.fault import (
    BROKERS,
    CLUSTER,
    FAULTS,
    PARTITIONS,
    POOL,
    SETTINGS,
    TOPICS,
    Scene,
)
from e2e.faults.metadata import Watcher
from e2e.installed import Namespace
from e2e.load.pod import LoadPod
from e2e.load.program import Settings
from tests.checkers.check import check
from tests.checkers.contents import Contents
from tests.checkers.history import INVOKE, OK, Op
from tests.checkers.realtime import Availability
from tests.checkers.transactional import judge
from tests.faults import catalogue
from tests.faults.catalogue import NotSeenError
from tests.faults.history import History
from tests.faults.load import Places
from tests.faults.replicas import report_replicas
from tests.faults.transactional import KEYS

NAMESPACE_DELETED: Final = "namespace-deleted"
"""The end of every round, which is a fault, too."""

_AVAILABILITY_NS: Final = 20 * 10**9
_REALTIME_LAG_NS: Final = 15 * 10**9
_FOREVER_NS: Final = 2**62
_MOVING: Final = 5
"""A round of at least so many faults must change a leader and an ISR."""


@dataclass(slots=True)
class Done(catalogue.Done):
    """One fault that was tried, and what became of the values that were written meanwhile.

    Attributes:
        acknowledged, failed: number of values in that time.
        lost, doubled: number of these acknowledged values, as the last read shows.
        longest_stall_s: the longest time that a partition took no write.
    """

    acknowledged: int = 0
    failed: int = 0
    lost: int = 0
    doubled: int = 0
    longest_stall_s: float = 0.0


@dataclass(slots=True)
class Outcome(catalogue.Outcome[Done]):
    """The result of a round."""

    history: list[Op] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The parameters of a round.

    Attributes:
        plan: names of faults, in order.
        seed: of the dice, and part of the namespace's name.
        releases: versions of two images of the product.
        deadline: of `time.monotonic()`, after which no fault begins.
        keeps: whether the namespace stays after a failure.
    """

    plan: Sequence[str]
    seed: int
    releases: Sequence[str]
    deadline: float
    keeps: bool


def play(kubernetes: NativeCluster, wish: Wish, say: Callable[[str], None]) -> Outcome:
    """Play a round, and report its progress."""
    outcome = Outcome()
    namespace = Namespace(kubernetes.kubectl, f"faults-{wish.seed}")
    namespace.create()
    try:
        _play(kubernetes, namespace, wish, say, outcome)
    except Exception:
        outcome.failures.append(traceback.format_exc())
    if outcome.is_good or not wish.keeps:
        outcome.done.append(_delete(namespace, outcome))
        say(str(outcome.done[-1]))
    return outcome


def _play(
    kubernetes: NativeCluster,
    namespace: Namespace,
    wish: Wish,
    say: Callable[[str], None],
    outcome: Outcome,
) -> None:
    places = Places(
        topics=tuple(f"{namespace.name}/{name}" for name in TOPICS), partitions=PARTITIONS
    )
    settings = Settings(
        bootstrap=f"{CLUSTER}-bootstrap.{namespace.name}.svc:7092",
        topics=places.topics,
        partitions=PARTITIONS,
        seed=wish.seed,
        transactions_in=namespace.name,
    )
    dice, releases = random.Random(wish.seed), list(wish.releases)
    home = dice.choice(kubernetes.nodes).name
    load = LoadPod(namespace, settings, node=home)
    metadata = History()
    watcher = Watcher(kubernetes, namespace.name, CLUSTER, places, metadata)
    scene = Scene(kubernetes, namespace, load, watcher, dice, home, releases)
    volume = {"name": "data", "size": "700Mi", "storageClassName": "local-ssd"}
    scene.apply(
        version=releases[0],
        config=SETTINGS,
        pools=[{"name": POOL, "replicas": BROKERS, "volumes": [volume]}],
        lostVolumes="Replace",
        volumeDeletion="Delete",
    )
    watcher.start()
    try:
        namespace.wait(f"cluster.millrace.dev/{CLUSTER}", "Ready")
        for name in TOPICS:
            namespace.make_topic(name, CLUSTER, **load_topic())
        load.start()
        scene.wait_until_whole()
        load.window("open")
        load.wait_for_all()
        try:
            for name in wish.plan:
                if time.monotonic() > wish.deadline:
                    break
                outcome.done.append(_do(name, scene, outcome))
                say(str(outcome.done[-1]))
        except (AssertionError, CommandError):  # The history so far can be judged all the same.
            outcome.failures.append(traceback.format_exc())
        history = load.finish()
        judged = judge(*load.transactions(), KEYS)
        outcome.failures += judged.failures
        say(str(judged))
        if not outcome.failures:  # Otherwise brokers may be away, and hold less than later.
            _report_replicas(scene, metadata, history)
    finally:
        watcher.stop()
    outcome.history = list(_merged(history, metadata.ops))
    _judge(outcome)


def _do(name: str, scene: Scene, outcome: Outcome) -> Done:
    """Inject the fault, observe its effect, and check that all is well again."""
    began_ns = time.monotonic_ns()
    scene.load.window("close")
    counts = False
    try:
        seen = FAULTS[name].inject(scene)
        counts = True
    except NotSeenError as error:
        seen = str(error)
    except (AssertionError, CommandError) as error:
        seen = str(error)
        outcome.failures.append(f"{name}: {error}")
    scene.wait_until_whole()
    outcome.failures += [f"{name}: {said}" for said in scene.failed_brokers()]
    if counts:
        scene.load.fault(name, seen)
    scene.load.window("open")
    scene.load.wait_for_all()
    return Done(name, seen, counts, began_ns)


def _report_replicas(scene: Scene, metadata: History, history: Sequence[Op]) -> None:
    """Add each replica's files to the history, while no broker moves."""
    ends = {key: read.highest + 1 for key, read in Contents(history).final.items()}
    names = sorted(scene.pods())
    log_dirs = {}
    for name in names:
        node, path = scene.kubernetes.volume_of(f"data-{name}", scene.namespace.name)
        log_dirs[name] = node.machine.root.joinpath(path.lstrip("/"), "log")
    try:
        for name in names:
            scene.signal(name, "SIGSTOP")
        report_replicas(log_dirs, scene.view, metadata, ends)
        found = sum(op.f == "replica" for op in metadata.ops)
        wanted = sum(len(state.replicas) for _, state in scene.view.partitions())
        assert found == wanted, f"{found} of {wanted} replicas were found on volumes"
    finally:
        for name in names:
            scene.signal(name, "SIGCONT")


def _delete(namespace: Namespace, outcome: Outcome) -> Done:
    began_ns = time.monotonic_ns()
    counts, seen = True, "it ended with everything in it"
    try:
        namespace.delete()
    except CommandError as error:
        counts, seen = False, str(error)
        outcome.failures.append(f"{NAMESPACE_DELETED}: {error}")
    return Done(NAMESPACE_DELETED, seen, counts, began_ns)


def _merged(*histories: Sequence[Op]) -> Iterator[Op]:
    """Yield the operations of several histories with the same clock, with new numbers from 0."""
    ops = sorted((op for history in histories for op in history), key=lambda op: op.at_ns)
    for index, op in enumerate(ops):
        yield replace(op, index=index)


def _judge(outcome: Outcome) -> None:
    outcome.report = check(
        outcome.history,
        expectations=outcome.expectations(_MOVING, send=0.9, poll=0.9),
        availability_ns=_AVAILABILITY_NS,
        realtime_lag_ns=_REALTIME_LAG_NS,
    )
    times = _times_read(outcome.history)
    for done in outcome.done:
        ops = [op for op in outcome.history if done.began_ns <= op.at_ns <= done.ended_ns]
        sends = [(op.type, send) for op in ops if op.f == "send" for send in op.sends]
        kept = [(send.key, send.value) for kind, send in sends if kind == OK]
        done.acknowledged = len(kept)
        done.failed = sum(kind not in (OK, INVOKE) for kind, _ in sends)
        done.lost = sum(times[record] == 0 for record in kept)
        done.doubled = sum(times[record] > 1 for record in kept)
        opened = Op(done.began_ns, "nemesis", "info", "window", details="open")
        calm = (op for op in ops if op.f != "window")
        done.longest_stall_s = Availability([opened, *calm], _FOREVER_NS).longest_ns / 1e9


def _times_read(history: Sequence[Op]) -> Mapping[tuple[int, int], int]:
    """How often each value of each key is in its log, as the last read shows."""
    contents = Contents(history)
    return Counter(
        (key, value)
        for key, values in contents.known.values.items()
        for offset, value in values.items()
        if key in contents.final and offset in contents.final[key]
    )
