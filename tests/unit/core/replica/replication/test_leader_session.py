"""A follower broker's session with one leader: handles, what is said, credit, pauses."""

from tests.fakes.calls import calls_in

from millrace.core.ids import BrokerId, LeaderEpoch, MonotonicMs, Offset, TopicId, TopicPartition
from millrace.core.replica.replication.effects import FetchFrom
from millrace.core.replica.replication.leader_session import ENTRIES_IN_REQUEST, LeaderSession
from millrace.core.replica.replication.progress import FollowerProgress

A, B = (TopicPartition(TopicId(b"t" * 16), number) for number in range(2))
WINDOW = 1000
NOW = MonotonicMs(50)


def position(
    offset: int = 0, number: int = 1, pause_ms: int = 0, *, of: TopicPartition = A
) -> FetchFrom:
    return FetchFrom(
        of, BrokerId(1), LeaderEpoch(3), Offset(offset), LeaderEpoch(2), number, pause_ms
    )


def progress(offset: int) -> FollowerProgress:
    return FollowerProgress(Offset(offset), Offset(offset), Offset(0), LeaderEpoch(2))


def opened() -> LeaderSession:
    """Return a session that has said its first position and granted its window."""
    session = LeaderSession(WINDOW)
    session.open(position(), progress(0), NOW)
    session.take_request(NOW)
    return session


def test_the_first_request_names_every_position_and_grants_the_window() -> None:
    session = LeaderSession(WINDOW)
    session.open(position(4), progress(4), NOW)
    session.open(position(9, of=B), progress(9), NOW)
    request = session.take_request(NOW)
    assert request is not None
    assert [
        (added[1].topic_partition, added[1].fetch_offset, added[2]) for added in request.added
    ] == [
        (A, 4, progress(4)),
        (B, 9, progress(9)),
    ]
    assert request.credit_bytes == WINDOW
    assert request.progress == []
    assert session.take_request(NOW) is None
    assert len(session) == 2


def test_a_new_position_takes_the_old_ones_place_under_a_handle_of_its_own() -> None:
    session = opened()
    session.open(position(7, number=2), progress(7), NOW)
    request = session.take_request(NOW)
    assert request is not None
    (added,) = request.added
    assert request.removed == [1]
    assert added[0] == 2
    assert session.position(1) is None  # P7: what is still sent for it is of nobody.
    assert session.position(2) == position(7, number=2)
    assert len(session) == 1


def test_a_position_that_was_never_said_need_not_be_taken_back() -> None:
    session = opened()
    session.open(position(of=B), progress(0), NOW)
    session.close(B)
    assert session.take_request(NOW) is None


def test_the_latest_progress_is_said_once() -> None:
    session = opened()
    session.on_progress(A, progress(1))
    session.on_progress(A, progress(2))
    session.on_progress(B, progress(9))  # Not followed here.
    request = session.take_request(NOW)
    assert request is not None
    assert request.progress == [(1, progress(2))]
    session.on_progress(A, progress(2))  # As when a high watermark came that moved alone.
    assert session.take_request(NOW) is None


def test_a_position_that_pauses_is_said_when_the_pause_ends_with_the_progress_of_then() -> None:
    session = opened()
    session.open(position(3, number=2, pause_ms=100), progress(3), NOW)
    request = session.take_request(NOW)
    assert request is not None
    assert (request.added, request.removed) == ([], [1])
    assert session.next_due() == 150
    session.on_progress(A, progress(5))
    assert session.take_request(MonotonicMs(149)) is None
    request = session.take_request(MonotonicMs(150))
    assert request is not None
    assert [(added[0], added[2]) for added in request.added] == [(2, progress(5))]
    assert session.next_due() is None


def test_a_paused_position_that_was_left_is_never_said() -> None:
    session = opened()
    session.open(position(pause_ms=100, of=B), progress(0), NOW)
    session.close(B)
    assert session.take_request(MonotonicMs(500)) is None


def test_credit_comes_back_when_a_worthwhile_part_is_written() -> None:
    session = opened()
    session.on_received(400)
    assert session.take_request(NOW) is None  # It is on its way to the disk.
    session.on_done(100)
    assert session.take_request(NOW) is None  # Not worth a message.
    session.on_done(300)
    request = session.take_request(NOW)
    assert request is not None
    assert request.credit_bytes == 400


def test_a_batch_larger_than_the_window_does_not_end_the_flow() -> None:
    session = opened()
    session.on_received(5 * WINDOW)
    assert session.take_request(NOW) is None
    session.on_done(5 * WINDOW)
    request = session.take_request(NOW)
    assert request is not None
    assert request.credit_bytes == 5 * WINDOW  # What the leader overdrew, and the window.


def test_a_broken_stream_returns_the_positions_and_the_next_begins_with_the_whole_window() -> None:
    session = opened()
    session.open(position(8, pause_ms=100, of=B), progress(8), NOW)
    session.on_received(300)
    assert session.on_broken() == [position()]
    assert session.position(1) is None
    session.open(position(number=2), progress(0), NOW)
    request = session.take_request(NOW)
    assert request is not None
    assert [added[0] for added in request.added] == [3]  # Handles are never used again.
    assert request.credit_bytes == WINDOW - 300  # The rest is still being written.


def test_what_was_not_said_when_the_stream_broke_is_said_to_the_next_one() -> None:
    session = opened()
    session.open(position(8, pause_ms=100, of=B), progress(8), NOW)
    session.on_broken()
    assert session.on_broken() == []  # The next stream broke before it was told anything.
    assert session.next_due() == 150
    session.on_progress(B, progress(9))
    request = session.take_request(MonotonicMs(150))
    assert request is not None
    assert [(added[1].topic_partition, added[2]) for added in request.added] == [(B, progress(9))]


def test_thousands_of_positions_are_said_in_several_messages() -> None:
    session = LeaderSession(WINDOW)
    for number in range(1200):
        session.open(position(of=TopicPartition(A.topic_id, number)), progress(0), NOW)
    requests = []
    while (request := session.take_request(NOW)) is not None:
        requests.append(request)
    assert [len(request.added) for request in requests] == [500, 500, 200]
    assert [request.credit_bytes for request in requests] == [WINDOW, 0, 0]


def test_thousands_of_reports_and_of_positions_that_were_left_are_said_in_several_messages() -> (
    None
):
    session = LeaderSession(WINDOW)
    many = ENTRIES_IN_REQUEST + 1
    for number in range(many):
        session.open(position(of=TopicPartition(A.topic_id, number)), progress(0), NOW)
    while session.take_request(NOW) is not None:
        pass
    for number in range(many):
        session.on_progress(TopicPartition(A.topic_id, number), progress(1))
    requests = [session.take_request(NOW) for _ in range(3)]
    assert [request and len(request.progress) for request in requests] == [
        ENTRIES_IN_REQUEST,
        1,
        None,
    ]
    assert sorted(
        handle for request in requests[:2] if request for handle, _ in request.progress
    ) == [*range(1, many + 1)]
    for number in range(many):
        session.close(TopicPartition(A.topic_id, number))
    session.open(position(), progress(1), NOW)
    requests = [session.take_request(NOW) for _ in range(3)]
    assert [request and len(request.removed) for request in requests] == [
        ENTRIES_IN_REQUEST,
        1,
        None,
    ]
    assert [request and len(request.added) for request in requests] == [0, 1, None], (
        "P7: first it leaves"
    )


def test_positions_that_pause_cost_nothing_while_others_have_something_to_say() -> None:
    session = opened()
    for number in range(1, 1001):
        paused = position(pause_ms=1000, of=TopicPartition(A.topic_id, number))
        session.open(paused, progress(0), NOW)
    session.on_progress(A, progress(1))
    assert calls_in(lambda: session.take_request(NOW)) < 50


def test_credit_alone_is_no_reason_to_open_a_stream() -> None:
    session = opened()
    session.on_broken()
    assert session.take_request(NOW) is None
    session.open(position(pause_ms=100), progress(0), NOW)
    assert session.take_request(MonotonicMs(149)) is None
    request = session.take_request(MonotonicMs(150))
    assert request is not None
    assert (len(request.added), request.credit_bytes) == (1, WINDOW)


def speaks(session: LeaderSession) -> bool:
    return session.has_news


def test_it_is_known_without_asking_whether_there_is_something_to_say() -> None:
    session = LeaderSession(WINDOW)
    assert not speaks(session)
    session.open(position(), progress(0), NOW)
    assert speaks(session)
    session.take_request(NOW)
    assert not speaks(session)
    session.on_progress(A, progress(0))  # As it was said.
    assert not speaks(session)
    session.on_progress(A, progress(1))
    assert speaks(session)
    session.take_request(NOW)
    session.on_received(300)
    assert not speaks(session)
    session.on_done(300)
    assert speaks(session)  # Credit is worth granting.
    session.take_request(NOW)
    session.close(A)
    assert speaks(session)
    session.on_broken()
    assert not speaks(session)
