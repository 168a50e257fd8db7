"""The analyses that Jepsen's workload for Kafka makes of transactions (jepsen.tests.kafka).

Each has a history that it must refuse, and one that comes near and is right.
"""

from collections.abc import Callable, Mapping, Sequence

import pytest
from tests.checkers.history import FAIL, INVOKE, OK, UNCOMMITTED, Send
from tests.fakes.transactional_histories import Transactional

Analysis = Callable[[Transactional, bool], None]
Reads = Mapping[int, Sequence[tuple[int, int]]]

ANALYSES: dict[str, tuple[Analysis, str]] = {}
"""By name: what writes the history, right or spoilt, and the anomaly."""


def analysis(name: str, anomaly: str) -> Callable[[Analysis], Analysis]:
    def register(write: Analysis) -> Analysis:
        ANALYSES[name] = write, anomaly
        return write

    return register


def seen(*sends: Send) -> list[tuple[int, int]]:
    """Return what a reader gets of these records."""
    return [(send.offset, send.value) for send in sends if send.offset is not None]


@pytest.mark.parametrize("name", ANALYSES)
def test_it_accepts_what_is_right(name: str) -> None:
    cluster = Transactional()
    ANALYSES[name][0](cluster, True)
    report = cluster.judge()
    assert report.is_good, report.text()


@pytest.mark.parametrize("name", ANALYSES)
def test_it_refuses_what_is_not(name: str) -> None:
    write, anomaly = ANALYSES[name]
    cluster = Transactional()
    write(cluster, False)
    report = cluster.judge()
    assert anomaly in report.failures, report.text()


def test_it_allows_cycles_of_writes_and_records_that_were_not_read() -> None:
    """Transactions that overlap stand in different orders, and one sees a part of another: they are
    neither locks nor snapshots."""
    cluster = Transactional()
    one, two = cluster.begin("a#1", 0), cluster.begin("b#1", 0, 1)
    one += cluster.begin("a#1", 1)
    ends_with_reads(cluster, {"a#1": (one, {}), "b#1": (two, {})})
    cluster.end("c#1", cluster.begin("c#1", 2), reads={0: seen(*one[:1])})
    report = cluster.judge()
    assert report.is_good, report.text()


@analysis("aborted read", "aborted-read")
def reads_what_may_be_aborted(cluster: Transactional, is_right: bool) -> None:
    sends = cluster.begin("a#1", 0)
    cluster.show("open", [{0: cluster.records(0)}], f=UNCOMMITTED)
    cluster.end("a#1", sends, OK if is_right else FAIL)
    cluster.poll("r", 0)


@analysis("divergent value at an offset", "inconsistent-offset")
def two_readers_of_one_offset(cluster: Transactional, is_right: bool) -> None:
    [one], [other] = cluster.write("a#1", 0), cluster.write("b#1", 1)
    cluster.show("r1", [{0: seen(one)}])
    cluster.show("r2", [{0: seen(one if is_right else one._replace(value=other.value))}])


@analysis("lost write below the highest read", "lost-write")
def reads_beyond_a_commit(cluster: Transactional, is_right: bool) -> None:
    sends = cluster.write("a#1", 0)
    if not is_right:
        cluster.hide(sends)
    cluster.write("b#1", 0)
    cluster.poll("r", 0)


def ends_with_reads(
    cluster: Transactional, ends: Mapping[str, tuple[Sequence[Send], Reads]]
) -> None:
    """Ask for the commits of transactions, and then tell that all of them are committed."""
    for process in ends:
        cluster.record(process, INVOKE, "end", details="commit")
    for process, (sends, reads) in ends.items():
        cluster.record(process, OK, "txn", sends=sends, polled=[reads] if reads else [])


@analysis("cycle of writes and reads (wr)", "circular-reads")
def read_from_each_other(cluster: Transactional, is_right: bool) -> None:
    one, two = cluster.begin("a#1", 0), cluster.begin("b#1", 1)
    other: Reads = {} if is_right else {0: seen(*one)}
    ends_with_reads(cluster, {"a#1": (one, {1: seen(*two)}), "b#1": (two, other)})


@analysis("cycle of writes and reads (ww, wr)", "circular-reads")
def reads_what_follows_its_own(cluster: Transactional, is_right: bool) -> None:
    """A transaction that is open in a partition holds its own reads there back, too."""
    other = cluster.begin("b#1", 0) if is_right else []
    one = cluster.begin("a#1", 0)
    other = other or cluster.begin("b#1", 0)
    ends_with_reads(cluster, {"b#1": (other, {}), "a#1": (one, {0: seen(*other)})})


@analysis("cycle of writes and reads (ww over a third one)", "circular-reads")
def reads_what_follows_one_that_was_open(cluster: Transactional, is_right: bool) -> None:
    """`b` has read beyond the beginning of `a` in key 0, so `a` was decided; it has read `b`."""
    one = cluster.begin("a#1", 0)
    third = cluster.write("c#1", 0)
    two = cluster.begin("b#1", 1)
    reads: Reads = {} if is_right else {0: seen(*third)}
    ends_with_reads(cluster, {"a#1": (one, {1: seen(*two)}), "b#1": (two, reads)})


@analysis("internal contiguity of reads: jumps", "int-poll-skip")
def reads_on_within_a_transaction(cluster: Transactional, is_right: bool) -> None:
    cluster.write("a#1", 0)
    cluster.abort("a#2", 0)
    if not is_right:
        cluster.write("a#3", 0)
        cluster.poll("r", 0)
    cluster.write("b#1", 0)
    records = cluster.records(0)
    sends = cluster.begin("c#1", 1)
    cluster.end("c#1", sends, reads={0: [records[0], records[-1]]})


@analysis("internal contiguity of reads: order", "int-nonmonotonic-poll")
def reads_back_within_a_transaction(cluster: Transactional, is_right: bool) -> None:
    first, second = cluster.write("a#1", 0), cluster.write("a#2", 0)
    sends = cluster.begin("c#1", 1)
    reads = seen(*first, *second) if is_right else seen(*second, *first)
    cluster.end("c#1", sends, reads={0: reads})


@analysis("internal contiguity of writes", "int-nonmonotonic-send")
def writes_within_a_transaction(cluster: Transactional, is_right: bool) -> None:
    """Others may write in between."""
    sends = cluster.begin("a#1", 0)
    other = cluster.begin("b#1", 0)
    sends = sends + cluster.begin("a#1", 0)
    cluster.end("a#1", sends if is_right else sends[::-1])
    cluster.end("b#1", other)


@analysis("intermediate read", "torn-transaction")
def reads_a_part_and_passes_by(cluster: Transactional, is_right: bool) -> None:
    before = cluster.write("b#1", 1)
    both = cluster.write("a#1", 0, 1)
    after = cluster.write("b#2", 1)
    passed = both[1:] if is_right else after
    cluster.show("r", [{0: seen(both[0])}, {1: seen(*before, *passed)}])


@analysis("precommitted read", "precommitted-read")
def reads_before_the_commit(cluster: Transactional, is_right: bool) -> None:
    sends = cluster.begin("a#1", 0)
    if is_right:
        cluster.end("a#1", sends)
        cluster.poll("r", 0)
    else:
        cluster.poll("r", 0)
        cluster.end("a#1", sends)


@analysis("precommitted read of its own", "precommitted-read")
def reads_its_own(cluster: Transactional, is_right: bool) -> None:
    before = cluster.write("a#1", 0)
    sends = cluster.begin("a#2", 0)
    cluster.end("a#2", sends, reads={0: seen(*(before if is_right else sends))})
