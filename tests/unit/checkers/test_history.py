"""The format of histories, and how little of them is written."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.checkers.check import check
from tests.checkers.coverage import Coverage
from tests.checkers.history import (
    INFO,
    INVOKE,
    OK,
    Op,
    Recorder,
    Run,
    Seen,
    Send,
    from_json,
    read,
    to_json,
)
from tests.checkers.report import Expectations
from tests.fakes.histories import PerfectCluster


def test_the_lines_are_those_of_the_format() -> None:
    lines: list[str] = []
    recorder = Recorder(lines.append)
    recorder.record(Op(10, "c1", INVOKE, "send", sends=[Send(0, 7)]))
    recorder.record(Op(20, "c1", OK, "send", sends=[Send(0, 7, 4)]))
    recorder.record(Op(30, "c2", INVOKE, "poll", polls=[{}]))
    recorder.record(Op(40, "c2", OK, "poll", rebalanced=(1,)), [{0: [(4, 7), (5, 8)], 1: []}])
    recorder.record(Op(50, "c1", INFO, "send", sends=[Send(0, 9)], error="timed out"))
    recorder.record(Op(60, "c2", OK, "seek", details={0: 4}))
    recorder.record(Op(70, "c2", OK, "poll", ends={0: 9}), [{0: [(4, 7)]}])
    assert lines == [
        '{"i":0,"t":10,"p":"c1","type":"invoke","f":"send","v":[["s",0,7]]}',
        '{"i":1,"t":20,"p":"c1","type":"ok","f":"send","v":[["s",0,[4,7]]]}',
        '{"i":2,"t":30,"p":"c2","type":"invoke","f":"poll","v":[["p"]]}',
        '{"i":3,"t":40,"p":"c2","type":"ok","f":"poll",'
        '"v":[["p",{"0":[["r",4,4],[5,8]],"1":[]}]],"rebal":[1]}',
        '{"i":4,"t":50,"p":"c1","type":"info","f":"send","v":[["s",0,9]],"err":"timed out"}',
        '{"i":5,"t":60,"p":"c2","type":"ok","f":"seek","v":{"0":4}}',
        '{"i":6,"t":70,"p":"c2","type":"ok","f":"poll","v":[["p",{"0":[["r",4,4]]}]],'
        '"ends":{"0":9}}',
    ]
    assert [from_json(line) for line in lines] == recorder.ops


def test_what_is_read_again_is_a_run() -> None:
    recorder = Recorder()
    recorder.record(Op(1, "c1", OK, "poll"), [{0: [(o, 100 + o) for o in range(5)]}])
    again = recorder.record(
        Op(2, "c2", OK, "poll"), [{0: [(1, 101), (2, 102), (4, 104), (5, 105), (3, 99)]}]
    )
    assert again.polls == ({0: [Run(1, 2), Run(4, 4), Seen(5, 105), Seen(3, 99)]},)
    last = recorder.record(Op(3, "c2", OK, "poll"), [{0: [(o, 100 + o) for o in range(6)]}])
    assert last.polls == ({0: [Run(0, 5)]},)


@pytest.mark.parametrize("seed", range(5))
def test_a_history_read_from_its_lines_is_the_same(seed: int) -> None:
    cluster = PerfectCluster(seed)
    cluster.run(300)
    ops = cluster.finish()
    assert list(read(map(to_json, ops))) == ops


@pytest.mark.parametrize("is_good", [True, False])
def test_a_file_is_judged_by_a_command(is_good: bool, tmp_path: Path) -> None:
    cluster = PerfectCluster()
    cluster.run(200)
    if not is_good:
        cluster.logs[0].pop()
    path = tmp_path / "history.jsonl"
    path.write_text("".join(f"{to_json(op)}\n" for op in cluster.finish()))
    done = subprocess.run(
        [sys.executable, "-m", "tests.checkers", path],
        cwd=Path(__file__).resolve().parents[3],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (not is_good), done.stderr
    assert done.stdout.splitlines()[-1] == ("good" if is_good else "NOT GOOD: unseen")


def test_a_hundred_thousand_operations_are_checked_in_less_than_ten_seconds() -> None:
    cluster = PerfectCluster(keys=8, processes=16)
    cluster.run(165_000)
    ops = cluster.finish()
    assert len(ops) > 200_000  # Every operation has two lines.
    began = time.process_time()
    report = check(ops)
    assert time.process_time() - began < 10
    assert report.is_good, report.text()


def test_what_was_expected_and_did_not_happen_is_said() -> None:
    cluster = PerfectCluster(keys=1)
    cluster.send("s", 0)
    report = check(
        cluster.ops,
        expectations=Expectations(
            ok_shares={"send": 0.5, "poll": 0.1},
            faults={"F02": 1},
            leader_changes=1,
            isr_changes=2,
        ),
    )
    assert not report.failures
    assert not report.is_good
    assert report.missing == [
        "10% of poll go well, but 0 of 0 did",
        "F02 fires 1 times, but it did 0",
        "1 leader changes, but there were 0",
        "2 ISR changes, but there were 0",
        "key 0 is read to its end last, but it was not",
    ]


def test_what_was_expected_and_happened_counts() -> None:
    cluster = PerfectCluster(keys=1)
    cluster.run(100)
    cluster.record("nemesis", INFO, "fault", details=["F02", "broker-1"])
    cluster.metadata(0, 2, leader=2, leader_epoch=2, isr=(2, 3))
    cluster.metadata(0, 3, leader=2, leader_epoch=2, isr=(2, 3, 1))
    report = check(
        cluster.finish(),
        expectations=Expectations(faults={"F02": 1}, leader_changes=1, isr_changes=2),
    )
    assert report.is_good, report.text()


def test_changes_count_by_who_saw_most_of_them() -> None:
    cluster = PerfectCluster(keys=1)
    for observer, versions in (("watcher", (1, 2, 3)), ("late", (1, 3))):
        for version in versions:
            cluster.metadata(0, version, observer=observer, leader=version, leader_epoch=version)
    assert check(cluster.ops).measures["leader_changes"] == 2


def test_a_group_may_go_back_and_jump_and_an_assigned_reader_may_not() -> None:
    cluster = PerfectCluster(keys=1)
    cluster.run(200)
    records = cluster.records(0)
    cluster.show("r", [{0: records[:2]}])
    cluster.show("r", [{0: records[:1]}])
    cluster.show("r", [{0: records[4:5]}])
    ops = cluster.finish()
    assert check(ops).failures == ["nonmonotonic-poll", "poll-skip"]
    assert check(ops, modes=("assign", "subscribe")).is_good


def test_positions_are_forgotten_with_an_assignment_or_a_seek() -> None:
    cluster = PerfectCluster(keys=2)
    cluster.run(200)
    for forget in ("assign", "seek"):
        cluster.show("r", [{0: cluster.records(0)[4:6], 1: cluster.records(1)[4:6]}])
        details: object = [1] if forget == "assign" else {0: 0}
        cluster.record("r", OK, forget, details=details)
        cluster.show("r", [{0: cluster.records(0)[:2]}])
        cluster.record("r", OK, "seek", details={0: 0, 1: 0})
    assert check(cluster.finish()).is_good


def test_records_deleted_in_order_are_not_missed() -> None:
    cluster = PerfectCluster(keys=1)
    sends = [cluster.send("s", 0)[0] for _ in range(10)]
    cluster.logs[0][:4] = [None] * 4
    ops = cluster.finish()
    expectations = Expectations(ok_shares={})
    assert check(ops, expectations=expectations).failures == ["lost-write"]
    assert check(ops, log_starts={0: 4}, expectations=expectations).is_good
    assert sends[4].offset == 4


def test_a_coverage_holds_what_was_added_in_any_order() -> None:
    coverage = Coverage()
    for first, last in ((10, 12), (1, 2), (4, 4), (3, 3), (20, 30), (11, 25)):
        coverage.add(first, last)
    assert (coverage.firsts, coverage.lasts) == ([1, 10], [4, 30])
    assert [offset for offset in range(40) if offset in coverage] == [*range(1, 5), *range(10, 31)]
    assert coverage.highest == 30
    assert not coverage.has_between(4, 10)
    assert coverage.has_between(3, 10)
    assert coverage.has_between(4, 11)
    assert not coverage.has_between(30, 99)
