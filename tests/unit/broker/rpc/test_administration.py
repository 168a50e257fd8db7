"""Large requests at the controller: converted and decided in parts, and each part is small."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.fakes.call_context import CALLER

from millrace.broker.rpc.administration import administer
from millrace.broker.rpc.audit import AuditLog
from millrace.core.errors import MalformedRequestError, UnknownTopicOrPartitionError
from millrace.core.ids import TopicId
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import ClusterState
from millrace.core.metadata.requests import AlterTopics, CreateTopics, ReassignPartitions
from millrace.proto.v1 import cluster_pb2, common_pb2
from millrace.proto.v1 import controller_pb2 as pb
from millrace.runtime.turns import Turns

WEIGHT_MAX = 200
"""Topics, partitions and settings that are decided together, unless one topic has more."""


class Controller:
    """A controller that refuses everything, and notes the parts in which it comes."""

    config = ClusterConfig()
    metadata = MetadataImage.empty(ClusterState(cluster_id="c"))

    def __init__(self) -> None:
        self.parts: list[Sequence[Any]] = []

    def new_topic_ids(self, count: int) -> list[TopicId]:
        return [TopicId(bytes(16))] * count

    async def request(self, request: CreateTopics | AlterTopics | ReassignPartitions) -> list[Any]:
        match request:
            case CreateTopics(topics=entries):
                assert len(entries) == len(request.topic_ids)
            case AlterTopics(changes=entries) | ReassignPartitions(reassignments=entries):
                pass
        self.parts.append(entries)
        return [UnknownTopicOrPartitionError("there is none")] * len(entries)


def administered(controller: Any, **request: Any) -> pb.ControllerResponse:
    """Let a controller answer a request."""
    message = pb.ControllerRequest(**request)
    work = Turns().work()
    return asyncio.run(administer(controller, work, AuditLog(lines_max=100), message, CALLER))


def new_topics(count: int, settings: int, partitions: int = 1) -> list[cluster_pb2.NewTopic]:
    config = {f"no.such.{number}": "1" for number in range(settings)}
    return [
        cluster_pb2.NewTopic(name=f"t{number}", config=config, partitions=partitions)
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("count", "settings", "partitions"), [(1000, 10, 1), (300, 0, 30), (1000, 0, 1), (3, 500, 1)]
)
def test_what_is_decided_without_a_break_is_bounded_by_settings_and_partitions_too(
    count: int, settings: int, partitions: int
) -> None:
    controller = Controller()
    topics = new_topics(count, settings, partitions)
    request = cluster_pb2.CreateTopicsRequest(topics=topics, validate_only=True)
    answer = administered(controller, create_topics=request)
    assert len(answer.create_topics.results) == count
    decided = [topic.name for part in controller.parts for topic in part]
    assert decided == [topic.name for topic in topics]
    each = 1 + settings + partitions
    assert max(map(len, controller.parts)) * each < WEIGHT_MAX + each


def test_changes_of_many_settings_are_decided_in_parts() -> None:
    controller = Controller()
    change = cluster_pb2.TopicChange(
        name="t", set_config={f"{number}": "1" for number in range(50)}, unset_config=["x"] * 49
    )
    request = cluster_pb2.AlterTopicsRequest(topics=[change] * 10, validate_only=True)
    administered(controller, alter_topics=request)
    assert list(map(len, controller.parts)) == [2] * 5


def moves(*partitions: int) -> cluster_pb2.ReassignPartitionsRequest:
    named = [
        common_pb2.TopicPartition(topic_id=bytes(16), partition=partition)
        for partition in partitions
    ]
    return cluster_pb2.ReassignPartitionsRequest(
        reassignments=[
            cluster_pb2.Reassignment(topic_partition=each, replicas=[0]) for each in named
        ]
    )


def test_many_reassignments_are_decided_in_parts() -> None:
    controller = Controller()
    answer = administered(controller, reassign_partitions=moves(*range(1200)))
    assert list(map(len, controller.parts)) == [500, 500, 200]
    assert len(answer.reassign_partitions.results) == 1200


def test_a_partition_that_is_to_be_reassigned_twice_is_refused_before_anything_is_done() -> None:
    controller = Controller()
    with pytest.raises(MalformedRequestError, match="named twice"):
        administered(controller, reassign_partitions=moves(*range(1000), 0))
    assert not controller.parts


@pytest.mark.parametrize(
    ("name", "request_type"),
    [
        ("create_topics", cluster_pb2.CreateTopicsRequest),
        ("alter_topics", cluster_pb2.AlterTopicsRequest),
        ("reassign_partitions", cluster_pb2.ReassignPartitionsRequest),
    ],
)
def test_a_request_of_nothing_gets_an_empty_answer_of_its_kind(
    name: str, request_type: type[Any]
) -> None:
    answer = administered(Controller(), **{name: request_type()})
    assert answer.WhichOneof("response") == name
    assert not getattr(answer, name).results
