"""A leader's answers about lags: of deleted records, of records without a time, of failures."""

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.stamped_batches import TOPIC_PARTITION

from millrace.broker.rpc.lags import Lags
from millrace.broker.storage.log import Unread
from millrace.core.errors import (
    CorruptLogError,
    MalformedRequestError,
    MillraceError,
    NotLeaderError,
    OffsetOutOfRangeError,
    UnknownServerError,
)
from millrace.core.ids import NO_LEADER_EPOCH, NO_TIMESTAMP, Offset, TopicPartition, WallMs
from millrace.core.metadata.model import Listener
from millrace.proto.lags import (
    LagQuery,
    MeasuredLag,
    lags_from_wire,
    lags_to_wire,
    queries_to_wire,
)
from millrace.proto.v1 import fetch_pb2 as pb
from millrace.proto.v1.common_pb2 import Error
from millrace.runtime.clock import wall_now
from millrace.runtime.turns import Turns


class Log:
    """A log of 80 records, and what a reader has not read of it."""

    log_start_offset = Offset(0)
    directory = "/0/log"

    def __init__(self, outcome: Unread | Exception) -> None:
        self.outcome = outcome
        self.reader = self

    def log_dir_of(self, offset: Offset) -> str:
        return "/0"

    def unread(self, start_offset: Offset, limit_offset: Offset) -> Unread:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class Partitions:
    """Partitions of these logs, all of them led here."""

    image = None

    def __init__(self, logs: Sequence[Log]) -> None:
        leader = SimpleNamespace(
            check_epoch=lambda _: None,
            check_end_offset=lambda: None,
            last_stable_offset=80,
            high_watermark=90,
        )
        self._held = [SimpleNamespace(leader=leader, log=log) for log in logs]

    def get(self, topic_partition: TopicPartition) -> SimpleNamespace:
        if topic_partition.partition >= len(self._held):
            raise NotLeaderError("ask another broker", topic_partition=topic_partition)
        return self._held[topic_partition.partition]


class ReadThreads:
    """Do what they are asked, at once."""

    async def call(self, log_dir: str, job: Callable[..., Any], *args: Any) -> Any:
        return job(*args)


def leaders_of(*outcomes: Unread | Exception) -> Lags:
    """Return the lags of a broker that leads a partition of each log."""
    return Lags(
        Partitions([Log(outcome) for outcome in outcomes]),  # type: ignore[arg-type]
        ReadThreads(),  # type: ignore[arg-type]
        Turns(),
        Listener.CLIENTS,
    )


def lags(
    *outcomes: Unread | Exception,
    asked: int | None = None,
    at: int = 5,
    level: pb.IsolationLevel = pb.ISOLATION_LEVEL_READ_COMMITTED,
) -> list[MeasuredLag | MillraceError]:
    """Ask for the lag of a reader at an offset, the same in each partition."""
    places = [
        TopicPartition(TOPIC_PARTITION.topic_id, number)
        for number in range(len(outcomes) if asked is None else asked)
    ]
    queries = [LagQuery(place, NO_LEADER_EPOCH, at) for place in places]
    request = queries_to_wire(queries, level)
    return lags_from_wire(asyncio.run(leaders_of(*outcomes).describe(request)))


def measured(*outcomes: Unread | Exception) -> list[MeasuredLag]:
    """As `lags`; all of them are known."""
    found = [lag for lag in lags(*outcomes) if isinstance(lag, MeasuredLag)]
    assert len(found) == len(outcomes)
    return found


@pytest.mark.parametrize(
    ("level", "end"),
    [(pb.ISOLATION_LEVEL_READ_COMMITTED, 80), (pb.ISOLATION_LEVEL_READ_UNCOMMITTED, 90)],
)
def test_a_lag_ends_where_its_reader_does(level: pb.IsolationLevel, end: int) -> None:
    (lag,) = lags(Unread(700, WallMs(1)), level=level)
    assert isinstance(lag, MeasuredLag)
    assert lag.end_offset == end


def test_a_position_beyond_the_records_that_are_committed_is_no_loss() -> None:
    (beyond,) = lags(Unread(700, WallMs(1)), at=85)
    assert isinstance(beyond, MeasuredLag)
    assert (beyond.end_offset, beyond.unread_bytes, beyond.unread_ms) == (80, 0, 0)
    (lost,) = lags(Unread(700, WallMs(1)), at=91)
    assert isinstance(lost, OffsetOutOfRangeError)


def test_a_lag_is_as_old_as_the_first_record_that_is_not_read() -> None:
    (lag,) = measured(Unread(700, WallMs(wall_now() - 5000)))
    assert (lag.end_offset, lag.unread_bytes) == (80, 700)
    assert lag.unread_ms is not None
    assert 5000 <= lag.unread_ms < 60_000
    (of_the_future,) = measured(Unread(700, WallMs(wall_now() + 60_000)))
    assert of_the_future.unread_ms == 1


def test_nothing_is_unread_where_all_of_it_was_deleted() -> None:
    (lag,) = measured(Unread(0, NO_TIMESTAMP))
    assert (lag.unread_bytes, lag.unread_ms) == (0, 0)


def test_the_age_of_records_without_a_time_is_unknown() -> None:
    (lag,) = measured(Unread(700, NO_TIMESTAMP))
    assert (lag.unread_bytes, lag.unread_ms) == (700, None)


def test_a_failure_concerns_its_partition_alone(caplog: pytest.LogCaptureFixture) -> None:
    sound, failed, elsewhere = lags(Unread(9, WallMs(1)), RecursionError("a bug"), asked=3)
    assert isinstance(sound, MeasuredLag)
    assert sound.unread_bytes == 9
    assert isinstance(failed, UnknownServerError)
    assert isinstance(elsewhere, NotLeaderError)
    (said,) = caplog.records
    assert said.exc_info is not None
    assert said.exc_info[0] is RecursionError


def test_partitions_that_are_refused_for_the_same_reason_share_its_text() -> None:
    places = [TopicPartition(TOPIC_PARTITION.topic_id, number) for number in range(10_000)]
    request = queries_to_wire([LagQuery(place, NO_LEADER_EPOCH, 5) for place in places])
    first = Unread(9, WallMs(1))
    response = asyncio.run(leaders_of(first).describe(request))
    texts = [each.error.message for each in response.refused]
    assert texts == ["ask another broker", *[""] * 9998]
    assert response.ByteSize() < 4 * request.ByteSize()
    _, *refused = lags_from_wire(response)
    assert {str(each) for each in refused} == {"ask another broker"}


def test_a_reader_of_an_earlier_release_finds_each_refused_partition_and_its_code() -> None:
    damaged = Error(code=CorruptLogError.code, message="damaged")  # type: ignore[arg-type]
    moved = Error(code=NotLeaderError.code, message="ask another")  # type: ignore[arg-type]
    known = MeasuredLag(0, 80, 9, 1)
    response = lags_to_wire([moved, known, damaged, moved, damaged])
    by_index = {each.index: each.error.code for each in response.refused}
    assert by_index == {0: moved.code, 2: damaged.code, 3: moved.code, 4: damaged.code}
    found = lags_from_wire(response)
    assert found.pop(1) == known
    assert list(map(str, found)) == ["ask another", "damaged", "ask another", "damaged"]


def test_many_partitions_are_answered_in_the_order_of_the_request() -> None:
    found = measured(*(Unread(number + 1, WallMs(1)) for number in range(40)))
    assert [lag.unread_bytes for lag in found] == list(range(1, 41))


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (pb.DescribeLagsRequest(topic_ids=[b"t" * 16], topics=[0]), "1 \\(topics\\), 0 \\(part"),
        (
            pb.DescribeLagsRequest(
                topic_ids=[b"t" * 16],
                topics=[1],
                partitions=[0],
                current_leader_epochs=[-1],
                offsets=[0],
            ),
            "topic number 1, counted from 0, of 1",
        ),
        (pb.DescribeLagsRequest(topic_ids=[b"short"]), "a topic id is 16 bytes, but 5 came"),
    ],
)
def test_a_request_whose_columns_do_not_fit_is_refused(
    request_: pb.DescribeLagsRequest, problem: str
) -> None:
    with pytest.raises(MalformedRequestError, match=problem):
        asyncio.run(leaders_of().describe(request_))
