"""A listener of Kafka's protocol at a broker with one partition of `__positions`."""

from types import SimpleNamespace
from typing import Any

from tests.fakes.call_context import CALLER, calls_of
from tests.fakes.positions_stage import Stage
from tests.fakes.stamped_batches import TOPIC_PARTITION

from millrace.broker.coordinator.staged_commits import StagedCommits
from millrace.broker.guard.callers import GuardedCaller
from millrace.broker.kafka.coordinators.classic_groups import GroupRequests
from millrace.broker.kafka.coordinators.group_administration import GroupAdministrationRequests
from millrace.broker.kafka.coordinators.positions import PositionRequests
from millrace.broker.kafka.known_topics import KnownTopics
from millrace.broker.kafka.local_calls import LocalCalls
from millrace.broker.kafka.names import Names
from millrace.broker.kafka.requests import ApiKey, KafkaConnectionState, Request, Served
from millrace.broker.rpc.positions import PositionsService
from millrace.core.broker_config import LimitsConfig
from millrace.core.errors import MillraceError
from millrace.core.ids import TopicId, TopicPartition
from millrace.core.topics import TopicName
from millrace.proto.errors import error_to_wire
from millrace.proto.v1 import common_pb2
from millrace.runtime.turns import Turns

TOPIC = TopicId(b"t" * 16)


class _Places:
    """Every name is in the one partition."""

    def find(self, _: str) -> TopicPartition:
        return TOPIC_PARTITION

    async def find_or_make(self, _: str, caller: object) -> TopicPartition:
        return TOPIC_PARTITION

    def error(self, _: str, error: MillraceError) -> common_pb2.Error:
        return error_to_wire(error, is_write=True)


class KafkaCoordinator:
    """The listener of one namespace, which has a topic `topic` of two partitions.

    Args:
        the: the broker's partition.
        namespace: of the listener.
    """

    def __init__(self, the: Stage, namespace: str = "default") -> None:
        names = Names(namespace)
        topic = SimpleNamespace(
            topic_id=TOPIC, name=TopicName(namespace, "topic"), partitions=[object(), object()]
        )
        image: Any = SimpleNamespace(
            topics={topic.name: topic},
            topics_by_id={TOPIC: topic},
            partition=lambda _: None,
            cluster=SimpleNamespace(brokers={}),
        )
        partitions: Any = SimpleNamespace(
            image=image, get=the.find, named=lambda where: f"topic-{where.partition}"
        )
        joins: Any = None
        places: Any = _Places()
        calls, turns = calls_of(), Turns()
        staged = StagedCommits(the.positions, joins, partitions)
        service = PositionsService(
            groups=the.positions,
            staged=staged,
            names=places,
            partitions=partitions,
            turns=turns,
            calls=calls,
        )
        parts: Any = SimpleNamespace(
            broker=SimpleNamespace(
                groups=the.positions,
                staged=staged,
                partitions=partitions,
                channel=None,
                config=SimpleNamespace(positions=the.config, limits=LimitsConfig()),
                turns=turns,
            ),
            calls=calls,
            local=LocalCalls([service.methods()]),
            names=names,
            topics=KnownTopics(names, lambda: image),
            image=image,
        )
        modules = PositionRequests(parts), GroupRequests(parts), GroupAdministrationRequests(parts)
        self._served: dict[int, Served] = {}
        for module in modules:
            module._names.partitions = places
            self._served.update(module.served())

    async def ask(
        self, key: ApiKey, version: int, message: Any, caller: GuardedCaller = CALLER
    ) -> Any:
        """Return the answer to a request; both as they come over the wire."""
        served = self._served[key]
        assert version in served.versions
        asked = type(message).decode(message.encode(version=version), version=version)
        connection = KafkaConnectionState(CALLER.address)
        found = await served.handler(Request(key, version, "me", asked, caller, connection))
        return type(found).decode(found.encode(version=version), version=version)
