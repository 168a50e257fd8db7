"""Moves the replicas of partitions, elects leaders among them, and describes their logs."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, Protocol

from millrace.client._admin.administration import Administration
from millrace.client._admin.descriptions import DamagedReplica, LogDescription, log_from_wire
from millrace.client._cluster import wire
from millrace.client._cluster.arguments import checked_broker, checked_place, checked_word
from millrace.client._cluster.calls import ChangeResponse
from millrace.client._cluster.connection import Connection
from millrace.core.errors import (
    MalformedRequestError,
    MillraceError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import BrokerId, TopicId, TopicPartition
from millrace.core.topics import PartitionName, parse_topic_name
from millrace.proto.v1 import cluster_pb2, common_pb2

_KINDS: Final = {
    "preferred": cluster_pb2.ELECTION_KIND_PREFERRED,
    "unclean": cluster_pb2.ELECTION_KIND_UNCLEAN,
}


class _PartitionResults(ChangeResponse, Protocol):
    """The response to a request about several partitions."""

    @property
    def results(self) -> Sequence[cluster_pb2.PartitionResult]: ...


class ReplicaAdministration(Administration):
    """The part of `Admin` that is about replicas."""

    async def reassign_partitions(
        self, assignments: Mapping[PartitionName, Sequence[int] | None]
    ) -> dict[PartitionName, MillraceError | None]:
        """Change which brokers hold partitions; return what was refused, None where it has begun.

        New replicas copy the log first; the old ones go when all new ones are in sync.
        `describe_topics` (`adding_replicas`, `isr`) and `describe_logs` (`followers`) show the
        progress. A `ReassignmentRefusedError` names its `reason`: others are under way, nothing is,
        or no more fit at present.

            refused = await admin.reassign_partitions({("orders", 0): [1, 2, 3]})

        Args:
            assignments: the new replicas of each partition, the preferred leader first; None takes
                back what is under way.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic.
            BrokerIdNotRegisteredError: a replica is no broker's number.
        """
        request = cluster_pb2.ReassignPartitionsRequest()
        for named, replicas in assignments.items():
            place = await self._place_to_wire(*checked_place(named))
            request.reassignments.add(
                topic_partition=place,
                replicas=map(checked_broker, replicas or ()),
                cancel=replicas is None,
            )
        return await self._change_partitions(lambda c: c.cluster.ReassignPartitions(request))

    async def elect_leaders(
        self,
        partitions: Iterable[PartitionName] | None = None,
        *,
        kind: Literal["preferred", "unclean"] = "preferred",
    ) -> dict[PartitionName, MillraceError | None]:
        """Elect other leaders; return what was refused, None where the wanted leader leads.

            await admin.elect_leaders()  # The preferred leaders, wherever they can lead.

        Args:
            partitions: topic and number; None: all whose preferred leader does not lead, which is
                possible with `kind="preferred"` only.
            kind: "preferred": the first of the replicas, if it is in sync. "unclean": any live
                replica if there is no leader: acknowledged records that only others have are lost.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic.
            InvalidRequestError: an unclean election of all partitions, or another kind.
        """
        wanted = checked_word(kind, _KINDS, "kind of election")
        if kind == "unclean" and partitions is None:
            raise MalformedRequestError(
                "an unclean election may lose records: name the partitions that it is for"
            )
        request = cluster_pb2.ElectLeadersRequest(kind=wanted)
        if partitions is not None:
            named = [await self._place_to_wire(*checked_place(place)) for place in partitions]
            if not named:
                return {}
            request.partitions.extend(named)
        else:
            await self._cluster.refresh(None)  # The answer names topics by their ids.
        return await self._change_partitions(lambda c: c.cluster.ElectLeaders(request))

    async def _place_to_wire(self, topic: str, partition: int) -> common_pb2.TopicPartition:
        info = await self._cluster.topic(topic)
        if partition < 0:
            raise UnknownTopicOrPartitionError(f"topic {info.name!r} has no partition {partition}")
        return wire.partition_to_wire(TopicPartition(info.topic_id, partition))

    async def _change_partitions(
        self, method: Callable[[Connection], Awaitable[_PartitionResults]]
    ) -> dict[PartitionName, MillraceError | None]:
        response = await self._change(method, lambda response: response)
        outcomes: dict[PartitionName, MillraceError | None] = {}
        for result in response.results:
            named = result.topic_partition
            topic = self._cluster.metadata.name_of(TopicId(named.topic_id))
            outcomes[topic, named.partition] = wire.error_of(result)
        return outcomes

    async def describe_logs(self, topic: str | None = None) -> list[LogDescription]:
        """Return offsets and sizes of the replicas on all brokers; of one topic or of all.

        The leaders' descriptions tell how far each follower is. Brokers that are fenced or do not
        answer are left out.

            for log in await admin.describe_logs("orders"):
                for follower in log.followers:
                    print(log.partition, follower.broker_id, follower.log_end_offset)
        """
        answers, _ = await self._ask_for_logs(topic)
        described = [
            log_from_wire(log, name, broker_id)
            for log, name, broker_id in answers
            # Else a replica that the broker does not hold.
            if wire.error_of(log) is None
        ]
        return sorted(described, key=lambda log: (log.topic, log.partition, log.broker_id))

    async def describe_damage(self, topic: str | None = None) -> list[DamagedReplica]:
        """Return replicas that are offline, lack committed records, or were fetched again.

        Of one topic or of all; brokers are left out as in `describe_logs`.

            for replica in await admin.describe_damage():
                print(replica.topic, replica.partition, replica.broker_id, replica.error)
        """
        return (await self._describe_damage(topic, ()))[0]

    async def _describe_damage(
        self, topic: str | None, unreachable: Sequence[BrokerId]
    ) -> tuple[list[DamagedReplica], list[BrokerId]]:
        """Return damaged replicas, and the brokers that did not say whether they have any."""
        answers, silent = await self._ask_for_logs(
            topic, only_damaged=True, unreachable=unreachable
        )
        described = [
            DamagedReplica(
                name,
                log.topic_partition.partition,
                broker_id,
                log.error.message,
                tuple(log.damaged_logs),
            )
            for log, name, broker_id in answers
        ]
        described.sort(key=lambda replica: (replica.topic, replica.partition, replica.broker_id))
        return described, silent

    async def _ask_for_logs(
        self,
        topic: str | None,
        *,
        only_damaged: bool = False,
        unreachable: Sequence[BrokerId] = (),
    ) -> tuple[list[tuple[cluster_pb2.LogDescription, str, BrokerId]], list[BrokerId]]:
        """Ask all living brokers.

        Returns:
            The answers, with the names of the topics; and the brokers that did not answer.
        """
        await self._cluster.look_up(
            cluster_pb2.GetMetadataRequest(
                topics=() if topic is None else [str(parse_topic_name(topic))]
            )
        )
        request = cluster_pb2.DescribeLogsRequest(only_damaged=only_damaged)
        if topic is not None:
            info = await self._cluster.topic(topic)
            for partition in info.partitions:
                request.partitions.add(topic_id=info.topic_id, partition=partition.partition)
        answers = await self._ask_brokers(lambda c: c.cluster.DescribeLogs(request), unreachable)
        name_of = self._cluster.metadata.name_of
        told = [
            (log, name_of(TopicId(log.topic_partition.topic_id)), broker_id)
            for broker_id, answer in answers.items()
            for log in ([] if answer is None else answer.logs)
        ]
        silent = [broker_id for broker_id, answer in answers.items() if answer is None]
        return told, silent
