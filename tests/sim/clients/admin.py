"""Operators' requests to a simulated cluster, sent by the shipped `Admin`.

Answers are dropped, except what is promised about deleted records.
"""

from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tests.sim.machines.machine import ClientMachine

from millrace.client import Admin
from millrace.core.errors import MillraceError
from millrace.core.ids import Offset, TopicId, TopicPartition
from millrace.core.metadata.model import DeletedTopic, Topic
from millrace.core.metadata.requests import (
    AlterTopics,
    CreateTopics,
    DeleteQuotas,
    DeleteTopics,
    DrainBroker,
    ElectionKind,
    ElectLeaders,
    PurgeTopics,
    ReassignPartitions,
    Request,
    SetQuotas,
    UndeleteTopics,
)
from millrace.core.quotas.quota import Quota


@dataclass(frozen=True, slots=True)
class TrimRecords:
    """Delete the records of a partition up to its present end."""

    topic_partition: TopicPartition


class Administration:
    """Sends one request after another, of kinds that the dice choose.

    Args:
        topics: as they are stored.
        deleted: deleted topics, as they are stored.
        on_trimmed: hears before which offset a partition's records are deleted for good.
    """

    def __init__(
        self,
        machine: ClientMachine,
        bootstrap: str,
        topics: Mapping[TopicId, Topic],
        deleted: Mapping[TopicId, DeletedTopic],
        on_trimmed: Callable[[TopicPartition, Offset], None],
    ) -> None:
        self._machine = machine
        self._bootstrap = bootstrap
        self._topics = topics
        self._deleted = deleted
        self._on_trimmed = on_trimmed

    def ask(self, request: Request | TrimRecords) -> None:
        """Send a request, and retry it for half a minute."""
        work = self._work(request)
        if work is not None:
            self._machine.process.begin(lambda: self._do(work))

    async def _do(self, work: Callable[[Admin], Coroutine[Any, Any, object]]) -> None:
        async with Admin(self._bootstrap) as admin:
            with suppress(MillraceError):
                await work(admin)

    async def _trim(self, admin: Admin, place: tuple[str, int], key: TopicPartition) -> None:
        end = (await admin.list_offsets([place]))[place].offset
        outcome = (await admin.delete_records({place: end}))[place]
        if not isinstance(outcome, MillraceError):
            self._on_trimmed(key, Offset(outcome))

    def _work(
        self, request: Request | TrimRecords
    ) -> Callable[[Admin], Coroutine[Any, Any, object]] | None:
        match request:
            case TrimRecords(key) if name := self._name(key.topic_id):
                return lambda admin: self._trim(admin, (name, key.partition), key)
            case CreateTopics(topics=[new]):
                return lambda admin: admin.create_topic(
                    new.name, new.partitions, new.replication_factor or None, new.config
                )
            case DeleteTopics(topics=[ref]) if name := self._name(ref.topic_id):
                return lambda admin: admin.delete_topic(name)
            case UndeleteTopics(topics=[ref]) if name := self._deleted_name(ref.topic_id):
                return lambda admin: admin.undelete_topic(name, topic_id=ref.topic_id)
            case PurgeTopics(topics=[ref]) if name := self._deleted_name(ref.topic_id):
                return lambda admin: admin.purge_topic(name, topic_id=ref.topic_id)
            case AlterTopics(changes=[change]) if name := self._name(change.topic.topic_id):
                return lambda admin: admin.alter_topic(name, set_config=change.set_config)
            case DrainBroker(broker_id=broker_id, is_drained=True):
                return lambda admin: admin.drain_broker(broker_id)
            case DrainBroker(broker_id=broker_id):
                return lambda admin: admin.undrain_broker(broker_id)
            case SetQuotas(quotas=[quota]):
                return lambda admin: _set_quota(admin, quota)
            case DeleteQuotas(names=[name]):
                return lambda admin: admin.delete_quota(name)
            case ReassignPartitions(reassignments=[one]) if name := self._name(one.topic_id):
                place = (name, one.partition)
                return lambda admin: admin.reassign_partitions({place: one.replicas})
            case ElectLeaders(kind=ElectionKind.UNCLEAN, partitions=partitions):
                places = [
                    (name, partition.partition)
                    for partition in partitions
                    if (name := self._name(partition.topic_id))
                ]
                if places:
                    return lambda admin: admin.elect_leaders(places, kind="unclean")
        return None

    def _name(self, topic_id: TopicId | None) -> str:
        """Return a topic's name; empty when the topic was deleted."""
        topic = None if topic_id is None else self._topics.get(topic_id)
        return "" if topic is None else str(topic.name)

    def _deleted_name(self, topic_id: TopicId | None) -> str:
        """Return the name of a deleted topic; empty when it cannot be brought back."""
        deleted = None if topic_id is None else self._deleted.get(topic_id)
        return "" if deleted is None else str(deleted.topic.name)


async def _set_quota(admin: Admin, quota: Quota) -> None:
    entity = quota.entity
    await admin.set_quota(
        quota.name,
        principal=entity.principal,
        client_id=entity.client_id,
        topic=entity.topic,
        namespace=entity.namespace,
        produce_bytes_per_second=quota.produce_bytes_per_second,
        fetch_bytes_per_second=quota.fetch_bytes_per_second,
        request_percent=quota.request_percent,
        per_broker=quota.is_per_broker,
    )
