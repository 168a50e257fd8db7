"""A leader's answers about lags: of deleted records, of records without a time, of failures."""

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.stamped_batches import TOPIC_PARTITION

from millrace.broker.rpc.lags import Lags
from millrace.broker.runtime.clock import wall_now
from millrace.broker.runtime.turns import Turns
from millrace.broker.storage.log import Unread
from millrace.core.errors import NotLeaderError, UnknownServerError
from millrace.core.ids import NO_TIMESTAMP, Offset, TopicPartition, WallMs
from millrace.core.metadata.model import Listener
from millrace.proto.errors import error_from_wire
from millrace.proto.v1 import fetch_pb2 as pb
from millrace.proto.v1.common_pb2 import TopicPartition as NamedPartition


class Log:
    """A log of 80 records, and what a reader has not read of it."""

    log_start_offset = Offset(0)
    directory = "/0/log"

    def __init__(self, outcome: Unread | Exception) -> None:
        self.outcome = outcome

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
            check_epoch=lambda _: None, check_end_offset=lambda: None, last_stable_offset=80
        )
        self._held = [SimpleNamespace(leader=leader, log=log) for log in logs]

    def get(self, topic_partition: TopicPartition) -> SimpleNamespace:
        if topic_partition.partition >= len(self._held):
            raise NotLeaderError("ask another broker")
        return self._held[topic_partition.partition]


class ReadThreads:
    """Do what they are asked, at once."""

    async def call(self, log_dir: str, job: Callable[..., Any], *args: Any) -> Any:
        return job(*args)


def lags(*outcomes: Unread | Exception, asked: int | None = None) -> list[pb.Lag]:
    """Ask for the lag of a reader at offset 5 in each partition."""
    measured = Lags(
        Partitions([Log(each) for each in outcomes]),  # type: ignore[arg-type]
        ReadThreads(),  # type: ignore[arg-type]
        Turns(),
        Listener.CLIENTS,
    )
    queries = [
        pb.LagQuery(
            topic_partition=NamedPartition(topic_id=TOPIC_PARTITION.topic_id, partition=number),
            current_leader_epoch=-1,
            offset=5,
        )
        for number in range(len(outcomes) if asked is None else asked)
    ]
    request = pb.DescribeLagsRequest(partitions=queries)
    return list(asyncio.run(measured.describe(request)).lags)


def test_a_lag_is_as_old_as_the_first_record_that_is_not_read() -> None:
    (lag,) = lags(Unread(700, WallMs(wall_now() - 5000)))
    assert (lag.end_offset, lag.unread_bytes) == (80, 700)
    assert 5000 <= lag.unread_ms < 60_000
    (of_the_future,) = lags(Unread(700, WallMs(wall_now() + 60_000)))
    assert of_the_future.unread_ms == 1


def test_nothing_is_unread_where_all_of_it_was_deleted() -> None:
    (lag,) = lags(Unread(0, NO_TIMESTAMP))
    assert (lag.unread_bytes, lag.unread_ms) == (0, 0)


def test_the_age_of_records_without_a_time_is_unknown() -> None:
    (lag,) = lags(Unread(700, NO_TIMESTAMP))
    assert (lag.unread_bytes, lag.unread_ms) == (700, -1)


def test_a_failure_concerns_its_partition_alone(caplog: pytest.LogCaptureFixture) -> None:
    sound, failed, elsewhere = lags(Unread(9, WallMs(1)), RecursionError("a bug"), asked=3)
    assert sound.unread_bytes == 9
    assert isinstance(error_from_wire(failed.error), UnknownServerError)
    assert failed.end_offset == 0
    assert isinstance(error_from_wire(elsewhere.error), NotLeaderError)
    (said,) = caplog.records
    assert said.exc_info is not None
    assert said.exc_info[0] is RecursionError
