"""Lags on the wire: columns, with a value for each partition.

A thousand partitions are asked about at once, and a message for each of them would cost more than
to measure it. Partitions that have no answer are a list beside the columns; the text of an error
that many of them have is there once.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Final, NamedTuple

from millrace.core.errors import MillraceError, UnknownServerError
from millrace.core.ids import LeaderEpoch, TopicId, TopicPartition
from millrace.proto.errors import error_from_wire
from millrace.proto.v1 import fetch_pb2 as pb
from millrace.proto.v1.common_pb2 import Error

_UNKNOWN_MS: Final = -1


class LagQuery(NamedTuple):
    """What to ask the leader of a partition.

    Attributes:
        topic_partition: the partition.
        leader_epoch: of the leader, as the caller knows it (P6); -1: unknown.
        offset: of the record that the reader reads next.
    """

    topic_partition: TopicPartition
    leader_epoch: LeaderEpoch
    offset: int


class MeasuredLag(NamedTuple):
    """What a leader answers.

    Attributes:
        log_start_offset: records before it are gone.
        end_offset: of what readers may see.
        unread_bytes: stored, of the batches that hold the unread records.
        unread_ms: age of the first of these batches; 0: all is read; None: unknown.
    """

    log_start_offset: int
    end_offset: int
    unread_bytes: int
    unread_ms: int | None


_NOTHING: Final = MeasuredLag(0, 0, 0, None)


def queries_to_wire(
    queries: Sequence[LagQuery],
    level: pb.IsolationLevel = pb.ISOLATION_LEVEL_READ_COMMITTED,
) -> pb.DescribeLagsRequest:
    """Return the request of some queries; the level says where partitions end."""
    places = [query.topic_partition for query in queries]
    numbers: dict[TopicId, int] = {}
    for place in places:
        numbers.setdefault(place.topic_id, len(numbers))
    return pb.DescribeLagsRequest(
        topic_ids=numbers,
        isolation_level=level,
        topics=[numbers[place.topic_id] for place in places],
        partitions=[place.partition for place in places],
        current_leader_epochs=[query.leader_epoch for query in queries],
        offsets=[query.offset for query in queries],
    )


def lags_to_wire(answers: Sequence[MeasuredLag | Error]) -> pb.DescribeLagsResponse:
    """Return the response of answers, or errors, in the order of the queries.

    The text of an error object that is the answer to many queries goes on the wire once.
    """
    lags = [_NOTHING if isinstance(answer, Error) else answer for answer in answers]
    refused: dict[int, list[pb.RefusedLag]] = {}
    for index, answer in enumerate(answers):
        if isinstance(answer, Error):
            same = refused.setdefault(id(answer), [])
            error = Error(code=answer.code, retriable=answer.retriable) if same else answer
            same.append(pb.RefusedLag(index=index, error=error))
    return pb.DescribeLagsResponse(
        log_start_offsets=[lag.log_start_offset for lag in lags],
        end_offsets=[lag.end_offset for lag in lags],
        unread_bytes=[lag.unread_bytes for lag in lags],
        unread_ms=[_UNKNOWN_MS if lag.unread_ms is None else lag.unread_ms for lag in lags],
        refused=chain.from_iterable(refused.values()),
    )


def lags_from_wire(response: pb.DescribeLagsResponse) -> list[MeasuredLag | MillraceError]:
    """Return the answers of a response, or errors, in the order of the queries.

    Raises:
        UnknownServerError: one is about no query.
    """
    answers: list[MeasuredLag | MillraceError] = list(
        map(
            MeasuredLag,
            response.log_start_offsets,
            response.end_offsets,
            response.unread_bytes,
            (None if unread_ms < 0 else unread_ms for unread_ms in response.unread_ms),
        )
    )
    whole = Error()
    for refused in response.refused:
        if refused.error.message or refused.error.code != whole.code:
            whole = refused.error
        if refused.index >= len(answers):
            raise UnknownServerError(f"answer {refused.index} is one of {len(answers)}")
        answers[refused.index] = error_from_wire(whole)
    return answers
