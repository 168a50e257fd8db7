"""Clients' administration, read and answered at the controller.

The broker that a client talks to passes the client's own message on; what it means is decided here.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from millrace.broker.controller import ControllerShell
from millrace.broker.peers.controller_messages import topic_partition_from_proto
from millrace.broker.rpc.topic_messages import describe_topic, topic_id_of
from millrace.core.errors import (
    BrokerIdNotRegisteredError,
    BrokerInUseError,
    MalformedRequestError,
    MillraceError,
)
from millrace.core.ids import BrokerId, TopicId, TopicPartition
from millrace.core.metadata.model import Topic
from millrace.core.metadata.requests import (
    AlterTopics,
    CreateTopics,
    DeleteTopics,
    DrainBroker,
    ElectionKind,
    ElectLeaders,
    NewTopic,
    Reassignment,
    ReassignPartitions,
    TopicChange,
    TopicRef,
    UnregisterBroker,
)
from millrace.proto.errors import error_to_wire
from millrace.proto.v1 import cluster_pb2, common_pb2
from millrace.proto.v1 import controller_pb2 as pb


async def administer(
    controller: ControllerShell, message: pb.ControllerRequest
) -> pb.ControllerResponse:
    """Return the answer to a client's request, without its correlation id.

    Raises:
        MillraceError: nothing of it was done, or, as `appended` says, nobody knows.
    """
    match message.WhichOneof("request"):
        case "create_topics":
            return await _create_topics(controller, message.create_topics)
        case "alter_topics":
            return await _alter_topics(controller, message.alter_topics)
        case "delete_topics":
            return await _delete_topics(controller, message.delete_topics)
        case "drain_broker":
            return await _drain_broker(controller, message.drain_broker)
        case "unregister_broker":
            return await _unregister_broker(controller, message.unregister_broker)
        case "reassign_partitions":
            return await _reassign_partitions(controller, message.reassign_partitions)
        case "elect_leaders":
            return await _elect_leaders(controller, message.elect_leaders)
    raise MalformedRequestError("the request is none that this controller knows")


async def _create_topics(
    controller: ControllerShell, request: cluster_pb2.CreateTopicsRequest
) -> pb.ControllerResponse:
    topics = [
        NewTopic(
            name=topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            config=dict(topic.config),
        )
        for topic in request.topics
    ]
    outcomes = await controller.request(
        CreateTopics(
            topics=topics,
            topic_ids=[
                topic_id_of(topic.topic_id) or drawn
                for topic, drawn in zip(
                    request.topics, controller.new_topic_ids(len(topics)), strict=True
                )
            ],
            validate_only=request.validate_only,
        )
    )
    results = _topic_results(controller, outcomes)
    return pb.ControllerResponse(create_topics=cluster_pb2.CreateTopicsResponse(results=results))


async def _alter_topics(
    controller: ControllerShell, request: cluster_pb2.AlterTopicsRequest
) -> pb.ControllerResponse:
    changes = [
        TopicChange(
            topic=TopicRef(name=change.name, topic_id=topic_id_of(change.topic_id)),
            set_config=dict(change.set_config),
            unset_config=tuple(change.unset_config),
            partitions=change.partitions,
        )
        for change in request.topics
    ]
    outcomes = await controller.request(
        AlterTopics(changes=changes, validate_only=request.validate_only)
    )
    results = _topic_results(controller, outcomes)
    return pb.ControllerResponse(alter_topics=cluster_pb2.AlterTopicsResponse(results=results))


async def _delete_topics(
    controller: ControllerShell, request: cluster_pb2.DeleteTopicsRequest
) -> pb.ControllerResponse:
    topics = [
        TopicRef(name=topic.name, topic_id=topic_id_of(topic.topic_id)) for topic in request.topics
    ]
    outcomes = await controller.request(
        DeleteTopics(topics=topics, validate_only=request.validate_only)
    )
    results = _topic_results(controller, outcomes)
    return pb.ControllerResponse(delete_topics=cluster_pb2.DeleteTopicsResponse(results=results))


def _topic_results(
    controller: ControllerShell, outcomes: Iterable[Topic | MillraceError]
) -> Sequence[cluster_pb2.TopicResult]:
    image = controller.metadata
    return [
        cluster_pb2.TopicResult(error=error_to_wire(outcome))
        if isinstance(outcome, MillraceError)
        else cluster_pb2.TopicResult(topic=describe_topic(image, outcome, controller.config))
        for outcome in outcomes
    ]


async def _drain_broker(
    controller: ControllerShell, request: cluster_pb2.DrainBrokerRequest
) -> pb.ControllerResponse:
    response = cluster_pb2.DrainBrokerResponse()
    try:
        await controller.request(
            DrainBroker(broker_id=BrokerId(request.broker_id), is_drained=not request.undrain)
        )
    except BrokerIdNotRegisteredError as error:
        response.error.CopyFrom(error_to_wire(error, is_write=True))
    return pb.ControllerResponse(drain_broker=response)


async def _unregister_broker(
    controller: ControllerShell, request: cluster_pb2.UnregisterBrokerRequest
) -> pb.ControllerResponse:
    response = cluster_pb2.UnregisterBrokerResponse()
    try:
        await controller.request(UnregisterBroker(broker_id=BrokerId(request.broker_id)))
    except (BrokerIdNotRegisteredError, BrokerInUseError) as error:
        response.error.CopyFrom(error_to_wire(error, is_write=True))
    return pb.ControllerResponse(unregister_broker=response)


async def _reassign_partitions(
    controller: ControllerShell, request: cluster_pb2.ReassignPartitionsRequest
) -> pb.ControllerResponse:
    outcomes = await controller.request(
        ReassignPartitions(
            reassignments=[
                Reassignment(
                    topic_id=TopicId(each.topic_partition.topic_id),
                    partition=each.topic_partition.partition,
                    replicas=None if each.cancel else tuple(map(BrokerId, each.replicas)),
                )
                for each in request.reassignments
            ]
        )
    )
    named = [each.topic_partition for each in request.reassignments]
    return pb.ControllerResponse(
        reassign_partitions=cluster_pb2.ReassignPartitionsResponse(
            results=_partition_results(controller, named, outcomes)
        )
    )


async def _elect_leaders(
    controller: ControllerShell, request: cluster_pb2.ElectLeadersRequest
) -> pb.ControllerResponse:
    named = list(request.partitions)
    if request.kind == cluster_pb2.ELECTION_KIND_PREFERRED:
        kind = ElectionKind.PREFERRED
        named = named or [
            common_pb2.TopicPartition(topic_id=topic.topic_id, partition=number)
            for topic in controller.metadata.topics_by_id.values()
            for number, state in enumerate(topic.partitions)
            if state.leader != state.target[0]
        ]
    elif request.kind == cluster_pb2.ELECTION_KIND_UNCLEAN and named:
        kind = ElectionKind.UNCLEAN
    else:
        raise MalformedRequestError("name a kind of election, and partitions for an unclean one")
    partitions: list[TopicPartition] = [topic_partition_from_proto(each) for each in named]
    outcomes = await controller.request(ElectLeaders(kind=kind, partitions=partitions))
    return pb.ControllerResponse(
        elect_leaders=cluster_pb2.ElectLeadersResponse(
            results=_partition_results(controller, named, outcomes)
        )
    )


def _partition_results(
    controller: ControllerShell,
    named: Sequence[common_pb2.TopicPartition],
    outcomes: Iterable[Any],
) -> list[cluster_pb2.PartitionResult]:
    image = controller.metadata
    return [
        cluster_pb2.PartitionResult(
            topic_partition=partition,
            error=error_to_wire(
                image.in_words(outcome, topic_partition_from_proto(partition)), is_write=True
            )
            if isinstance(outcome, MillraceError)
            else None,
        )
        for partition, outcome in zip(named, outcomes, strict=True)
    ]
