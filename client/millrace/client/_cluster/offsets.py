"""Looks up offsets by place or by time at the leaders, and follows leaders that move.

A silent broker may be cut off, and no longer lead. So after two seconds of silence all brokers are
asked for the leader, and a new leader gets the request.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, TypeAlias, TypeVar

from millrace.client._cluster import wire
from millrace.client._cluster.arguments import LogEnd, log_end, whole_number
from millrace.client._cluster.cluster import LEADER_SILENCE_MS_DEFAULT, Cluster
from millrace.client._cluster.isolation import level_of
from millrace.client._cluster.pauses import spread
from millrace.core.errors import (
    ConnectionFailedError,
    InvalidRequestError,
    MillraceError,
    NotLeaderError,
    RefreshMetadataError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import (
    NO_LEADER_EPOCH,
    BrokerId,
    Leader,
    LeaderEpoch,
    Offset,
    TopicId,
    TopicPartition,
)
from millrace.core.isolation import READ_COMMITTED
from millrace.core.pauses import pause_after
from millrace.proto.lags import LagQuery, MeasuredLag, lags_from_wire, queries_to_wire
from millrace.proto.v1 import fetch_pb2
from millrace.runtime import host


@dataclass(slots=True, frozen=True)
class AfterBytes:
    """The end of the whole batches from an offset on that take at most so many stored bytes.

    One batch counts even if it is larger.
    """

    offset: int
    size: int


OffsetSpec = LogEnd | Literal["max_timestamp"] | int | AfterBytes
"""An end of the log, its newest record by time, the first record at or after a time in ms, or so
many bytes after an offset."""

_PAUSE_MS: Final = 100
_PAUSE_MS_MAX: Final = 1_000
_PAUSE_FRACTION: Final = 4


@dataclass(slots=True, frozen=True)
class OffsetAndTimestamp:
    """An offset that was looked up."""

    offset: Offset
    """-1: no record matches."""
    timestamp: int
    """The time of the record found, ms UTC; -1: there is none, or it was not asked for."""
    leader_epoch: LeaderEpoch
    """No earlier record has a later epoch; -1: not known."""
    topic_id: TopicId
    """Id of the topic that was asked: another topic of the same name has another id."""


Wanted = TypeVar("Wanted")
Found = TypeVar("Found")
_Ask: TypeAlias = Callable[
    [Cluster, BrokerId, Mapping[TopicPartition, Wanted]],
    Coroutine[Any, Any, Sequence[Found | MillraceError]],
]


async def look_up_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, OffsetSpec],
    refused: dict[TopicPartition, MillraceError] | None = None,
    *,
    isolation: str = READ_COMMITTED,
    on_known: Callable[[TopicPartition, OffsetAndTimestamp | MillraceError], None] | None = None,
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """Return an offset for each partition, in the same order.

    Elections and moved brokers are waited for, as long as the client's time-out allows.

    Args:
        cluster: whose leaders to ask.
        wanted: what to look up.
        refused: collects the errors of partitions, instead of raising them.
        isolation: of the reader who wants to know: it says where a log ends.
        on_known: see `ask_leaders`.

    Raises:
        InvalidRequestError: what is to be looked up is no place in a log, or there is no such
            isolation.
        UnknownTopicOrPartitionError: a topic is gone.
        MillraceError: the last refusal when the time is over, or one that a retry cannot solve.
    """
    places = {place: _checked_spec(at) for place, at in wanted.items()}
    ask = partial(_list_offsets, level=level_of(isolation))
    return await ask_leaders(cluster, places, ask, refused, on_known)


def _checked_spec(at: OffsetSpec) -> OffsetSpec:
    if log_end(at) or isinstance(at, AfterBytes) or at == "max_timestamp":
        return at
    time = whole_number(at)
    if time is None:
        raise InvalidRequestError(
            f'{at!r} is no place in a log: give "beginning" ("earliest"), "end" ("latest"), '
            '"max_timestamp", a time in ms UTC, or AfterBytes'
        )
    return time


async def find_epoch_ends(
    cluster: Cluster, wanted: Mapping[TopicPartition, LeaderEpoch]
) -> dict[TopicPartition, Offset]:
    """Return where the records up to a leader epoch end in each partition; -1: unknown.

    Raises:
        As `look_up_offsets`.
    """
    return await ask_leaders(cluster, wanted, _find_epoch_ends)


async def describe_lags(
    cluster: Cluster,
    positions: Mapping[TopicPartition, int],
    refused: dict[TopicPartition, MillraceError],
    *,
    isolation: str = READ_COMMITTED,
) -> dict[TopicPartition, MeasuredLag]:
    """Return how much of each partition follows a position; `refused` collects the errors."""
    ask = partial(_describe_lags, level=level_of(isolation))
    return await ask_leaders(cluster, positions, ask, refused)


async def wait_for_news(
    cluster: Cluster,
    ends: Mapping[TopicPartition, Offset],
    timeout_s: float,
    *,
    isolation: str = READ_COMMITTED,
) -> None:
    """Wait until the end of a partition moves at its leader, or the time is over.

    A leader that cannot be asked ends the wait as well: a look-up gives the reason.
    """
    level = level_of(isolation)
    requests: dict[BrokerId, fetch_pb2.ListOffsetsRequest] = {}
    for place, end in ends.items():
        leader = cluster.metadata.leader_of(place)
        if leader is None or leader.broker_id < 0:
            return
        request = requests.setdefault(leader.broker_id, fetch_pb2.ListOffsetsRequest())
        request.max_wait_ms = max(1, int(timeout_s * 1000))
        request.isolation_level = level
        request.partitions.add(
            topic_partition=wire.partition_to_wire(place),
            current_leader_epoch=leader.leader_epoch,  # P6
            latest_after=end,
        )
    if not requests:
        return
    tasks = [
        asyncio.ensure_future(_ask_for_offsets(cluster, broker_id, request))
        for broker_id, request in requests.items()
    ]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def ask_leaders(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, Wanted],
    ask: _Ask[Wanted, Found],
    refused: dict[TopicPartition, MillraceError] | None = None,
    on_known: Callable[[TopicPartition, Found | MillraceError], None] | None = None,
) -> dict[TopicPartition, Found]:
    """Ask the leader of each partition, and again after refusals that may pass.

    Args:
        cluster: whose leaders to ask.
        wanted: the question about each partition.
        ask: asks one broker; returns its answers, in the order of the questions.
        refused: collects the errors of partitions, instead of raising them.
        on_known: called with what is found of each partition, or with its error, while others may
            still be asked again.

    Raises:
        MillraceError: as in `look_up_offsets`.
    """
    tell = on_known or (lambda place, known: None)
    shortest_ms, longest_ms = spread(_PAUSE_MS, _PAUSE_MS_MAX)
    began_at = host.monotonic_s()
    deadline = began_at + cluster.timeout_s
    found: dict[TopicPartition, Found] = {}
    missing = dict(wanted)
    while True:
        asked = {place: cluster.metadata.leader_of(place) for place in missing}
        errors = await _ask_each_once(cluster, missing, asked, ask, found)
        for place in missing:
            if place in found:
                tell(place, found[place])
        now = host.monotonic_s()
        in_vain_ms = int((now - began_at) * 1000)
        pause_s = pause_after(in_vain_ms, shortest_ms, longest_ms, fraction=_PAUSE_FRACTION) / 1000
        is_over = now + pause_s >= deadline
        for place, error in list(errors.items()):
            gone = _why_gone(cluster, place)
            if gone is not None or is_over or not error.retriable:
                error = errors[place] = gone or error
                if refused is None:
                    raise error
                refused[place] = errors.pop(place)
                tell(place, refused[place])
        if not errors:
            return {place: found[place] for place in wanted if place in found}
        missing = {place: wanted[place] for place in errors}
        for place, error in errors.items():
            if isinstance(error, RefreshMetadataError) and error.leader is not None:
                cluster.metadata.learn_leader(place, error.leader)
        # A refusal may name the leader, which saves the look-up.
        if not all(_has_new_leader(cluster, place, asked[place]) for place in errors):
            await asyncio.sleep(pause_s)
            names = cluster.metadata.topic_names
            await cluster.look_for_news({names.get(place.topic_id, "") for place in errors} - {""})


def _has_new_leader(cluster: Cluster, place: TopicPartition, before: Leader | None) -> bool:
    """Return whether another leader or leader epoch of a partition is known by now."""
    leader = cluster.metadata.leader_of(place)
    return leader is not None and leader.broker_id >= 0 and leader != before


def _why_gone(cluster: Cluster, place: TopicPartition) -> MillraceError | None:
    """Return the error for a partition whose topic is gone; None: it is there."""
    if place.topic_id in cluster.metadata.topic_names:
        return None
    return UnknownTopicOrPartitionError(f"the topic with id {place.topic_id.hex()} was deleted")


async def _ask_each_once(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, Wanted],
    leaders: Mapping[TopicPartition, Leader | None],
    ask: _Ask[Wanted, Found],
    found: dict[TopicPartition, Found],
) -> dict[TopicPartition, MillraceError]:
    """Ask each leader once; return the errors by partition."""
    errors: dict[TopicPartition, MillraceError] = {}
    by_broker: dict[BrokerId, list[TopicPartition]] = {}
    for place, leader in leaders.items():
        if leader is None or leader.broker_id < 0:
            errors[place] = NotLeaderError(
                f"partition {place.partition} of topic "
                f"{cluster.metadata.name_of(place.topic_id)!r} has no leader at present"
            )
        else:
            by_broker.setdefault(leader.broker_id, []).append(place)
    asks = {
        asyncio.create_task(ask(cluster, broker_id, {place: wanted[place] for place in places})): (
            places
        )
        for broker_id, places in by_broker.items()
    }
    try:
        if asks:
            await _until_answered(cluster, asks)
    finally:
        for task in asks:
            task.cancel()
        answered = await asyncio.gather(*asks, return_exceptions=True)
    for places, answers in zip(by_broker.values(), answered, strict=True):
        if isinstance(answers, asyncio.CancelledError):
            answers = ConnectionFailedError("the broker is silent, and another leads by now")
        if isinstance(answers, ConnectionFailedError):
            errors.update(dict.fromkeys(places, answers))
            continue
        if isinstance(answers, BaseException):
            raise answers
        for place, answer in wire.paired(places, answers):
            if isinstance(answer, MillraceError):
                errors[place] = answer
            else:
                found[place] = answer
    return errors


async def _until_answered(
    cluster: Cluster, asks: Mapping["asyncio.Task[Any]", Sequence[TopicPartition]]
) -> None:
    """Wait until leaders have answered, or others are known to lead instead of those that did not.

    A task ends cancelled when one of its partitions is led by another broker, or in another epoch.
    """
    waiting = set(asks)
    while True:
        _, waiting = await asyncio.wait(waiting, timeout=LEADER_SILENCE_MS_DEFAULT / 1000)
        asked = {
            place: cluster.metadata.leader_of(place) for task in waiting for place in asks[task]
        }
        if not asked:
            return
        topics = {cluster.metadata.topic_names.get(place.topic_id, "") for place in asked} - {""}
        news = partial(_any_has_new_leader, cluster, asked)
        inquiry = asyncio.create_task(cluster.ask_all_brokers(topics, news))
        try:
            answer = asyncio.gather(*waiting, return_exceptions=True)
            await asyncio.wait((inquiry, answer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            inquiry.cancel()
            await asyncio.gather(inquiry, return_exceptions=True)
        for task in waiting:
            if any(_has_new_leader(cluster, place, asked[place]) for place in asks[task]):
                task.cancel()


def _any_has_new_leader(cluster: Cluster, asked: Mapping[TopicPartition, Leader | None]) -> bool:
    return any(_has_new_leader(cluster, place, leader) for place, leader in asked.items())


async def _ask_for_offsets(
    cluster: Cluster, broker_id: BrokerId, request: fetch_pb2.ListOffsetsRequest
) -> Sequence[fetch_pb2.ListedOffset]:
    response: fetch_pb2.ListOffsetsResponse = await cluster.on(
        await cluster.broker(broker_id), lambda connection: connection.fetch.ListOffsets(request)
    )
    return response.offsets


async def ask_for_epoch_ends(
    cluster: Cluster, broker_id: BrokerId, request: fetch_pb2.OffsetsForLeaderEpochRequest
) -> Sequence[fetch_pb2.LeaderEpochResult]:
    """Ask a broker where leader epochs end; return the ends, or errors, in the request's order.

    Raises:
        ConnectionFailedError: no answer.
    """
    response: fetch_pb2.OffsetsForLeaderEpochResponse = await cluster.on(
        await cluster.broker(broker_id),
        lambda connection: connection.fetch.OffsetsForLeaderEpoch(request),
    )
    return response.results


async def _list_offsets(
    cluster: Cluster,
    broker_id: BrokerId,
    wanted: Mapping[TopicPartition, OffsetSpec],
    *,
    level: fetch_pb2.IsolationLevel,
) -> list[OffsetAndTimestamp | MillraceError]:
    request = fetch_pb2.ListOffsetsRequest(
        partitions=[_query(cluster, place, at) for place, at in wanted.items()],
        isolation_level=level,
    )
    return [
        wire.error_of(listed)
        or OffsetAndTimestamp(
            Offset(listed.offset),
            listed.timestamp,
            LeaderEpoch(listed.leader_epoch),
            place.topic_id,
        )
        for place, listed in wire.paired(
            wanted, await _ask_for_offsets(cluster, broker_id, request)
        )
    ]


async def _find_epoch_ends(
    cluster: Cluster, broker_id: BrokerId, wanted: Mapping[TopicPartition, LeaderEpoch]
) -> list[Offset | MillraceError]:
    request = fetch_pb2.OffsetsForLeaderEpochRequest(
        partitions=[
            fetch_pb2.LeaderEpochQuery(
                topic_partition=wire.partition_to_wire(place),
                current_leader_epoch=known_epoch(cluster, place),
                leader_epoch=epoch,
            )
            for place, epoch in wanted.items()
        ]
    )
    return [
        wire.error_of(result) or Offset(result.end.end_offset)
        for result in await ask_for_epoch_ends(cluster, broker_id, request)
    ]


async def _describe_lags(
    cluster: Cluster,
    broker_id: BrokerId,
    wanted: Mapping[TopicPartition, int],
    *,
    level: fetch_pb2.IsolationLevel,
) -> list[MeasuredLag | MillraceError]:
    request = queries_to_wire(
        [LagQuery(place, known_epoch(cluster, place), offset) for place, offset in wanted.items()],
        level,
    )
    response: fetch_pb2.DescribeLagsResponse = await cluster.on(
        await cluster.broker(broker_id), lambda c: c.fetch.DescribeLags(request)
    )
    return [
        # One error is the answer for many partitions, so it names none.
        answer.naming(f"{cluster.metadata.name_of(place.topic_id)}-{place.partition}")
        if isinstance(answer, MillraceError)
        else answer
        for place, answer in wire.paired(wanted, lags_from_wire(response))
    ]


def known_epoch(cluster: Cluster, place: TopicPartition) -> LeaderEpoch:
    """Return the leader epoch to name to a partition's leader (P6)."""
    leader = cluster.metadata.leader_of(place)
    return NO_LEADER_EPOCH if leader is None else leader.leader_epoch


def _query(
    cluster: Cluster, place: TopicPartition, at: OffsetSpec
) -> fetch_pb2.ListOffsetsPartition:
    query = fetch_pb2.ListOffsetsPartition(
        topic_partition=wire.partition_to_wire(place),
        current_leader_epoch=known_epoch(cluster, place),
    )
    end = log_end(at)
    if end == "beginning":
        query.earliest = True
    elif end == "end":
        query.latest = True
    elif at == "max_timestamp":
        query.max_timestamp = True
    elif isinstance(at, AfterBytes):
        query.bytes_after.offset = at.offset
        query.bytes_after.size = at.size
    else:
        assert isinstance(at, int), "checked at the door"
        query.timestamp = at
    return query
