"""Writes the ends of transactions where this broker leads, as their coordinators say.

Markers of one call for the same partition share a control batch. A result says that the marker is
committed, or why it is not: the coordinator asks again, and a marker that is there already counts.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from millrace.broker.coordinator.staged_commits import StagedCommits
from millrace.broker.replica.partition import Partition
from millrace.broker.replica.partitions import Partitions
from millrace.core.errors import MalformedRequestError, MillraceError, RequestTimedOutError
from millrace.core.ids import (
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicPartition,
)
from millrace.core.records.markers import BUMPING, NOT_BUMPING, Marker
from millrace.core.replica.replication.appends import Waiter
from millrace.proto.errors import error_to_wire
from millrace.proto.v1 import transactions_pb2 as pb

RESULTS_MAX: Final = 10_000
"""Partitions and groups of all markers in one call."""
_COMMIT_SECONDS: Final = 5.0

_Wanted = list[tuple[int, Marker]]
"""Markers for one partition, each with the number of its result."""


class _Commit:
    """Waits for the markers of one partition; the owner of their append."""

    def __init__(self) -> None:
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_append_done(self, waiter: Waiter) -> None:
        """Implement `AppendOwner`."""
        if self._done.done():
            return  # Nobody waits any more.
        if waiter.error is not None:
            self._done.set_exception(waiter.error)
        else:
            self._done.set_result(None)

    async def committed(self) -> None:
        """Wait.

        Raises:
            MillraceError: the append failed, or takes too long.
        """
        try:
            async with asyncio.timeout(_COMMIT_SECONDS):
                await self._done
        except TimeoutError:
            raise RequestTimedOutError(
                f"the in-sync replicas did not commit the marker within {_COMMIT_SECONDS:g} s"
            ) from None


class MarkerWriter:
    """Answers `Replica.WriteMarkers`.

    Args:
        partitions: of this broker.
        commits: of groups, which wait for the ends of transactions.
    """

    def __init__(self, partitions: Partitions, commits: StagedCommits) -> None:
        self._partitions = partitions
        self._commits = commits

    async def write(
        self, request: pb.WriteMarkersRequest, _: object = None
    ) -> pb.WriteMarkersResponse:
        """Write all that can be written, and answer once it is committed.

        Raises:
            MalformedRequestError: the request breaks a bound.
        """
        results: list[MillraceError | None] = []
        wanted: dict[TopicPartition, _Wanted] = {}
        of_groups: list[tuple[int, str, Marker]] = []
        for said in request.markers:
            marker = _marker(said)
            for place in said.partitions:
                topic_partition = TopicPartition(TopicId(place.topic_id), place.partition)
                wanted.setdefault(topic_partition, []).append((len(results), marker))
                results.append(None)
            for group in said.groups:
                of_groups.append((len(results), group, marker))
                results.append(None)
        if len(results) > RESULTS_MAX:
            raise MalformedRequestError(
                f"{len(results)} ends of transactions in one call: at most {RESULTS_MAX} may be"
            )
        await asyncio.gather(
            *(self._write(place, markers, results) for place, markers in wanted.items()),
            *(self._end(number, group, marker, results) for number, group, marker in of_groups),
        )
        return pb.WriteMarkersResponse(results=map(_result, results))

    async def _write(
        self, place: TopicPartition, wanted: _Wanted, results: list[MillraceError | None]
    ) -> None:
        """Write the markers of one partition, and note why not."""
        try:
            partition = self._partitions.get(place)
            if partition.is_internal:
                raise MalformedRequestError(
                    f"topic {partition.topic!r} is the cluster's own, and takes no transactions",
                    topic_partition=place,
                )
            refusals = await write_markers(partition, [marker for _, marker in wanted])
            for (number, _), refusal in zip(wanted, refusals, strict=True):
                results[number] = refusal
        except MillraceError as error:
            for number, _ in wanted:
                results[number] = error

    async def _end(
        self, number: int, group: str, marker: Marker, results: list[MillraceError | None]
    ) -> None:
        """Resolve the positions of one group, and note why not."""
        try:
            await self._commits.end(group, marker)
        except MillraceError as error:
            results[number] = error


async def write_markers(
    partition: Partition, markers: Sequence[Marker]
) -> Sequence[MillraceError | None]:
    """Write markers of one partition; return, once they are committed, why one is refused.

    Raises:
        MillraceError: all of them are refused, or may not be committed.
    """
    commit = _Commit()
    appended = partition.append_markers(markers, commit)
    if appended.waiter is not None and not appended.waiter.is_done:
        await commit.committed()
    return appended.refusals


def _marker(said: pb.Marker) -> Marker:
    if said.version not in (BUMPING, NOT_BUMPING) or said.producer_id < 0:
        raise MalformedRequestError(
            f"a marker of version {said.version} for producer {said.producer_id}: a later release "
            "has sent it"
        )
    return Marker(
        ProducerId(said.producer_id),
        ProducerEpoch(said.producer_epoch),
        said.committed,
        LeaderEpoch(said.coordinator_epoch),
        said.version,
    )


def _result(error: MillraceError | None) -> pb.MarkerResult:
    if error is None:
        return pb.MarkerResult()
    return pb.MarkerResult(error=error_to_wire(error, is_write=True))
