"""What a reader of committed records gets, beside a log that is looked through record by record."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.reading_program import BROKER, OTHER, WINDOW, ReadingProgram
from tests.fakes.transaction_log import TransactionLog

from millrace.core.client.consumer.sessions import FetchedPartition
from millrace.core.ids import (
    LeaderEpoch,
    MonotonicMs,
    Offset,
    ProducerId,
    TopicId,
    TopicPartition,
)
from millrace.core.records.compression import CODEC_NAMES
from millrace.core.records.markers import AbortedTransaction

PLACE = TopicPartition(TopicId(b"t" * 16), 0)

PRODUCERS = st.integers(1, 3)
WRITES = st.one_of(
    st.tuples(
        st.just("append"), st.none() | PRODUCERS, st.integers(1, 4), st.sampled_from(CODEC_NAMES)
    ),
    st.tuples(st.just("end"), st.sets(PRODUCERS, min_size=1), st.booleans()),
    st.tuples(st.just("elect")),
)


def write(log: TransactionLog, kind: str, *what: Any) -> None:
    if kind == "append":
        producer_id, count, codec = what
        values = [b"%d" % (log.end_offset + number) for number in range(count)]
        log.append(values, producer_id, codec=codec)
    elif kind == "end":
        log.end(sorted(what[0]), is_committed=what[1])
    else:
        log.leader_epoch = LeaderEpoch(log.leader_epoch + 1)


READS = st.one_of(
    st.tuples(st.just("answer"), st.integers(1, 4), st.integers(0, 6)),
    st.tuples(st.just("take"), st.integers(1, 3)),
    st.tuples(st.just("other")),
    st.tuples(st.just("lose")),
    st.tuples(st.just("step")),
)


def read(program: ReadingProgram, other: TransactionLog, kind: str, *what: Any) -> None:
    match kind:
        case "answer":
            program.answer(what[0], early=what[1])
        case "take":
            program.take(what[0])
        case "other":
            offset = other.end_offset
            other.append([b"x"])
            program.other_comes(offset, other.read(offset, offset + 1, 1)[0])
        case "lose":
            program.lose_connection()
        case _:
            program.step()


@settings(max_examples=300, deadline=None)
@given(
    before=st.lists(WRITES, min_size=5, max_size=30),
    meanwhile=st.lists(WRITES | READS, min_size=10, max_size=60),
    start=st.integers(0, 20),
    read_committed=st.booleans(),
)
def test_a_reader_sees_what_is_committed_in_order_at_any_boundaries(
    before: list[Any], meanwhile: list[Any], start: int, read_committed: bool
) -> None:
    log, other = TransactionLog(PLACE), TransactionLog(OTHER)
    for what in before:
        write(log, *what)
    start = min(start, log.end_offset)
    program = ReadingProgram(log, start, read_committed=read_committed)
    for what in meanwhile:
        if what[0] in ("append", "end", "elect"):
            write(log, *what)
        else:
            read(program, other, *what)
        seen = log.seen(start, read_committed=read_committed)
        assert program.seen == seen[: len(program.seen)]
    program.read_all()
    program.take()
    assert program.seen == log.seen(start, read_committed=read_committed)
    assert program.position == max(start, program.end_offset), "no marker is left to wait for"
    assert not program.fetcher.has_news
    program.step()
    assert program.credit == WINDOW, "what is passed gives its credit back"


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_records_of_an_aborted_transaction_are_not_handed_out_however_compressed(
    codec: str,
) -> None:
    log = TransactionLog(PLACE)
    log.append([b"kept"] * 50, 1, codec=codec)
    log.append([b"aborted"] * 50, 2, codec=codec)
    log.end([2], is_committed=False)
    log.end([1], is_committed=True)
    program = ReadingProgram(log)
    program.read_all()
    assert program.seen == [(offset, b"kept") for offset in range(50)]


def test_a_producers_later_transaction_and_its_other_batches_are_read() -> None:
    log = TransactionLog(PLACE)
    log.append([b"a"], 1)
    log.end([1], is_committed=False)
    log.append([b"b"], 1, is_transactional=False)
    log.append([b"c"], 1)
    log.end([1], is_committed=True)
    program = ReadingProgram(log)
    program.read_all()
    assert program.seen == [(2, b"b"), (3, b"c")]


def test_a_producers_earlier_transaction_is_read() -> None:
    log = TransactionLog(PLACE)
    log.append([b"a"], 1)
    log.end([1], is_committed=True)
    log.append([b"b"], 1)
    log.end([1], is_committed=False)
    program = ReadingProgram(log)
    assert program.answer(10)
    program.take()
    assert program.seen == [(0, b"a")]


def test_a_batch_of_no_transaction_is_read_though_an_aborted_one_surrounds_it() -> None:
    log = TransactionLog(PLACE)
    log.append([b"a"], 1)
    log.append([b"b"])
    log.append([b"c"], 1)
    log.end([1], is_committed=False)
    program = ReadingProgram(log)
    program.read_all()
    assert program.seen == [(1, b"b")]
    assert program.position == 4


def untold(log: TransactionLog) -> None:
    """Let a log name no aborted transactions from now on."""
    log.aborted = lambda *_: []  # type: ignore[method-assign]


@pytest.mark.parametrize("batches", [0, 1])
def test_aborted_transactions_are_known_from_an_earlier_response(batches: int) -> None:
    log = TransactionLog(PLACE)
    for value in (b"a", b"b", b"c"):
        log.append([value], 1)
    log.end([1], is_committed=False)
    log.append([b"d"])
    program = ReadingProgram(log)
    if batches:
        assert program.answer(batches)
    else:
        end = log.end_offset
        news = FetchedPartition(program.handles[PLACE], b"", end, end, Offset(0), Offset(0))
        news.aborted = log.aborted(0, 1)
        program.fetcher.on_fetched(BROKER, [news], MonotonicMs(1))
    untold(log)
    program.read_all()
    assert program.seen == [(4, b"d")]


def test_a_long_aborted_transaction_is_known_once_and_only_as_long_as_the_partition_is_read() -> (
    None
):
    log = TransactionLog(PLACE)
    for _ in range(100):
        log.append([b"a"], 1)
    log.end([1], is_committed=False)
    program = ReadingProgram(log)
    for _ in range(50):
        assert program.answer(1)
        (known,) = program.fetcher._sessions._aborted.values()
        assert len(known) == 1
    program.fetcher.seek(PLACE, Offset(0))
    assert program.fetcher._sessions._aborted == {}


def test_aborted_transactions_are_forgotten_once_they_are_behind() -> None:
    log = TransactionLog(PLACE)
    for _ in range(100):
        log.append([b"a"], 1)
        log.end([1], is_committed=False)
    program = ReadingProgram(log)
    program.read_all()
    assert program.seen == []
    assert program.position == 200
    assert program.fetcher._sessions._aborted == {}


def test_the_position_moves_over_a_tail_without_records_and_nothing_is_told() -> None:
    log = TransactionLog(PLACE)
    log.append([b"a"], 1)
    log.end([1], is_committed=True)
    log.append([b"b"], 2)
    log.end([2], is_committed=False)
    program = ReadingProgram(log)
    assert program.answer(1)
    program.take()
    assert program.position == 1
    assert program.answer(10)
    assert not program.fetcher.has_news, "a poll is not woken in vain"
    assert program.position == log.end_offset == program.fetcher.partition(PLACE).known_end


def test_the_position_waits_for_the_records_before_what_is_passed() -> None:
    log = TransactionLog(PLACE)
    log.append([b"a"], 1)
    log.end([1], is_committed=True)
    program = ReadingProgram(log)
    assert program.answer(10)
    assert program.position == 0, "nothing was handed out yet"
    program.take(1)
    assert program.position == 2


def test_a_tail_without_records_before_the_end_that_was_named_is_told() -> None:
    log = TransactionLog(PLACE)
    log.append([b"a"])
    log.append([b"b"], 2)
    log.end([2], is_committed=False)
    program = ReadingProgram(log, end=Offset(3))
    assert program.answer(1)
    program.take()
    told = [program.fetcher.has_news]
    assert program.answer(10)
    told.append(program.fetcher.has_news)
    assert told == [False, True]
    assert [program.fetcher.untold.take_end() for _ in range(2)] == [True, False]


def test_a_reader_of_committed_records_ends_before_an_open_transaction() -> None:
    log = TransactionLog(PLACE)
    log.append([b"a"])
    log.append([b"b"], 2)
    ends = {}
    for read_committed in (True, False):
        program = ReadingProgram(log, read_committed=read_committed)
        program.read_all()
        ends[read_committed] = program.fetcher.partition(PLACE).known_end
    assert ends == {True: 1, False: 2}


def test_the_leader_epoch_of_what_is_passed_is_known_when_the_partition_joins_again() -> None:
    log = TransactionLog(PLACE)
    log.append([b"a"], 1)
    log.leader_epoch = LeaderEpoch(7)
    log.end([1], is_committed=True)
    program = ReadingProgram(log)
    program.read_all()
    partition = program.fetcher.partition(PLACE)
    assert partition.epochs == [(3, 0), (7, 1)], "else the log seems to be truncated (KIP-320)"
    program.lose_connection()
    assert program.fetch_offset == 2


def test_each_leader_epoch_of_what_is_passed_begins_where_it_does() -> None:
    log = TransactionLog(PLACE)
    log.append([b"a"], 1)
    log.append([b"a"], 1)
    log.leader_epoch = LeaderEpoch(7)
    log.end([1], is_committed=False)
    program = ReadingProgram(log)
    assert program.answer(10)
    assert program.fetcher.partition(PLACE).epochs == [(3, 0), (7, 2)]


def test_what_is_passed_fails_no_reader_that_has_not_the_room_for_it() -> None:
    log = TransactionLog(PLACE)
    log.append([b"x" * 1_000] * 20, 1)
    log.end([1], is_committed=False)
    program = ReadingProgram(log)
    for _ in range(20):
        assert program.answer(10)
        program.step()
        assert program.credit == WINDOW, "credit comes back though the program never polls"
        program.fetcher.seek(PLACE, Offset(0))
        program.step()


def test_a_transaction_that_another_producer_has_there_is_another_one() -> None:
    known = AbortedTransaction(ProducerId(1), Offset(5), Offset(9))
    log = TransactionLog(PLACE)
    log.append([b"a"] * 5)
    log.append([b"b"] * 5, 2)
    log.end([2], is_committed=True)
    program = ReadingProgram(log)
    log.aborted = lambda *_: [known]  # type: ignore[method-assign]
    program.read_all()
    assert len(program.seen) == 10
