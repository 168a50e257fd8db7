"""The fetcher machine, effect by effect."""

from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise

import pytest

from millrace.core.client.consumer.fetcher import Fetcher, FindEpochEnd, LookUpOffset
from millrace.core.client.consumer.read_partition import Jumped, JumpReason, Reset
from millrace.core.client.consumer.sessions import (
    QUIET_MS,
    AddedPartition,
    ChangeSession,
    FetchedPartition,
)
from millrace.core.client.routing.router import Connect, RefreshMetadata, Router
from millrace.core.errors import (
    AuthenticationFailedError,
    BrokerShuttingDownError,
    CorruptBatchError,
    CorruptLogError,
    InvalidRequestError,
    LogTruncatedError,
    MillraceError,
    NotLeaderError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import (
    NO_BROKER,
    BrokerId,
    KnownLeader,
    Leader,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    TopicId,
    TopicPartition,
    WallMs,
)
from millrace.core.records.batch import prepare
from millrace.core.records.columns import Columns
from millrace.core.records.header import stamp

BROKER = BrokerId(1)
FOLLOWER = BrokerId(2)
PLACE = TopicPartition(TopicId(b"t" * 16), 0)
OTHER = TopicPartition(TopicId(b"t" * 16), 1)
NO_EPOCH = LeaderEpoch(-1)
WINDOW = 10_000


def at(ms: int) -> MonotonicMs:
    return MonotonicMs(ms)


def batch(base: int, count: int, epoch: int = 3, place: TopicPartition = PLACE) -> bytes:
    prepared = prepare(place, Columns(count, WallMs(0), [b"v"] * count))
    header = stamp(prepared.finish(), base_offset=Offset(base), leader_epoch=LeaderEpoch(epoch))
    return header + bytes(prepared.body)


def fetched(handle: int, data: bytes, offset: int, high_watermark: int = 100) -> FetchedPartition:
    end = Offset(high_watermark)
    return FetchedPartition(handle, data, end, end, Offset(0), Offset(offset))


def failed(
    handle: int, error: MillraceError, offset: int = 0, is_retriable: bool | None = None
) -> FetchedPartition:
    news = fetched(handle, b"", offset)
    news.error = error
    news.is_retriable = error.retriable if is_retriable is None else is_retriable
    return news


def moved_to(broker_id: int, epoch: int) -> NotLeaderError:
    error = NotLeaderError("moved")
    error.leader = KnownLeader(Leader(BrokerId(broker_id), LeaderEpoch(epoch)), "h:1")
    return error


START = Offset(0)


def idle(reset: Reset = Reset.EARLIEST) -> Fetcher:
    """Return a fetcher without a partition."""
    return Fetcher(reset, WINDOW, Router(100, 1_000, 300_000, MonotonicMs(0)))


def make(reset: Reset = Reset.EARLIEST, start: Offset | Reset = START) -> Fetcher:
    """Return a fetcher that fetches PLACE from `start` under handle 1."""
    fetcher = idle(reset)
    fetcher.on_leaders({PLACE: Leader(BROKER, LeaderEpoch(3)), OTHER: Leader(BROKER, NO_EPOCH)})
    fetcher.assign("t", PLACE, start)
    fetcher.poll(at(0))
    fetcher.on_connected(BROKER)
    fetcher.poll(at(0))
    return fetcher


def test_a_partition_joins_the_session_of_its_leader() -> None:
    fetcher = idle()
    fetcher.assign("t", PLACE, Offset(5))
    assert fetcher.poll(at(0)) == [RefreshMetadata(["t"])]
    fetcher.on_leaders({PLACE: Leader(BROKER, LeaderEpoch(3))})
    fetcher.on_refreshed(at(0))
    assert fetcher.poll(at(0)) == [Connect(BROKER)]
    fetcher.on_connected(BROKER)
    joining = AddedPartition(1, PLACE, Offset(5), LeaderEpoch(3), NO_EPOCH)
    assert fetcher.poll(at(0)) == [ChangeSession(BROKER, [joining], [], WINDOW)]
    assert fetcher.poll(at(0)) == []


def test_a_partition_joins_with_the_end_up_to_which_it_is_read() -> None:
    fetcher = make()
    fetcher.assign("t", PLACE, Offset(5), end=Offset(9))
    (change,) = [effect for effect in fetcher.poll(at(0)) if isinstance(effect, ChangeSession)]
    assert [(added.fetch_offset, added.end_offset) for added in change.added] == [(5, 9)]
    fetcher.assign("t", PLACE, Offset(5))
    (change,) = [effect for effect in fetcher.poll(at(0)) if isinstance(effect, ChangeSession)]
    assert [added.end_offset for added in change.added] == [None]


def test_without_a_position_the_logs_end_is_looked_up() -> None:
    fetcher = idle(Reset.LATEST)
    fetcher.on_leaders({PLACE: Leader(BROKER, LeaderEpoch(3))})
    fetcher.assign("t", PLACE, Reset.NONE)
    assert fetcher.poll(at(0)) == [LookUpOffset(PLACE, 1, Reset.LATEST)]
    assert fetcher.partition(PLACE).known_position is None
    fetcher.on_offset_found(1, Offset(42))
    assert fetcher.partition(PLACE).known_position == 42
    assert fetcher.poll(at(0)) == [Connect(BROKER)]


def test_batches_are_taken_in_order_and_move_the_position() -> None:
    fetcher = make()
    fetcher.on_fetched(BROKER, [fetched(1, batch(0, 3) + batch(3, 2), 0)], at(1))
    first, second = fetcher.take(), fetcher.take()
    assert first is not None
    assert second is not None
    assert (first.header.base_offset, second.header.base_offset) == (0, 3)
    assert fetcher.partition(PLACE).known_position == 5
    assert fetcher.partition(PLACE).known_end == 100
    assert fetcher.take() is None


def test_records_before_the_offset_asked_for_are_marked() -> None:
    fetcher = make(start=Offset(2))
    fetcher.on_fetched(BROKER, [fetched(1, batch(0, 5), 2)], at(1))
    taken = fetcher.take()
    assert taken is not None
    assert taken.start_offset == 2


def test_credit_is_granted_again_as_batches_are_taken_and_never_beyond_the_window() -> None:
    fetcher = make()
    outstanding = WINDOW
    offset = 0
    for _ in range(50):
        data = b""
        while len(data) < 3_000:
            data += batch(offset + len(data), 1)
        numbers = range(0, len(data) + 1, len(batch(0, 1)))
        data = b"".join(batch(offset + n, 1) for n, _ in enumerate(pairwise(numbers)))
        count = len(numbers) - 1
        assert len(data) <= outstanding
        outstanding -= len(data)
        fetcher.on_fetched(BROKER, [fetched(1, data, offset)], at(1))
        offset += count
        for _ in range(count):
            assert fetcher.take() is not None
        for effect in fetcher.poll(at(1)):
            assert isinstance(effect, ChangeSession)
            outstanding += effect.credit_bytes
        assert outstanding <= WINDOW


def test_nothing_taken_means_no_credit() -> None:
    fetcher = make()
    fetcher.on_fetched(BROKER, [fetched(1, batch(0, 500), 0)], at(1))
    assert fetcher.poll(at(1)) == []


def test_a_seek_takes_a_new_handle_and_drops_what_was_under_way() -> None:
    fetcher = make()
    fetcher.on_fetched(BROKER, [fetched(1, batch(0, 3), 0)], at(1))
    fetcher.seek(PLACE, Offset(50))
    assert fetcher.take() is None
    (change,) = fetcher.poll(at(1))
    assert isinstance(change, ChangeSession)
    assert change.removed == [1]
    assert change.added == [AddedPartition(2, PLACE, Offset(50), LeaderEpoch(3), NO_EPOCH)]
    assert change.credit_bytes == len(batch(0, 3))
    fetcher.on_fetched(BROKER, [fetched(1, batch(3, 3), 3)], at(2))  # It was on its way.
    assert fetcher.take() is None
    fetcher.on_fetched(BROKER, [fetched(2, batch(50, 1), 50)], at(2))
    taken = fetcher.take()
    assert taken is not None
    assert taken.header.base_offset == 50


def test_a_broken_stream_starts_again_after_what_was_taken() -> None:
    fetcher = make()
    fetcher.on_fetched(BROKER, [fetched(1, batch(0, 3) + batch(3, 2), 0)], at(1))
    assert fetcher.take() is not None
    fetcher.on_disconnected(BROKER, "reset", at(1))
    assert fetcher.take() is None
    assert fetcher.poll(at(2)) == [RefreshMetadata(["t"])]
    assert Connect(BROKER) in fetcher.poll(at(101))
    fetcher.on_connected(BROKER)
    joining = AddedPartition(2, PLACE, Offset(3), LeaderEpoch(3), LeaderEpoch(3))
    assert fetcher.poll(at(101)) == [ChangeSession(BROKER, [joining], [], WINDOW)]


def test_a_moved_leader_is_followed() -> None:
    fetcher = make()
    fetcher.on_fetched(BROKER, [failed(1, NotLeaderError("moved"))], at(1))
    assert fetcher.poll(at(1)) == [RefreshMetadata(["t"])]
    fetcher.on_leaders({PLACE: Leader(BrokerId(2), LeaderEpoch(4))})
    fetcher.on_refreshed(at(1))
    assert fetcher.poll(at(1)) == [Connect(BrokerId(2))]


def test_a_leader_that_a_refusal_names_is_followed_without_a_look_up() -> None:
    fetcher = make()
    fetcher.on_fetched(BROKER, [failed(1, moved_to(2, 4))], at(1))
    assert fetcher.poll(at(1)) == [Connect(FOLLOWER)]
    fetcher.on_connected(FOLLOWER)
    joining = AddedPartition(2, PLACE, Offset(0), LeaderEpoch(4), NO_EPOCH)
    assert ChangeSession(FOLLOWER, [joining], [], WINDOW) in fetcher.poll(at(1))


@pytest.mark.parametrize("epoch", [2, 3])
def test_a_refusal_that_names_no_news_is_looked_up(epoch: int) -> None:
    fetcher = make()
    fetcher.on_fetched(BROKER, [failed(1, moved_to(2, epoch))], at(1))
    assert fetcher.poll(at(1)) == [RefreshMetadata(["t"])]


def test_a_partition_is_awaited_while_no_broker_sends_it() -> None:
    fetcher = make()
    assert fetcher.awaited() == []
    fetcher.on_disconnected(BROKER, "gone", at(1))
    assert fetcher.awaited() == [PLACE]
    fetcher.pause(PLACE)
    assert fetcher.awaited() == []


def test_when_the_leader_cannot_be_reached_another_one_is_looked_for() -> None:
    fetcher = idle()
    fetcher.assign("t", PLACE, Offset(5))
    fetcher.on_leaders({PLACE: Leader(BROKER, LeaderEpoch(3))})
    assert fetcher.poll(at(0)) == [Connect(BROKER)]
    fetcher.on_disconnected(BROKER, "refused", at(1))
    assert RefreshMetadata(["t"]) in fetcher.poll(at(0))


def test_a_reader_that_is_not_let_in_is_told_at_once() -> None:
    fetcher = idle()
    fetcher.assign("t", PLACE, Offset(5))
    fetcher.on_leaders({PLACE: Leader(BROKER, LeaderEpoch(3))})
    fetcher.poll(at(0))
    fetcher.on_denied(BROKER, AuthenticationFailedError("bring a token"), at(1))
    with pytest.raises(AuthenticationFailedError, match="bring a token"):
        fetcher.take()
    fetcher.seek(PLACE, Offset(5))
    assert fetcher.next_wake(at(1)) is not None, "it tries again after a seek"


def read_from_follower() -> Fetcher:
    """Return a fetcher that the leader has sent on, at offset 3 after epoch 3."""
    fetcher = make()
    fetcher.on_fetched(BROKER, [fetched(1, batch(0, 3), 0)], at(1))
    assert fetcher.take() is not None
    fetcher.poll(at(1))
    sent_on = fetched(1, b"", 3)
    sent_on.preferred_read_replica = FOLLOWER
    fetcher.on_fetched(BROKER, [sent_on], at(1))
    assert fetcher.poll(at(1)) == [Connect(FOLLOWER)]
    fetcher.on_connected(FOLLOWER)
    joining = AddedPartition(2, PLACE, Offset(3), LeaderEpoch(3), LeaderEpoch(3))
    assert fetcher.poll(at(1)) == [ChangeSession(FOLLOWER, [joining], [], WINDOW)]
    return fetcher


def rejoined(fetcher: Fetcher, broker_id: BrokerId, now: int) -> AddedPartition:
    """Return how the partition joins a broker's session now."""
    effects = fetcher.poll(at(now))
    if Connect(broker_id) in effects:
        fetcher.on_connected(broker_id)
        effects += fetcher.poll(at(now))
    changes = [e for e in effects if isinstance(e, ChangeSession) and e.broker_id == broker_id]
    (joining,) = [added for change in changes for added in change.added]
    return joining


def test_a_partition_is_read_from_the_follower_that_the_leader_names() -> None:
    fetcher = read_from_follower()
    fetcher.on_fetched(FOLLOWER, [fetched(2, batch(3, 2), 3)], at(2))
    taken = fetcher.take()
    assert taken is not None
    assert taken.header.base_offset == 3


def test_a_follower_that_does_not_know_the_position_yet_is_asked_again_and_then_the_leader() -> (
    None
):
    fetcher = read_from_follower()
    now = 2
    for handle in (2, 3, 4):
        late = failed(handle, OffsetNotAvailableError("not yet"), 3)
        fetcher.on_fetched(FOLLOWER, [late], at(now))
        assert fetcher.poll(at(now)) == []
        now += 100
        assert not rejoined(fetcher, FOLLOWER, now).from_leader
    fetcher.on_fetched(FOLLOWER, [failed(5, OffsetNotAvailableError("not yet"), 3)], at(now))
    assert rejoined(fetcher, BROKER, now).from_leader


@pytest.mark.parametrize(
    "error", [OffsetOutOfRangeError("gone here"), BrokerShuttingDownError("stopping")]
)
def test_whatever_a_follower_refuses_the_leader_decides(error: MillraceError) -> None:
    fetcher = read_from_follower()
    fetcher.on_fetched(FOLLOWER, [failed(2, error, 3)], at(2))
    joining = rejoined(fetcher, BROKER, 2)
    assert joining.from_leader
    assert joining.fetch_offset == 3
    assert fetcher.take() is None, "nothing is reset without the leader"


def test_a_follower_that_is_gone_is_left_for_the_leader() -> None:
    fetcher = read_from_follower()
    fetcher.on_disconnected(FOLLOWER, "reset", at(1))
    assert rejoined(fetcher, BROKER, 2).from_leader


def test_a_follower_that_cannot_be_reached_is_left_for_the_leader() -> None:
    fetcher = make()
    sent_on = fetched(1, b"", 0)
    sent_on.preferred_read_replica = FOLLOWER
    fetcher.on_fetched(BROKER, [sent_on], at(1))
    assert fetcher.poll(at(1)) == [Connect(FOLLOWER)]
    fetcher.on_disconnected(FOLLOWER, "refused", at(1))
    assert rejoined(fetcher, BROKER, 1).from_leader


def test_a_new_leader_is_asked_where_to_read() -> None:
    fetcher = read_from_follower()
    fetcher.on_leaders({PLACE: Leader(FOLLOWER, LeaderEpoch(4))})
    joining = rejoined(fetcher, FOLLOWER, 2)
    assert (joining.current_leader_epoch, joining.from_leader) == (4, False)


def test_where_to_read_is_asked_anew_from_time_to_time() -> None:
    fetcher = read_from_follower()
    fetcher.poll(at(1 + QUIET_MS))
    assert fetcher.next_wake(at(2 + QUIET_MS)) == 300_000, "the look-up of topics"
    assert RefreshMetadata(["t"]) in fetcher.poll(at(300_000))
    due = fetcher.next_wake(at(300_000))
    assert due == 300_001
    assert not rejoined(fetcher, BROKER, due).from_leader
    assert fetcher.next_wake(at(due)) == 600_000


def test_older_news_about_a_leader_are_ignored() -> None:
    fetcher = make()
    fetcher.on_leaders({PLACE: Leader(BrokerId(2), LeaderEpoch(2))})
    assert fetcher.poll(at(1)) == []


def refused_once(reset: Reset) -> Fetcher:
    """Return a fetcher whose leader has refused position 500, and is asked again (handle 2)."""
    fetcher = make(reset, Offset(500))
    fetcher.on_fetched(BROKER, [failed(1, OffsetOutOfRangeError("gone"), 500)], at(1))
    assert fetcher.poll(at(1)) == [RefreshMetadata(["t"])]
    return fetcher


def refused_twice(reset: Reset) -> Fetcher:
    fetcher = refused_once(reset)
    fetcher.on_leaders({PLACE: Leader(BROKER, LeaderEpoch(3))})
    fetcher.on_refreshed(at(2))
    assert rejoined(fetcher, BROKER, 200).fetch_offset == 500
    fetcher.on_fetched(BROKER, [failed(2, OffsetOutOfRangeError("gone"), 500)], at(201))
    return fetcher


def test_a_leader_that_was_replaced_unawares_does_not_reset_a_position() -> None:
    fetcher = refused_once(Reset.EARLIEST)
    fetcher.on_leaders({PLACE: Leader(FOLLOWER, LeaderEpoch(4))})
    fetcher.on_refreshed(at(2))
    assert rejoined(fetcher, FOLLOWER, 200).fetch_offset == 500


@pytest.mark.parametrize("reset", [Reset.EARLIEST, Reset.LATEST])
def test_an_offset_outside_of_the_log_is_reset_as_the_setting_says(reset: Reset) -> None:
    fetcher = refused_twice(reset)
    assert fetcher.poll(at(201)) == [LookUpOffset(PLACE, 3, reset)]
    fetcher.on_offset_found(3, Offset(7))
    jumped, change = fetcher.poll(at(201))
    assert isinstance(change, ChangeSession)
    assert change.added[0].fetch_offset == 7
    assert jumped == Jumped("t", 0, Offset(500), Offset(7), JumpReason.BEYOND_END, reset)


def test_a_position_that_jumps_over_deleted_records_is_told_with_their_number() -> None:
    fetcher = make()
    refused = failed(1, OffsetOutOfRangeError("no"))
    fetcher.on_fetched(BROKER, [fetched(1, batch(0, 3), 0)], at(1))
    fetcher.take()
    fetcher.on_fetched(BROKER, [refused], at(2))
    (ask,) = [effect for effect in fetcher.poll(at(2)) if isinstance(effect, FindEpochEnd)]
    fetcher.on_epoch_end(ask.handle, LeaderEpoch(3), Offset(90))
    (look,) = [effect for effect in fetcher.poll(at(3)) if isinstance(effect, LookUpOffset)]
    fetcher.on_offset_found(look.handle, Offset(50))
    (jump,) = [effect for effect in fetcher.poll(at(4)) if isinstance(effect, Jumped)]
    assert (jump.from_offset, jump.to_offset, jump.skipped) == (3, 50, 47)
    assert jump.reason is JumpReason.RECORDS_DELETED
    assert not any(isinstance(effect, Jumped) for effect in fetcher.poll(at(5)))


def test_of_a_new_partition_all_that_was_deleted_is_told_and_of_another_one_nothing() -> None:
    for is_new in (False, True):
        fetcher = idle()
        fetcher.on_leaders({PLACE: Leader(BROKER, LeaderEpoch(3))})
        fetcher.assign("t", PLACE, Reset.EARLIEST, is_new=is_new)
        (look,) = fetcher.poll(at(0))
        assert isinstance(look, LookUpOffset)
        fetcher.on_offset_found(look.handle, Offset(9))
        jumps = [effect.skipped for effect in fetcher.poll(at(0)) if isinstance(effect, Jumped)]
        assert jumps == ([9] if is_new else [])


def test_without_a_setting_an_offset_outside_of_the_log_is_an_error() -> None:
    fetcher = refused_twice(Reset.NONE)
    with pytest.raises(OffsetOutOfRangeError, match=r"position 500 .* be read up to 100:"):
        fetcher.take()
    assert fetcher.take() is None
    fetcher.seek(PLACE, Offset(7))
    (change,) = fetcher.poll(at(201))
    assert isinstance(change, ChangeSession)
    assert change.added[0].fetch_offset == 7


def test_records_that_were_read_and_are_gone_are_never_skipped_in_silence() -> None:
    fetcher = make()
    fetcher.on_fetched(BROKER, [fetched(1, batch(0, 10), 0)], at(1))
    assert fetcher.take() is not None
    fetcher.on_fetched(BROKER, [failed(1, OffsetOutOfRangeError("shorter now"), 10)], at(2))
    effects = fetcher.poll(at(2))
    assert FindEpochEnd(PLACE, 2, LeaderEpoch(3)) in effects
    fetcher.on_epoch_end(2, LeaderEpoch(3), Offset(6))
    with pytest.raises(LogTruncatedError, match=r"\[6, 10\) were read, but are gone") as caught:
        fetcher.take()
    error = caught.value
    assert (error.topic, error.partition, error.position, error.end_offset) == ("t", 0, 10, 6)


def test_records_of_an_epoch_that_the_leader_never_had_are_gone_from_its_first_one_on() -> None:
    fetcher = make()
    data = batch(0, 4, epoch=1) + batch(4, 4, epoch=2) + batch(8, 4, epoch=3)
    fetcher.on_fetched(BROKER, [fetched(1, data, 0)], at(1))
    for _ in range(3):
        assert fetcher.take() is not None
    news = fetched(1, b"", 12)
    # Its log of epoch 1 goes on beyond the position: what took the place has the same offsets.
    news.diverging_epoch, news.diverging_end_offset = LeaderEpoch(1), Offset(20)
    fetcher.on_fetched(BROKER, [news], at(2))
    with pytest.raises(LogTruncatedError) as caught:
        fetcher.take()
    assert (caught.value.end_offset, caught.value.position) == (4, 12)


def test_a_position_that_retention_passed_is_no_truncation() -> None:
    fetcher = make()
    fetcher.on_fetched(BROKER, [fetched(1, batch(0, 10), 0)], at(1))
    fetcher.take()
    fetcher.on_fetched(BROKER, [failed(1, OffsetOutOfRangeError("deleted"), 10)], at(2))
    fetcher.poll(at(2))
    fetcher.on_epoch_end(2, LeaderEpoch(3), Offset(90))
    assert LookUpOffset(PLACE, 3, Reset.EARLIEST) in fetcher.poll(at(2))


def test_a_divergence_that_the_leader_reports_is_a_truncation() -> None:
    fetcher = make()
    fetcher.on_fetched(BROKER, [fetched(1, batch(0, 10), 0)], at(1))
    fetcher.take()
    news = fetched(1, b"", 10)
    news.diverging_epoch, news.diverging_end_offset = LeaderEpoch(2), Offset(4)
    fetcher.on_fetched(BROKER, [news], at(2))
    with pytest.raises(LogTruncatedError):
        fetcher.take()


def test_an_error_waits_until_what_came_before_is_taken() -> None:
    fetcher = make(Reset.NONE)
    fetcher.assign("t", OTHER, Offset(0))
    fetcher.poll(at(0))
    fetcher.on_fetched(
        BROKER,
        [fetched(1, batch(0, 1), 0), failed(2, InvalidRequestError("no"), is_retriable=False)],
        at(1),
    )
    assert fetcher.take() is not None
    with pytest.raises(InvalidRequestError):
        fetcher.take()
    fetcher.untold.raise_again()
    assert fetcher.has_news
    with pytest.raises(InvalidRequestError):
        fetcher.take()


def test_an_error_that_was_raised_before_the_last_batch_is_not_raised_again() -> None:
    fetcher = make(Reset.NONE)
    fetcher.assign("t", OTHER, Offset(0))
    fetcher.poll(at(0))
    no = failed(2, InvalidRequestError("no"), is_retriable=False)
    fetcher.on_fetched(BROKER, [no], at(1))
    with pytest.raises(InvalidRequestError):
        fetcher.take()
    fetcher.on_fetched(BROKER, [fetched(1, batch(0, 1), 0)], at(2))
    assert fetcher.take() is not None
    fetcher.untold.raise_again()  # The records of that batch cannot be opened.
    assert fetcher.take() is None


DAMAGED = b"damaged!" + batch(3, 2)[8:]


def doubtful() -> Fetcher:
    """Return a fetcher to which a batch that cannot be read came once, after a good one."""
    fetcher = make()
    fetcher.on_fetched(BROKER, [fetched(1, batch(0, 3) + DAMAGED, 0)], at(1))
    assert not fetcher.has_news
    return fetcher


def with_a_damaged_header() -> Fetcher:
    """Return a fetcher to which that batch came again, under handle 2."""
    fetcher = doubtful()
    fetcher.assign("t", OTHER, Offset(0))
    fetcher.poll(at(1))
    news = [fetched(2, batch(0, 3) + DAMAGED, 0), fetched(3, batch(0, 1, place=OTHER), 0)]
    fetcher.on_fetched(BROKER, news, at(1))
    return fetcher


def test_the_broker_verifies_what_came_damaged_before_it_sends_it_again() -> None:
    fetcher = doubtful()
    joining = rejoined(fetcher, BROKER, 1)
    assert (joining.handle, joining.fetch_offset, joining.verify_until) == (2, 0, 4)
    fetcher.on_fetched(BROKER, [fetched(2, batch(0, 3) + batch(3, 2), 0)], at(2))
    taken = [fetcher.take(), fetcher.take()]
    assert [batch and batch.header.base_offset for batch in taken] == [0, 3]
    assert fetcher.take() is None


def test_a_batch_that_was_taken_and_is_damaged_is_fetched_again_once() -> None:
    fetcher = make()
    for handle, is_first in ((1, True), (2, False)):
        fetcher.on_fetched(BROKER, [fetched(handle, batch(0, 3), 0)], at(1))
        assert fetcher.take() is not None
        assert fetcher.fetch_again(PLACE, Offset(0)) is is_first
        joining = rejoined(fetcher, BROKER, 1)
        assert (joining.fetch_offset, joining.verify_until) == (0, 1)
    fetcher.seek(PLACE, Offset(0))
    assert rejoined(fetcher, BROKER, 1).verify_until == 0
    assert fetcher.fetch_again(PLACE, Offset(0)), "a seek forgets the damage"


def test_a_damaged_header_is_told_after_what_came_before_it() -> None:
    fetcher = with_a_damaged_header()
    taken = [fetcher.take(), fetcher.take()]
    found = [batch and (batch.handle, batch.header.base_offset) for batch in taken]
    assert found == [(2, 0), (3, 0)]
    with pytest.raises(CorruptBatchError, match=r"topic 't' partition 0: the bytes begin with"):
        fetcher.take()
    assert fetcher.take() is None
    assert fetcher.partition(PLACE).known_position == 3
    fetcher.on_fetched(BROKER, [fetched(3, batch(1, 1, place=OTHER), 1)], at(1))
    assert fetcher.take() is not None, "the other partition goes on"


def test_what_cannot_be_read_takes_no_part_of_the_window() -> None:
    fetcher = with_a_damaged_header()
    (change,) = fetcher.poll(at(1))
    assert isinstance(change, ChangeSession)
    assert (change.added, change.removed) == ([], [2])
    granted = change.credit_bytes
    fetcher.on_fetched(BROKER, [fetched(2, DAMAGED, 5)], at(1))  # It was on its way.
    came = len(batch(0, 3)) + 2 * len(DAMAGED) + len(batch(0, 1, place=OTHER))
    while fetcher.has_news:
        with suppress(CorruptBatchError):
            fetcher.take()
    granted += sum(
        effect.credit_bytes
        for effect in fetcher.poll(at(1 + QUIET_MS))
        if isinstance(effect, ChangeSession)
    )
    assert granted == came


def test_a_seek_drops_what_came_before_a_damaged_header_and_the_error() -> None:
    fetcher = with_a_damaged_header()
    fetcher.seek(PLACE, Offset(1))
    taken = fetcher.take()
    assert taken is not None
    assert taken.handle == 3
    assert fetcher.take() is None
    (change,) = fetcher.poll(at(1))
    assert isinstance(change, ChangeSession)
    assert [added.fetch_offset for added in change.added] == [1]
    assert change.removed == [2], "it is taken out once"


def test_a_damaged_header_after_what_a_pause_drops_is_met_again() -> None:
    fetcher = with_a_damaged_header()
    fetcher.pause(PLACE)
    taken = fetcher.take()
    assert taken is not None
    assert taken.handle == 3
    assert fetcher.take() is None
    fetcher.poll(at(1))
    fetcher.resume(PLACE)
    (change,) = fetcher.poll(at(1))
    assert isinstance(change, ChangeSession)
    assert [added.fetch_offset for added in change.added] == [0]


def test_why_a_partition_failed_is_known_until_it_is_moved() -> None:
    fetcher = make()
    fetcher.assign("t", OTHER, Reset.NONE)
    effects = fetcher.poll(at(1))
    (handle,) = [effect.handle for effect in effects if isinstance(effect, LookUpOffset)]
    error = InvalidRequestError("no")
    fetcher.on_look_up_failed(handle, error, False, at(1))
    for _ in range(2):
        assert fetcher.partition(OTHER).error is error
        assert fetcher.partition(PLACE).error is None
        with suppress(InvalidRequestError):
            fetcher.take()
    fetcher.pause(OTHER)
    assert fetcher.partition(OTHER).error is error
    fetcher.seek(OTHER, Offset(3))
    assert fetcher.partition(OTHER).error is None


def messages_of_gone(fetcher: Fetcher) -> dict[TopicPartition, str]:
    return {place: error.message for place, error in fetcher.untold.take_gone().items()}


def lose_topic(fetcher: Fetcher) -> None:
    for _ in range(2):  # The first broker that was asked may not have heard of it yet.
        fetcher.on_topics({"t": None})


def test_a_topic_that_one_look_up_does_not_find_is_looked_up_again() -> None:
    fetcher = make()
    fetcher.on_topics({"t": None})
    assert messages_of_gone(fetcher) == {}
    assert fetcher.poll(at(1)) == [RefreshMetadata(["t"])]
    fetcher.on_topics({"t": None})
    assert fetcher.has_news
    assert messages_of_gone(fetcher) == {PLACE: "the topic 't' was deleted"}
    assert fetcher.untold.is_gone(PLACE)
    assert isinstance(fetcher.partition(PLACE).error, UnknownTopicOrPartitionError)
    lose_topic(fetcher)
    assert messages_of_gone(fetcher) == {}, "it is told once"


def test_another_topic_of_the_name_is_not_read() -> None:
    fetcher = make()
    fetcher.on_topics({"t": TopicId(b"u" * 16)})
    (message,) = messages_of_gone(fetcher).values()
    assert message == "the topic 't' was deleted and made again"


def test_an_error_goes_with_its_partition() -> None:
    """Else who reads other partitions next would be told of it."""
    fetcher = make(Reset.NONE)
    fetcher.assign("t", OTHER, Offset(0))
    lose_topic(fetcher)
    fetcher.unassign(OTHER)
    assert set(messages_of_gone(fetcher)) == {PLACE}
    assert fetcher.take() is None
    moves: list[Callable[[], None]] = [
        lambda: fetcher.assign("t", PLACE, START),
        lambda: fetcher.seek(PLACE, START),
    ]
    for move in moves:
        move()
        lose_topic(fetcher)
        move()
        assert not fetcher.has_news
        assert fetcher.take() is None


def test_a_topic_that_is_gone_holds_up_no_other_one() -> None:
    fetcher = make()
    other = TopicPartition(TopicId(b"u" * 16), 0)
    fetcher.on_leaders({other: Leader(BROKER, LeaderEpoch(3))})
    fetcher.assign("u", other, START)
    fetcher.poll(at(1))
    lose_topic(fetcher)
    fetcher.on_fetched(BROKER, [fetched(2, batch(0, 2, place=other), 0)], at(2))
    assert fetcher.take() is not None
    assert not fetcher.untold.is_gone(other)


def test_a_paused_partition_gives_nothing_and_holds_no_credit() -> None:
    fetcher = make()
    fetcher.on_fetched(BROKER, [fetched(1, batch(0, 3), 0)], at(1))
    fetcher.pause(PLACE)
    assert fetcher.partition(PLACE).is_paused
    assert fetcher.take() is None
    assert fetcher.poll(at(1)) == [ChangeSession(BROKER, [], [1], len(batch(0, 3)))]
    fetcher.resume(PLACE)
    (change,) = fetcher.poll(at(2))
    assert isinstance(change, ChangeSession)
    assert change.added == [AddedPartition(2, PLACE, Offset(0), LeaderEpoch(3), NO_EPOCH)]


def test_a_reader_that_begins_where_another_was_is_told_that_its_record_is_gone() -> None:
    fetcher = make()
    fetcher.assign("t", PLACE, Offset(10), epoch=LeaderEpoch(3))
    assert fetcher.partition(PLACE).epoch_before(Offset(10)) == 3
    assert fetcher.partition(PLACE).epoch_before(Offset(9)) == -1
    (change,) = [effect for effect in fetcher.poll(at(0)) if isinstance(effect, ChangeSession)]
    assert [(added.fetch_offset, added.last_fetched_epoch) for added in change.added] == [(10, 3)]


def test_going_back_in_what_was_taken_keeps_the_epochs_before_it() -> None:
    fetcher = make()
    data = batch(0, 4, epoch=1) + batch(4, 4, epoch=2)
    for to, epoch in ((6, 2), (4, 1), (1, 1), (0, NO_EPOCH)):
        fetcher.seek(PLACE, START)
        handle = rejoined(fetcher, BROKER, 1).handle
        fetcher.on_fetched(BROKER, [fetched(handle, data, 0)], at(1))
        assert [fetcher.take() is None for _ in range(3)] == [False, False, True]
        fetcher.rewind(PLACE, Offset(to))
        assert fetcher.partition(PLACE).known_position == to
        joining = rejoined(fetcher, BROKER, 1)
        assert (joining.fetch_offset, joining.last_fetched_epoch) == (to, epoch)


def test_a_truncation_after_a_pause_is_told() -> None:
    fetcher = make()
    fetcher.on_fetched(BROKER, [fetched(1, batch(0, 4), 0)], at(1))
    assert fetcher.take() is not None
    fetcher.rewind(PLACE, Offset(2))  # Two records were handed out, and two were not.
    fetcher.pause(PLACE)
    fetcher.poll(at(1))
    fetcher.resume(PLACE)
    news = fetched(rejoined(fetcher, BROKER, 1).handle, b"", 2)
    news.diverging_epoch, news.diverging_end_offset = LeaderEpoch(2), Offset(1)
    fetcher.on_fetched(BROKER, [news], at(1))
    with pytest.raises(LogTruncatedError, match=r"\[0, 2\) were read, but are gone"):
        fetcher.take()


def test_a_seek_while_paused_counts_after_resuming() -> None:
    fetcher = make()
    fetcher.pause(PLACE)
    fetcher.seek(PLACE, Offset(9))
    assert not any(isinstance(e, ChangeSession) and e.added for e in fetcher.poll(at(1)))
    fetcher.resume(PLACE)
    (change,) = fetcher.poll(at(2))
    assert isinstance(change, ChangeSession)
    assert change.added[0].fetch_offset == 9


def test_an_unassigned_partition_leaves() -> None:
    fetcher = make()
    fetcher.unassign(PLACE)
    assert fetcher.poll(at(1)) == [ChangeSession(BROKER, [], [1], 0)]
    assert fetcher.assigned == []


def looked_up(fetcher: Fetcher, begin: int, end: int, leader: Leader) -> list[int]:
    """Tell of this leader whenever it is looked up; return when it was."""
    times: list[int] = []
    now = begin
    while now < end:
        if any(isinstance(effect, RefreshMetadata) for effect in fetcher.poll(at(now))):
            times.append(now)
            fetcher.on_leaders({PLACE: leader})
            fetcher.on_refreshed(at(now))
        else:
            now = fetcher.next_wake(at(now)) or end
    return times


def test_a_leader_that_is_not_there_is_looked_for_less_and_less_often() -> None:
    fetcher = idle()
    fetcher.assign("t", PLACE, START)
    times = looked_up(fetcher, 0, 60_000, Leader(NO_BROKER, LeaderEpoch(3)))
    assert times[:5] == [0, 100, 200, 300, 400], "an election is noticed soon"
    assert len(times) < 90
    assert max(later - earlier for earlier, later in pairwise(times)) == 1000
    fetcher.on_leaders({PLACE: Leader(BROKER, LeaderEpoch(4))})
    assert Connect(BROKER) in fetcher.poll(at(60_000)), "at once"
    fetcher.on_refreshed(at(60_000))
    fetcher.on_leaders({PLACE: Leader(NO_BROKER, LeaderEpoch(5))})
    times = looked_up(fetcher, 60_000, 60_550, Leader(NO_BROKER, LeaderEpoch(5)))
    assert len(times) == 5, "as often as at first"


def test_a_leader_that_refuses_for_long_is_asked_less_and_less_often() -> None:
    fetcher = make()
    now, joined = 1, 0
    handle = 1
    while now < 60_000:
        fetcher.on_fetched(BROKER, [failed(handle, CorruptLogError("a flipped bit"))], at(now))
        fetcher.on_refreshed(at(now))
        added: list[AddedPartition] = []
        while not added:
            effects = fetcher.poll(at(now))
            added = [
                e for effect in effects if isinstance(effect, ChangeSession) for e in effect.added
            ]
            if any(isinstance(effect, RefreshMetadata) for effect in effects):
                fetcher.on_refreshed(at(now))
            now = fetcher.next_wake(at(now)) or now
        handle = added[0].handle
        joined += 1
    assert joined < 80
    fetcher.on_fetched(BROKER, [fetched(handle, b"", 0)], at(now))
    fetcher.on_fetched(BROKER, [failed(handle, CorruptLogError("again"))], at(now))
    assert fetcher.next_wake(at(now)) == now + 1  # For the look-up.
    fetcher.poll(at(now))
    assert fetcher.next_wake(at(now)) == now + 100


def test_a_failed_look_up_is_repeated_after_a_pause() -> None:
    fetcher = idle()
    fetcher.on_leaders({PLACE: Leader(BROKER, LeaderEpoch(3))})
    fetcher.assign("t", PLACE, Reset.LATEST)
    fetcher.poll(at(0))
    fetcher.on_look_up_failed(1, NotLeaderError("moved"), True, at(0))
    assert fetcher.poll(at(50)) == [RefreshMetadata(["t"])]
    fetcher.on_refreshed(at(50))
    assert fetcher.poll(at(100)) == [LookUpOffset(PLACE, 2, Reset.LATEST)]
