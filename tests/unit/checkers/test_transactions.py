"""Histories of transactions that the checkers must accept, and ones that they must refuse."""

from collections.abc import Mapping, Sequence

import pytest
from tests.checkers.copies import check_copy
from tests.checkers.history import FAIL, INFO, INVOKE, OK, UNCOMMITTED, Op, Send
from tests.checkers.transactions import strong_components
from tests.fakes.histories import PerfectCluster
from tests.fakes.transactional_histories import Transactional


def test_committed_transactions_are_seen_and_aborted_ones_are_not() -> None:
    cluster = Transactional()
    cluster.run(50)
    for number in range(5):
        cluster.write(f"a#{number}", 0, 1, 1)
        cluster.abort(f"b#{number}", 0, 2)
        cluster.poll("r", 0)
        cluster.poll("r", 1)
    report = cluster.judge()
    assert report.is_good, report.text()


COMMIT_NS = 5 * 10**9


def test_a_healthy_client_has_its_transactions_committed_in_time() -> None:
    cluster = Transactional()
    cluster.abort("a#1", 0)  # It wished that.
    sends = cluster.begin("a#2", 0, 1)
    cluster.now_ns += 4 * 10**9
    cluster.end("a#2", sends)
    report = cluster.judge(commit_ns=COMMIT_NS)
    assert report.is_good, report.text()
    assert report.measures["timed_transactions"] == 1
    assert 4 <= report.measures["longest_transaction_s"] < 4.1


def test_a_transaction_that_takes_too_long_is_found_also_when_it_does_not_end() -> None:
    cluster = Transactional()
    sends = cluster.begin("a#1", 0)
    cluster.record("a#1", INVOKE, "end", details="commit")
    cluster.now_ns += 6 * 10**9
    cluster.record("nemesis", INFO, "window", details="close")
    cluster.record("a#1", OK, "txn", sends=sends)
    assert cluster.judge(commit_ns=COMMIT_NS).failures == ["slow-transaction"]


@pytest.mark.parametrize("outcome", [FAIL, INFO])
def test_a_commit_that_does_not_succeed_while_all_should_be_well_is_found(outcome: str) -> None:
    cluster = Transactional()
    sends = cluster.begin("a#1", 0)
    cluster.record("a#1", INVOKE, "end", details="commit")
    cluster.record("a#1", outcome, "txn", sends=sends)
    cluster.hide(sends)
    assert cluster.judge(commit_ns=COMMIT_NS).failures == ["lost-transaction"]


def test_what_faults_do_to_transactions_is_no_fault_of_the_brokers() -> None:
    cluster = Transactional()
    cluster.record("nemesis", INFO, "window", details="close")
    for name, outcome in (("a#1", FAIL), ("b#1", INFO)):
        sends = cluster.begin(name, 0)
        cluster.record(name, INVOKE, "end", details="commit")
        cluster.now_ns += 6 * 10**9
        if name == "b#1":
            cluster.record("nemesis", INFO, "window", details="open")
        cluster.record(name, outcome, "txn", sends=sends)
        cluster.hide(sends)
    assert cluster.judge(commit_ns=COMMIT_NS).is_good


def test_readers_of_all_records_see_open_and_aborted_ones() -> None:
    cluster = Transactional()
    sends = cluster.begin("a#1", 0, 1)
    cluster.write("b#1", 0)
    for key in (0, 1):
        cluster.show("open", [{key: cluster.records(key)}], f=UNCOMMITTED)
    cluster.end("a#1", sends, FAIL)
    cluster.hide(sends)
    cluster.write("b#2", 0)
    cluster.poll("r", 0)  # It passes by what the other one saw.
    report = cluster.judge()
    assert report.is_good, report.text()


def test_readers_of_both_kinds_see_the_same_value_at_an_offset() -> None:
    cluster = Transactional()
    cluster.write("a#1", 0)
    value = cluster.new_value()
    cluster.record("gone", INVOKE, "send", sends=[Send(0, value)])
    cluster.show("open", [{0: [(0, value)]}], f=UNCOMMITTED)
    assert cluster.judge().failures == ["inconsistent-offset"]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_transaction_in_doubt_is_there_as_a_whole_or_not_at_all(is_there: bool) -> None:
    cluster = Transactional()
    sends = cluster.begin("a#1", 0, 1)
    cluster.end("a#1", sends, INFO)
    if not is_there:
        cluster.hide(sends)
    cluster.write("b#1", 0, 1)
    assert cluster.judge().is_good


def test_a_half_of_a_transaction_in_doubt_is_none() -> None:
    cluster = Transactional()
    sends = [Send(0, cluster.new_value()), Send(1, cluster.new_value())]
    cluster.record("a#1", INVOKE, "txn", sends=sends)
    cluster.logs[0] += [sends[0].value, None]
    cluster.record("a#1", INVOKE, "end", details="commit")
    cluster.record("a#1", INFO, "txn", sends=sends)
    assert cluster.judge().failures == ["unseen"]


def test_a_key_does_not_wait_for_a_transaction_that_its_writer_gave_up() -> None:
    cluster = Transactional()
    sends = cluster.begin("a#1", 0)
    cluster.hide(sends)
    cluster.now_ns += 20 * 10**9
    cluster.end("a#1", sends, FAIL)
    cluster.now_ns += 20 * 10**9
    cluster.write("a#2", 0)
    assert cluster.judge().is_good


def test_a_key_waits_for_a_transaction_that_was_begun() -> None:
    cluster = Transactional()
    sends = cluster.begin("a#1", 0)
    cluster.begin("a#2", 0)
    cluster.now_ns += 40 * 10**9
    cluster.end("a#1", sends)
    assert "unavailable" in cluster.judge().failures


def test_an_intermediate_state_is_no_state() -> None:
    cluster = Transactional()
    before = cluster.write("b#1", 1)
    cluster.write("a#1", 0, 1)
    after = cluster.write("b#2", 1)
    seen = [(send.offset, send.value) for send in (*before, *after) if send.offset is not None]
    cluster.show("r", [{0: cluster.records(0)}, {1: seen}])
    assert "torn-transaction" in cluster.judge().failures


def test_what_nobody_had_asked_to_commit_is_not_read() -> None:
    cluster = Transactional()
    sends = cluster.begin("a#1", 0)
    cluster.poll("r", 0)
    cluster.end("a#1", sends)
    assert cluster.judge().failures == ["precommitted-read"]


def test_what_was_aborted_is_not_read() -> None:
    cluster = Transactional()
    sends = cluster.begin("a#1", 0, 1)
    cluster.end("a#1", sends, FAIL)
    cluster.hide(sends[1:])
    assert cluster.judge().failures == ["aborted-read"]


def test_the_producer_that_was_replaced_writes_nothing_after_its_successor() -> None:
    cluster = Transactional()
    cluster.record("a#1", INVOKE, "txn", sends=[old := Send(0, cluster.new_value())])
    cluster.write("a#2", 0)
    cluster.logs[0].append(old.value)
    cluster.show("open", [{0: cluster.records(0)}], f=UNCOMMITTED)
    cluster.record("a#1", FAIL, "txn", sends=[old])
    cluster.logs[0].pop()
    assert cluster.judge().failures == ["overlapping-transactions"]


def transaction_that_reads(
    cluster: Transactional, process: str, reads: Mapping[int, Sequence[tuple[int, int]]], key: int
) -> Op:
    """Commit a transaction that has read, and writes a record."""
    [send] = cluster.begin(process, key)
    cluster.record(process, INVOKE, "end", details="commit")
    return cluster.record(process, OK, "txn", sends=[send], polled=[reads])


@pytest.mark.parametrize("is_circle", [True, False])
def test_transactions_do_not_read_from_each_other(is_circle: bool) -> None:
    cluster = Transactional()
    [one], [two] = cluster.begin("a#1", 0), cluster.begin("b#1", 1)
    for process in ("a#1", "b#1"):
        cluster.record(process, INVOKE, "end", details="commit")
    assert one.offset is not None
    assert two.offset is not None
    cluster.record("a#1", OK, "txn", sends=[one], polled=[{1: [(two.offset, two.value)]}])
    polled = [{0: [(one.offset, one.value)]}] if is_circle else []
    cluster.record("b#1", OK, "txn", sends=[two], polled=polled)
    assert cluster.judge().failures == (["circular-reads"] if is_circle else [])


def test_a_chain_of_reads_is_no_circle() -> None:
    cluster = Transactional()
    cluster.write("a#1", 0)
    transaction_that_reads(cluster, "b#1", {0: cluster.records(0)}, 1)
    transaction_that_reads(cluster, "c#1", {1: cluster.records(1)}, 2)
    assert cluster.judge().is_good


def test_circles_are_found_in_any_graph() -> None:
    graph = {"a": "bc", "b": "c", "c": "d", "d": "b", "e": "a", "f": "f"}
    found = strong_components(graph)
    assert sorted(found) == [["a"], ["b", "c", "d"], ["e"], ["f"]]


VALUES = [(0, 10), (1, 11), (3, 12), (4, 13)]


@pytest.mark.parametrize(
    ("copied", "failures"),
    [
        ([], []),
        ([10, 11], []),
        ([10, 11, 12, 13], []),
        ([10, 11, 11, 12], ["copied-twice"]),
        ([10, 12, 13], ["not-copied"]),
        ([11], ["not-copied"]),
        ([10, 11, 99], ["copied-nothing"]),
        ([10, 12, 11], ["copied-late", "not-copied"]),
    ],
)
def test_a_copy_is_a_beginning_of_its_original(copied: list[int], failures: list[str]) -> None:
    original, copy = PerfectCluster(keys=1), PerfectCluster(keys=1)
    original.show("final", [{0: VALUES}], f="final")
    copy.show("final", [{0: [(2 * at, value) for at, value in enumerate(copied)]}], f="final")
    assert check_copy(original.ops, copy.ops, [0], [0]).failures == failures


def test_an_offset_of_a_copy_has_one_value() -> None:
    original, copy = PerfectCluster(keys=1), PerfectCluster(keys=1)
    original.show("final", [{0: VALUES}], f="final")
    copy.show("open", [{0: [(0, 12)]}], f=UNCOMMITTED)
    copy.show("final", [{0: [(0, 10)]}], f="final")
    assert check_copy(original.ops, copy.ops, [0], [0]).failures == ["inconsistent-offset"]
