"""One round: a new cluster, faults one after another under load, and the judgement.

After each fault the cluster is healed, and must become whole, and take writes and reads. At the end
clients read every partition from its beginning, the brokers stop, their files are compared, and the
checkers judge the history: nothing lost, duplicated or reordered, and consistent metadata.
"""

import random
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

from tests.checkers import unreplicated
from tests.checkers.check import check
from tests.checkers.history import INFO, of_keys
from tests.checkers.report import Expectations
from tests.checkers.transactional import judge
from tests.faults.catalogue import Done, NotSeenError, Outcome
from tests.faults.cluster import Cluster, zone_of
from tests.faults.fault import FAULTS, UPGRADE, Scene
from tests.faults.history import History
from tests.faults.kafka.side import KafkaSide
from tests.faults.latest import TOPIC, Latest
from tests.faults.load import Load
from tests.faults.machine import Need
from tests.faults.members import Members
from tests.faults.metadata import ACKS_0_KEYS, ACKS_1_KEYS, PLACES, SURE_KEYS, SURE_PLACES
from tests.faults.nearby import ZONE, Nearby
from tests.faults.replicas import report_replicas
from tests.faults.transactional import KEYS, Transactional
from tests.releases.last import unpacked

_FILL_BYTES: Final = 2_500_000  # Two closed segments, and the beginning of a third.
_QUIET_WRITES: Final = 60
_AVAILABILITY_NS: Final = 20 * 10**9
"""A client gives up a silent broker after its request time-out, 10 s here."""
_REALTIME_LAG_NS: Final = 10 * 10**9
"""The lag that readers may have after healing: some start over from the beginning."""
_ALLOWANCES: Final = {"rss_bytes": 96 << 20, "fds": 64, "threads": 8}
"""What a broker may gain at rest since the cluster was first whole: a leak per failed operation
exceeds it within a round."""
_FOREVER_NS: Final = 2**62
_SEEN_SHARE_MIN: Final = 0.5
"""With less than acks=all, at least this share of the records must be there at the end."""
_MOVING: Final = 10
"""A round of at least so many faults must change a leader and an ISR."""
_ATTEMPTS: Final = 2


def play(
    plan: Sequence[str],
    *,
    seed: int,
    folder: Path,
    able: Collection[Need],
    library: Path | None,
    say: Callable[[str], None],
    deadline: float,
) -> Outcome[Done]:
    """Play a round.

    Args:
        plan: fault ids, in order.
        seed: of the dice.
        folder: for everything; it is left as it was at the end, with the history.
        say: told how far it is.
        deadline: of `time.monotonic()`, after which no fault begins.
    """
    outcome = Outcome[Done]()
    history = History(folder / "history.jsonl")
    release = unpacked(folder / "last-release") if UPGRADE in plan else None
    with history, Cluster(folder, able, library, history, release) as cluster:
        load = Load(
            cluster.bootstrap,
            history,
            seed,
            PLACES,
            zones=("", "", zone_of(ZONE)),
            newest_epoch=lambda key: cluster.look().partition(key).leader_epoch,
        )
        members = Members(folder / "members", cluster.bootstrap, SURE_PLACES)
        latest = Latest(cluster.bootstrap, seed)
        transactional = Transactional(folder / "transactions", cluster.bootstrap)
        kafka = KafkaSide(
            folder, cluster, history, seed, transactional=transactional, latest=latest
        )
        load.start()
        try:
            load.fill(_FILL_BYTES)
            load.begin()
            latest.begin()
            members.start()
            if release is None:  # Else F79 begins them: the last release knows neither.
                transactional.begin()
                kafka.begin()
            nearby = Nearby(cluster)
            dice = random.Random(seed)
            scene = Scene(cluster, load, members, dice, nearby, latest, transactional, kafka)
            history.window("open")
            load.wait_for_more(_QUIET_WRITES)
            transactional.wait_for_more()
            kafka.wait_for_more()
            nearby.look()
            _report_resources(cluster, history)
            for fault_id in plan:
                if time.monotonic() > deadline:
                    break
                _do(fault_id, scene, history, outcome, say)
            say(str(nearby))
            history.window("close")
            kafka.stop_writers()
            ends = load.read_all()
            members.wait_until_caught_up(ends)
            members.stop()
            latest.read_all()
            say(str(latest))
            transactional.read_all()
            kafka.read_all(ends)
            say(str(kafka))
            _report_resources(cluster, history)
        except Exception:
            outcome.failures.append(traceback.format_exc())
            return outcome
        finally:
            load.stop()
            latest.stop()
            members.close()
            transactional.close()
            kafka.close()
        for node in cluster.nodes:
            node.kill()
        log_dirs = {node.name: node.log_dirs[0] for node in cluster.nodes}
        report_replicas(log_dirs, cluster.view, history, ends)
        outcome.failures += latest.judge(log_dirs, cluster.view.topics[TOPIC].topic_id)
    if not nearby.is_served:
        outcome.failures.append("nothing was read from a follower in its zone")
    outcome.failures += _judge_the_unsure(history)
    outcome.failures += _judge_the_group(members, history, say)
    if kafka.is_begun:
        outcome.failures += _judge_the_group(kafka.members, history, say)
        outcome.failures += kafka.judge_copy(say)
    if transactional.is_begun:
        judged = judge(transactional.original, transactional.copied, KEYS)
        outcome.failures += judged.failures
        say(str(judged))
    outcome.report = check(
        list(of_keys(history.ops, SURE_KEYS)),
        expectations=outcome.expectations(_MOVING, send=0.9, poll=0.9, list_offsets=0.5),
        availability_ns=_AVAILABILITY_NS,
        realtime_lag_ns=_REALTIME_LAG_NS,
        allowances=_ALLOWANCES,
    )
    return outcome


def _judge_the_unsure(history: History) -> list[str]:
    """Hold what was not written with `acks=all` against what is promised of that."""
    failures: list[str] = []
    for acks, keys, outcomes in ((1, ACKS_1_KEYS, ("send", "poll")), (0, ACKS_0_KEYS, ("poll",))):
        ops = list(of_keys(history.ops, keys))
        report = check(
            ops,
            modes=("assign", "unreplicated"),
            expectations=Expectations(ok_shares=dict.fromkeys(outcomes, 0.5)),
            # With acks=0 none is ever known to have been written.
            availability_ns=_AVAILABILITY_NS if acks else _FOREVER_NS,
            realtime_lag_ns=_REALTIME_LAG_NS,
        )
        report.add(unreplicated.anomalies(ops))
        if not report.is_good:
            failures.append(f"with acks={acks}: {report.text()}")
        share = unreplicated.share_seen(ops)
        if share < _SEEN_SHARE_MIN:
            failures.append(f"with acks={acks} {share:.0%} of what was sent was read last")
    return failures


def _judge_the_group(members: Members, history: History, say: Callable[[str], None]) -> list[str]:
    """Hold what the members of the group did against what is promised to groups."""
    sends = [op for op in of_keys(history.ops, SURE_KEYS) if op.sends]
    report = members.judge(sends)
    say(f"read by the group {members.group}: {report.measures['handed_out']:.0f} records")
    return [] if report.is_good else [f"of the group {members.group}: {report.text()}"]


def _report_resources(cluster: Cluster, history: History) -> None:
    """Report every broker's resources; a restarted broker counts as another process."""
    for node in cluster.nodes:
        history.record(
            f"{node.name}.{node.pid}",
            INFO,
            "resources",
            details={
                "rss_bytes": node.rss_bytes(),
                "fds": node.descriptors_beside_logs(),
                "threads": node.threads(),
            },
        )


def _do(
    fault_id: str,
    scene: Scene,
    history: History,
    outcome: Outcome[Done],
    say: Callable[[str], None],
) -> None:
    """Break, look, heal, and see that all is well again; a fault without effect is tried twice."""
    for attempt in range(_ATTEMPTS):
        began_ns = time.monotonic_ns()
        history.window("close")
        counts = False
        try:
            seen = FAULTS[fault_id].inject(scene)
            counts = True
            history.fault(fault_id, seen)
        except NotSeenError as error:
            seen = str(error)
        except AssertionError as error:
            seen = str(error)
            outcome.failures.append(f"{fault_id}: {error}")
        scene.cluster.heal()
        if failure := scene.load.failure or scene.kafka.failure:
            raise failure
        history.window("open")
        scene.load.wait_for_all()
        scene.latest.wait_for_more()
        scene.transactional.wait_for_more()
        scene.kafka.wait_for_more()
        scene.members.wait_until_shared()
        scene.nearby.look()
        _report_resources(scene.cluster, history)
        outcome.done.append(Done(fault_id, seen, counts, began_ns))
        say(str(outcome.done[-1]))
        if counts or attempt == _ATTEMPTS - 1:
            return
