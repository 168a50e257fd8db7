"""Sessions and their credit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.client.consumer.sessions import (
    QUIET_MS,
    AddedPartition,
    ChangeSession,
    FetchedPartition,
    Sessions,
)
from millrace.core.errors import CorruptBatchError
from millrace.core.ids import (
    NO_LEADER_EPOCH,
    BrokerId,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicPartition,
    WallMs,
)
from millrace.core.records.batch import prepare
from millrace.core.records.columns import Columns
from millrace.core.records.header import HEADER_BYTES, stamp
from millrace.core.records.markers import Marker, WrittenMarker, seal_markers

BROKER, OTHER = BrokerId(1), BrokerId(2)
PLACE = TopicPartition(TopicId(b"t" * 16), 0)
NOW = MonotonicMs(1_000)


def batch(base: int, count: int = 1) -> bytes:
    prepared = prepare(PLACE, Columns(count, WallMs(0), [b"v"] * count))
    header = stamp(prepared.finish(), base_offset=Offset(base), leader_epoch=LeaderEpoch(3))
    return header + bytes(prepared.body)


SIZE = len(batch(0))
WINDOW = 8 * SIZE


def joining(handle: int) -> AddedPartition:
    return AddedPartition(handle, PLACE, Offset(0), LeaderEpoch(3), NO_LEADER_EPOCH)


def came(handle: int, data: bytes, offset: int = 0) -> FetchedPartition:
    return FetchedPartition(handle, data, Offset(100), Offset(100), Offset(0), Offset(offset))


def make(*handles: int) -> Sessions:
    """Return sessions of which one is open, with these partitions."""
    sessions = Sessions(WINDOW)
    sessions.on_connected(BROKER)
    for handle in handles:
        sessions.add(BROKER, joining(handle))
    (change,) = sessions.changes(NOW)
    assert change == ChangeSession(BROKER, [joining(handle) for handle in handles], [], WINDOW)
    return sessions


def granted(sessions: Sessions) -> int:
    return sum(change.credit_bytes for change in sessions.changes(NOW))


def test_a_session_starts_with_the_window_and_says_no_more() -> None:
    sessions = make(1)
    assert list(sessions.changes(NOW)) == []


def test_credit_comes_back_in_parts_of_the_window_or_when_nothing_waits() -> None:
    sessions = make(1)
    sessions.keep("t", PLACE, came(1, b"".join(batch(number) for number in range(8))))
    grants: list[int] = []
    for _ in range(8):
        assert sessions.take() is not None
        assert sessions.have_changes == (len(grants) % 2 == 1)
        grants.append(granted(sessions))
    assert grants == [0, 2 * SIZE] * 4
    sessions.keep("t", PLACE, came(1, batch(8), 8))
    sessions.take()
    assert granted(sessions) == SIZE, "a reader that has caught up waits for nothing else"


def test_what_is_dropped_gives_its_credit_back_and_the_rest_stays_in_order() -> None:
    sessions = make(1, 2)
    for number in range(3):
        sessions.keep("t", PLACE, came(1, batch(number), number))
        sessions.keep("t", PLACE, came(2, batch(10 + number), 10 + number))
    sessions.drop(1)
    assert not sessions.has(1)
    assert sessions.has(2)
    assert granted(sessions) == 3 * SIZE
    taken = [sessions.take() for _ in range(4)]
    assert [batch and batch.header.base_offset for batch in taken] == [10, 11, 12, None]


def marker(base: int) -> bytes:
    end = WrittenMarker(Marker(ProducerId(7), ProducerEpoch(1), True, LeaderEpoch(1)))
    sealed = seal_markers(PLACE, [end], WallMs(0))
    header = stamp(sealed[:HEADER_BYTES], base_offset=Offset(base), leader_epoch=LeaderEpoch(3))
    return header + sealed[HEADER_BYTES:]


def test_what_is_passed_holds_the_credit_of_a_header_until_its_turn() -> None:
    sessions = make(1)
    sessions.keep("t", PLACE, came(1, batch(0)))
    size = len(marker(1))
    sessions.keep("t", PLACE, came(1, marker(1) + marker(2), 1))
    sessions.keep("t", PLACE, came(1, marker(3), 3))
    assert granted(sessions) == 3 * size - 2 * HEADER_BYTES
    assert list(sessions.pass_on()) == [], "a batch waits before them"
    assert sessions.take() is not None
    assert [passed.header.next_offset for passed in sessions.pass_on()] == [3, 4]
    assert granted(sessions) == SIZE + 2 * HEADER_BYTES
    sessions.keep("t", PLACE, came(1, batch(4) + marker(5), 4))
    before = granted(sessions)
    sessions.drop(1)
    assert sessions.passed_count == 0
    assert before + granted(sessions) == SIZE + size


def test_bytes_that_are_no_batch_are_told_and_give_their_credit_back() -> None:
    sessions = make(1)
    damaged = b"damaged!" + batch(1)[8:]
    found = sessions.keep("t", PLACE, came(1, batch(0) + damaged))
    assert found is not None
    assert isinstance(found[0], CorruptBatchError)
    assert found[1] == 1
    sessions.refuse(BROKER, SIZE)
    assert granted(sessions) == 2 * SIZE
    assert sessions.take() is not None
    assert not sessions.waiting


@pytest.mark.parametrize("offset", [0, 2, 4])
def test_records_before_the_offset_asked_for_are_marked(offset: int) -> None:
    sessions = make(1)
    sessions.keep("t", PLACE, came(1, batch(0, count=4), offset))
    taken = sessions.take()
    assert (taken and taken.start_offset) == (offset if offset < 4 else None)


def test_a_broker_is_told_once_what_to_send_no_more() -> None:
    sessions = make(1)
    sessions.remove(1)
    assert sessions.have_changes
    assert list(sessions.changes(NOW)) == [ChangeSession(BROKER, [], [1], 0)]
    assert list(sessions.changes(NOW)) == []


def test_what_waits_of_a_stream_that_broke_counts_against_the_next_ones_window() -> None:
    sessions = make(1)
    sessions.keep("t", PLACE, came(1, batch(0) + batch(1)))
    sessions.remove(1)
    sessions.on_disconnected(BROKER)
    assert list(sessions.changes(NOW)) == [], "nothing is said to a broker that is gone"
    sessions.take()
    sessions.on_connected(BROKER)
    sessions.add(BROKER, joining(2))
    assert list(sessions.changes(NOW)) == [ChangeSession(BROKER, [joining(2)], [], WINDOW - SIZE)]
    sessions.take()
    assert granted(sessions) == SIZE


def test_each_broker_has_a_window_of_its_own() -> None:
    sessions = make(1)
    sessions.on_connected(OTHER)
    sessions.add(OTHER, joining(2))
    assert granted(sessions) == WINDOW
    sessions.keep("t", PLACE, came(2, batch(0)))
    sessions.take()
    assert list(sessions.changes(NOW)) == [ChangeSession(OTHER, [], [], SIZE)]


def test_a_reader_that_waits_grants_credit_in_parts_while_its_broker_sends() -> None:
    sessions = make(1)
    grants = []
    for number in range(8):
        sessions.on_received(BROKER, NOW)
        sessions.keep("t", PLACE, came(1, batch(number), number))
        sessions.take()
        grants.append(granted(sessions))
    assert grants == [0, 2 * SIZE] * 4


def test_a_broker_that_has_been_quiet_has_the_whole_window() -> None:
    sessions = make(1)
    sessions.on_received(BROKER, NOW)
    sessions.keep("t", PLACE, came(1, batch(0)))
    sessions.take()
    assert not sessions.have_changes
    assert granted(sessions) == 0
    quiet_at = sessions.next_wake()
    assert quiet_at == NOW + QUIET_MS
    assert list(sessions.changes(quiet_at)) == [ChangeSession(BROKER, [], [], SIZE)]
    assert sessions.next_wake() is None
    assert list(sessions.changes(quiet_at)) == []


def test_a_reader_that_takes_late_grants_credit_at_once() -> None:
    sessions = make(1)
    sessions.on_received(BROKER, NOW)
    sessions.keep("t", PLACE, came(1, batch(0)))
    assert list(sessions.changes(MonotonicMs(NOW + QUIET_MS))) == []
    sessions.take()
    assert sessions.have_changes
    assert granted(sessions) == SIZE


@given(st.lists(st.integers(1, 40)), st.integers(1, 4))
def test_no_batch_of_a_small_window_waits_longer_than_a_moment(
    counts: list[int], windows: int
) -> None:
    """The broker sends a batch only when the credit suffices for all of it."""
    batches = [batch(0, count) for count in counts]
    window = max(map(len, batches), default=0) * windows
    sessions = Sessions(window)
    sessions.on_connected(BROKER)
    sessions.add(BROKER, joining(1))
    now, credit = NOW, granted(sessions)
    for data in batches:
        if len(data) > credit:
            wake = sessions.next_wake()
            assert wake is not None
            assert wake <= now + QUIET_MS
            now = wake
            credit += sum(change.credit_bytes for change in sessions.changes(now))
        assert len(data) <= credit <= window
        credit -= len(data)
        sessions.on_received(BROKER, now)
        sessions.keep("t", PLACE, came(1, data))
        assert sessions.take() is not None
        credit += sum(change.credit_bytes for change in sessions.changes(now))
