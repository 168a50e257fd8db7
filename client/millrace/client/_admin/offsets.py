"""Looks up offsets in partitions, deletes the records before them, and waits for later ones."""

from collections.abc import Iterable, Mapping
from typing import Literal, overload

from millrace.client._admin.administration import Administration
from millrace.client._cluster.arguments import checked_offset, checked_place
from millrace.client._cluster.offsets import (
    OffsetAndTimestamp,
    OffsetSpec,
    find_epoch_ends,
    look_up_offsets,
    wait_for_news,
)
from millrace.client._cluster.record_deletions import delete_records
from millrace.core.errors import MillraceError
from millrace.core.ids import LeaderEpoch, Offset, TopicPartition
from millrace.core.isolation import READ_COMMITTED, Isolation
from millrace.core.topics import PartitionName, parse_topic_name


class OffsetAdministration(Administration):
    """The part of `Admin` that is about offsets."""

    @overload
    async def list_offsets(
        self,
        partitions: Iterable[PartitionName | str] | Mapping[PartitionName | str, OffsetSpec],
        at: OffsetSpec = "end",
        *,
        return_errors: Literal[False] = False,
        isolation: Isolation = READ_COMMITTED,
    ) -> dict[PartitionName, OffsetAndTimestamp]: ...

    @overload
    async def list_offsets(
        self,
        partitions: Iterable[PartitionName | str] | Mapping[PartitionName | str, OffsetSpec],
        at: OffsetSpec = "end",
        *,
        return_errors: bool,
        isolation: Isolation = READ_COMMITTED,
    ) -> dict[PartitionName, OffsetAndTimestamp | MillraceError]: ...

    async def list_offsets(
        self,
        partitions: Iterable[PartitionName | str] | Mapping[PartitionName | str, OffsetSpec],
        at: OffsetSpec = "end",
        *,
        return_errors: bool = False,
        isolation: Isolation = READ_COMMITTED,
    ) -> Mapping[PartitionName, OffsetAndTimestamp | MillraceError]:
        """Return an offset for each partition, of any number of topics at once.

            await admin.list_offsets("orders")
            await admin.list_offsets(["orders", ("payments", 3)], "beginning")
            await admin.list_offsets({("orders", 0): "end", ("payments", 3): 1672531200000})

        A partition without a leader is waited for, as long as `request_timeout_ms` allows.

        Args:
            partitions: a topic for all of its partitions, or several of topics and pairs of topic
                and number; as a mapping, each with its own place in the log.
            at: the place in the log: "beginning" or "earliest", "end" or "latest",
                "max_timestamp" for the record with the latest timestamp, a time in ms UTC for the
                first record at or after it, or `AfterBytes`. A mapping does not use it.
            return_errors: return a partition's error in the place of its offset; else the first
                error is raised.
            isolation: of the reader who wants to know, which says where a log ends: with
                "read_committed" before the first record of an open transaction, with
                "read_uncommitted" after the last replicated record.

        Returns:
            The offsets by topic, as it was named, and number.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic or partition.
            InvalidRequestError: a partition, a place in the log, or the isolation is not one.
        """
        asked: dict[PartitionName, tuple[TopicPartition, OffsetSpec]] = {}
        for place, found, spec in await self._resolved(partitions, at):
            asked[place] = found, spec
        errors: dict[TopicPartition, MillraceError] | None = {} if return_errors else None
        offsets = await look_up_offsets(
            self._cluster, dict(asked.values()), errors, isolation=isolation
        )
        outcomes: dict[TopicPartition, OffsetAndTimestamp | MillraceError]
        outcomes = {**offsets, **(errors or {})}
        return {place: outcomes[found] for place, (found, _) in asked.items()}

    async def _resolved(
        self,
        partitions: Iterable[PartitionName | str] | Mapping[PartitionName | str, OffsetSpec],
        at: OffsetSpec,
    ) -> list[tuple[PartitionName, TopicPartition, OffsetSpec]]:
        """Return each partition as it was named, what it is, and the place in its log."""
        if isinstance(partitions, str):
            partitions = [partitions]
        if not isinstance(partitions, Mapping):
            partitions = dict.fromkeys(partitions, at)
        named = {
            item if isinstance(item, str) else checked_place(item): spec
            for item, spec in partitions.items()
        }
        topics = {item if isinstance(item, str) else item[0] for item in named}
        if topics:
            await self._cluster.refresh(sorted(str(parse_topic_name(topic)) for topic in topics))
        resolved = []
        for item, spec in named.items():
            if isinstance(item, str):
                numbers = range(len((await self._cluster.topic(item)).partitions))
                places = [(item, number) for number in numbers]
            else:
                places = [item]
            resolved += [(place, await self._place(*place), spec) for place in places]
        return resolved

    async def delete_records(
        self, before: Mapping[PartitionName, int]
    ) -> dict[PartitionName, int | MillraceError]:
        """Delete the records of partitions before an offset.

        An offset in the answer is a promise: the records before it are deleted on all replicas that
        may lead, and do not come back after a crash or an election. Space is freed by whole
        segments. Consumers with an earlier position go on as `auto_offset_reset` says.

            await admin.delete_records({("orders", 0): 1200})

            found = await admin.list_offsets("orders", 1672531200000)  # 2023-01-01
            before = {place: at.offset for place, at in found.items() if at.offset >= 0}
            await admin.delete_records(before)

        Partitions are independent of each other. To repeat a call is safe, and needed after an
        error that is `retriable`, or whose `appended` is MAYBE: then the records may come back.

        Args:
            before: the offset, by topic and number; at most the partition's end.

        Returns:
            For each partition the first offset that is left, or why not: an
            `OffsetOutOfRangeError` if not all records before the offset are committed,
            `NotEnoughReplicasError` with fewer replicas in sync than `min.insync.replicas`,
            `RequestTimedOutError` if a replica that may lead has not deleted its records in time,
            `InvalidTopicError` for an internal topic.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic or partition.
            InvalidRequestError: a partition or an offset is not one.
        """
        offsets = {place: checked_offset(offset, place) for place, offset in before.items()}
        places = await self._places(before)
        refused: dict[TopicPartition, MillraceError] = {}
        wanted = {places[place]: offset for place, offset in offsets.items()}
        deleted = await delete_records(self._cluster, wanted, refused)
        return {place: refused.get(at) or deleted[at] for place, at in places.items()}

    async def wait_for_news(
        self,
        ends: Mapping[PartitionName, int],
        timeout_ms: int,
        *,
        isolation: Isolation = READ_COMMITTED,
    ) -> None:
        """Wait until the end of a partition moves, or the time is over.

        The brokers wait, so there are no requests meanwhile. A partition whose leader cannot be
        asked ends the wait, too: a look-up gives the reason.

        Args:
            ends: where partitions end, by topic and number; one at least.
            timeout_ms: how long to wait; brokers have a bound of their own, `fetch_wait_ms_max`.
            isolation: as for `list_offsets`.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic or partition.
        """
        places = await self._places(ends)
        known = {places[place]: Offset(end) for place, end in ends.items()}
        await wait_for_news(self._cluster, known, timeout_ms / 1000, isolation=isolation)

    async def find_epoch_ends(
        self, epochs: Mapping[PartitionName, int]
    ) -> dict[PartitionName, int]:
        """Return where the records up to a leader epoch end, for each partition.

        A reader that has read further in that epoch, or before it, has read records that are lost
        since: after an unclean election.

        Args:
            epochs: the leader epoch, by topic and number.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic or partition.
        """
        places = await self._places(epochs)
        found = await find_epoch_ends(
            self._cluster, {places[place]: LeaderEpoch(epoch) for place, epoch in epochs.items()}
        )
        return {place: found[places[place]] for place in epochs}
