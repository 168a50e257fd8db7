"""Clients' administration, read and answered at the controller.

The client's broker passes the client's own message on; it is interpreted here. The controller's
machine decides a request without a break. So a request of many entries is given to it in parts, and
the loop does other work in between, above all heartbeats. Each change is logged with the client
that asked for it (`audit`).
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableSequence, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from millrace.broker.controller.messages import topic_partition_from_proto
from millrace.broker.controller.shell import ControllerShell
from millrace.broker.rpc.audit import AuditLine, AuditLog
from millrace.broker.rpc.topic_messages import describe_topic, topic_id_of
from millrace.core.callers import Caller
from millrace.core.controller.request_limits import size_problem
from millrace.core.errors import (
    Appended,
    BrokerIdNotRegisteredError,
    BrokerInUseError,
    MalformedRequestError,
    MillraceError,
)
from millrace.core.ids import BrokerId, TopicId, TopicPartition
from millrace.core.metadata.model import Listener, Topic
from millrace.core.metadata.requests import (
    AlterTopics,
    CreateTopics,
    DeleteQuotas,
    DeleteTopics,
    DrainBroker,
    ElectionKind,
    ElectLeaders,
    NewTopic,
    PurgeTopics,
    Reassignment,
    ReassignPartitions,
    SetQuotas,
    TopicChange,
    TopicRef,
    UndeleteTopics,
    UnregisterBroker,
)
from millrace.core.quotas.quota import Quota, QuotaKind
from millrace.core.words import count
from millrace.proto.errors import error_to_wire
from millrace.proto.quotas import quota_from_wire, quota_to_wire
from millrace.proto.v1 import cluster_pb2, common_pb2
from millrace.proto.v1 import controller_pb2 as pb
from millrace.runtime.clock import wall_now
from millrace.runtime.turns import Work

_TOPICS_AT_ONCE: Final = 50
_PARTITIONS_AT_ONCE: Final = 500
"""Entries that the machine decides in one go."""
_PARTS_OF_TOPICS_AT_ONCE: Final = 200
"""Likewise; partitions and settings of topics count as the topics do, and one topic is not
divided."""

_QUOTAS_AT_ONCE: Final = 10
"""Likewise; each is compared with all others."""

_UNDELETED_AT_ONCE: Final = 5
"""Likewise; each may have many partitions, and each of them gets a leader."""

_T = TypeVar("_T")
_Large = (
    CreateTopics
    | AlterTopics
    | DeleteTopics
    | UndeleteTopics
    | PurgeTopics
    | ReassignPartitions
    | ElectLeaders
    | SetQuotas
    | DeleteQuotas
)


async def administer(
    controller: ControllerShell,
    work: Work,
    audit: AuditLog,
    message: pb.ControllerRequest,
    caller: Caller,
) -> pb.ControllerResponse:
    """Return the answer to a client's request, without its correlation id.

    Args:
        controller: decides it.
        work: yields the loop meanwhile.
        audit: has a line of each change.
        message: the request.
        caller: the client.

    Raises:
        MillraceError: nothing of it was done, or, with `appended` MAYBE, the outcome is unknown.
    """
    kind = message.WhichOneof("request")
    if kind is None:
        raise MalformedRequestError("the request is none that this controller knows")
    line = AuditLine(audit, caller, kind)
    request = getattr(message, kind)
    is_change = not getattr(request, "validate_only", False)
    try:
        response, outcomes = await _Administration(controller, work, line).answer(kind, request)
    except MillraceError as error:
        if is_change:
            line.on_failed(error)
        raise
    if is_change:
        line.on_answered(outcomes)
    return response


_Answer = tuple[pb.ControllerResponse, Sequence[object]]
"""A response, and the outcome of each entry of the request."""


@dataclass(slots=True)
class _Administration:
    _controller: ControllerShell
    _work: Work
    _line: AuditLine

    async def answer(self, kind: str, request: Any) -> _Answer:
        handlers: dict[str, Callable[[Any], Awaitable[_Answer]]] = {
            "create_topics": self._create_topics,
            "alter_topics": self._alter_topics,
            "delete_topics": self._delete_topics,
            "undelete_topics": self._undelete_topics,
            "purge_topics": self._purge_topics,
            "drain_broker": self._drain_broker,
            "unregister_broker": self._unregister_broker,
            "reassign_partitions": self._reassign_partitions,
            "elect_leaders": self._elect_leaders,
            "set_quotas": self._set_quotas,
            "delete_quotas": self._delete_quotas,
        }
        if (handler := handlers.get(kind)) is None:
            raise MalformedRequestError("the request is none that this controller knows")
        return await handler(request)

    async def _converted(self, convert: Callable[[Any], _T], entries: Iterable[Any]) -> list[_T]:
        """Convert the entries of a request. It can still be refused whole."""
        converted = []
        for entry in entries:
            await self._work.give_way()
            converted.append(convert(entry))
        return converted

    async def _decide(
        self,
        request: _Large,
        at_once: int,
        *fields: str,
        weigh: Callable[[Any], int] = lambda _: 1,
    ) -> list[Any]:
        """Let the machine decide a request in parts.

        Args:
            request: the whole.
            at_once: what the entries of a part weigh together.
            fields: that hold the entries, equally many in each.
            weigh: says what an entry of the first field weighs.

        Raises:
            MillraceError: nothing of it was done, or, with `appended` MAYBE, the outcome is
                unknown.
        """
        if (problem := size_problem(request, self._controller.config)) is not None:
            raise MalformedRequestError(problem)
        outcomes: list[Any] = []
        for cut in _cuts(map(weigh, getattr(request, fields[0])), at_once):
            part: dict[str, Any] = {field: getattr(request, field)[cut] for field in fields}
            await self._work.give_way(cut.stop - cut.start)
            try:
                outcomes += await self._controller.request(replace(request, **part))
            except MillraceError as error:
                if not outcomes:
                    raise
                raise error.again(Appended.MAYBE) from error
        return outcomes

    async def _create_topics(self, request: cluster_pb2.CreateTopicsRequest) -> _Answer:
        self._line.name(topic.name for topic in request.topics)
        topics = await self._converted(_new_topic, request.topics)
        default = self._controller.config.default_partitions
        outcomes = await self._decide(
            CreateTopics(
                topics=topics,
                topic_ids=[
                    topic_id_of(topic.topic_id) or drawn
                    for topic, drawn in zip(
                        request.topics, self._controller.new_topic_ids(len(topics)), strict=True
                    )
                ],
                validate_only=request.validate_only,
            ),
            _PARTS_OF_TOPICS_AT_ONCE,
            "topics",
            "topic_ids",
            weigh=lambda topic: (
                1 + (topic.partitions or len(topic.assignment) or default) + len(topic.config)
            ),
        )
        response = pb.ControllerResponse(create_topics=cluster_pb2.CreateTopicsResponse())
        await self._add_topics(response.create_topics.results, outcomes)
        return response, outcomes

    async def _alter_topics(self, request: cluster_pb2.AlterTopicsRequest) -> _Answer:
        changes = await self._converted(_topic_change, request.topics)
        self._line.name(map(self._change_in_words, changes))
        alteration = AlterTopics(changes=changes, validate_only=request.validate_only)
        outcomes = await self._decide(
            alteration,
            _PARTS_OF_TOPICS_AT_ONCE,
            "changes",
            weigh=lambda change: (
                1 + change.partitions + len(change.set_config) + len(change.unset_config)
            ),
        )
        response = pb.ControllerResponse(alter_topics=cluster_pb2.AlterTopicsResponse())
        await self._add_topics(response.alter_topics.results, outcomes)
        return response, outcomes

    def _change_in_words(self, change: TopicChange) -> str:
        changed = [*change.set_config, *change.unset_config]
        if change.partitions:
            changed.append(count(change.partitions, "partition"))
        return f"{self._topic_in_words(change.topic)} ({', '.join(changed)})"

    def _topic_in_words(self, topic: TopicRef) -> str:
        known = topic.topic_id and self._controller.metadata.topics_by_id.get(topic.topic_id)
        return str(known.name if known else topic)

    async def _named(self, refs: Iterable[cluster_pb2.TopicRef]) -> list[TopicRef]:
        topics = await self._converted(_topic_ref, refs)
        self._line.name(map(self._topic_in_words, topics))
        return topics

    async def _delete_topics(self, request: cluster_pb2.DeleteTopicsRequest) -> _Answer:
        deletion = DeleteTopics(
            topics=await self._named(request.topics),
            deleted_at=wall_now(),
            validate_only=request.validate_only,
        )
        outcomes = await self._decide(deletion, _TOPICS_AT_ONCE, "topics")
        response = pb.ControllerResponse(delete_topics=cluster_pb2.DeleteTopicsResponse())
        await self._add_topics(response.delete_topics.results, outcomes)
        return response, outcomes

    async def _undelete_topics(self, request: cluster_pb2.UndeleteTopicsRequest) -> _Answer:
        undeletion = UndeleteTopics(topics=await self._named(request.topics))
        outcomes = await self._decide(undeletion, _UNDELETED_AT_ONCE, "topics")
        response = pb.ControllerResponse(undelete_topics=cluster_pb2.UndeleteTopicsResponse())
        await self._add_topics(response.undelete_topics.results, outcomes)
        return response, outcomes

    async def _purge_topics(self, request: cluster_pb2.PurgeTopicsRequest) -> _Answer:
        purge = PurgeTopics(topics=await self._named(request.topics))
        outcomes = await self._decide(purge, _TOPICS_AT_ONCE, "topics")
        response = pb.ControllerResponse(purge_topics=cluster_pb2.PurgeTopicsResponse())
        await self._add_topics(response.purge_topics.results, outcomes)
        return response, outcomes

    async def _add_topics(
        self,
        results: MutableSequence[cluster_pb2.TopicResult],
        outcomes: Iterable[Topic | MillraceError],
    ) -> None:
        """Add the outcomes to a response: one by one, as a copy of all would keep the loop."""
        image, config = self._controller.metadata, self._controller.config
        for outcome in outcomes:
            await self._work.give_way()
            results.append(
                cluster_pb2.TopicResult(error=error_to_wire(outcome))
                if isinstance(outcome, MillraceError)
                # The broker that passes this on knows its client's listener.
                else cluster_pb2.TopicResult(
                    topic=describe_topic(image, outcome, config, Listener.CLIENTS)
                )
            )

    async def _drain_broker(self, request: cluster_pb2.DrainBrokerRequest) -> _Answer:
        taken_back = " (taken back)" if request.undrain else ""
        self._line.name([f"broker {request.broker_id}{taken_back}"])
        response = cluster_pb2.DrainBrokerResponse()
        refusal: MillraceError | None = None
        try:
            await self._controller.request(
                DrainBroker(broker_id=BrokerId(request.broker_id), is_drained=not request.undrain)
            )
        except BrokerIdNotRegisteredError as error:
            refusal = error.with_traceback(None)  # It refers to this frame.
            response.error.CopyFrom(error_to_wire(error, is_write=True))
        return pb.ControllerResponse(drain_broker=response), [refusal]

    async def _unregister_broker(self, request: cluster_pb2.UnregisterBrokerRequest) -> _Answer:
        self._line.name([f"broker {request.broker_id}"])
        response = cluster_pb2.UnregisterBrokerResponse()
        refusal: MillraceError | None = None
        try:
            await self._controller.request(UnregisterBroker(broker_id=BrokerId(request.broker_id)))
        except (BrokerIdNotRegisteredError, BrokerInUseError) as error:
            refusal = error.with_traceback(None)  # It refers to this frame.
            response.error.CopyFrom(error_to_wire(error, is_write=True))
        return pb.ControllerResponse(unregister_broker=response), [refusal]

    async def _reassign_partitions(self, request: cluster_pb2.ReassignPartitionsRequest) -> _Answer:
        reassignments = await self._converted(_reassignment, request.reassignments)
        self._line.name(map(self._reassignment_in_words, reassignments))
        if len(
            {(reassignment.topic_id, reassignment.partition) for reassignment in reassignments}
        ) < len(reassignments):
            # They may be in different parts, and then the machine does not see it.
            raise MalformedRequestError("a partition is named twice in one request: name it once")
        outcomes = await self._decide(
            ReassignPartitions(reassignments=reassignments), _PARTITIONS_AT_ONCE, "reassignments"
        )
        named = [reassignment.topic_partition for reassignment in request.reassignments]
        response = pb.ControllerResponse(
            reassign_partitions=cluster_pb2.ReassignPartitionsResponse()
        )
        await self._add_partitions(response.reassign_partitions.results, named, outcomes)
        return response, outcomes

    def _reassignment_in_words(self, reassignment: Reassignment) -> str:
        place = TopicPartition(reassignment.topic_id, reassignment.partition)
        replicas = reassignment.replicas
        to = "cancelled" if replicas is None else f"to {', '.join(map(str, replicas))}"
        return f"{self._controller.metadata.name_of(place)} ({to})"

    async def _elect_leaders(self, request: cluster_pb2.ElectLeadersRequest) -> _Answer:
        named = list(request.partitions)
        if request.kind == cluster_pb2.ELECTION_KIND_PREFERRED:
            kind = ElectionKind.PREFERRED
            named = named or [
                common_pb2.TopicPartition(topic_id=topic.topic_id, partition=number)
                for topic in self._controller.metadata.topics_by_id.values()
                for number, state in enumerate(topic.partitions)
                if state.leader != state.target[0]
            ]
        elif request.kind == cluster_pb2.ELECTION_KIND_UNCLEAN and named:
            kind = ElectionKind.UNCLEAN
        else:
            raise MalformedRequestError(
                "name a kind of election, and partitions for an unclean one"
            )
        partitions = await self._converted(topic_partition_from_proto, named)
        image = self._controller.metadata
        self._line.name(
            f"{image.name_of(partition)} ({kind.name.lower()})" for partition in partitions
        )
        election = ElectLeaders(kind=kind, partitions=partitions)
        outcomes = await self._decide(election, _PARTITIONS_AT_ONCE, "partitions")
        response = pb.ControllerResponse(elect_leaders=cluster_pb2.ElectLeadersResponse())
        await self._add_partitions(response.elect_leaders.results, named, outcomes)
        return response, outcomes

    async def _add_partitions(
        self,
        results: MutableSequence[cluster_pb2.PartitionResult],
        named: Sequence[common_pb2.TopicPartition],
        outcomes: Iterable[Any],
    ) -> None:
        """Add the outcomes to a response. See `_add_topics`."""
        image = self._controller.metadata
        for partition, outcome in zip(named, outcomes, strict=True):
            await self._work.give_way()
            result = cluster_pb2.PartitionResult(topic_partition=partition)
            if isinstance(outcome, MillraceError):
                result.error.CopyFrom(error_to_wire(image.in_words(outcome), is_write=True))
            results.append(result)

    async def _set_quotas(self, request: cluster_pb2.SetQuotasRequest) -> _Answer:
        quotas = [quota_from_wire(quota) for quota in request.quotas]
        self._line.name(f"{quota.name} ({_limits_in_words(quota)})" for quota in quotas)
        change = SetQuotas(quotas=quotas, validate_only=request.validate_only)
        outcomes = await self._decide(change, _QUOTAS_AT_ONCE, "quotas")
        response = cluster_pb2.SetQuotasResponse(results=map(_quota_result, outcomes))
        return pb.ControllerResponse(set_quotas=response), outcomes

    async def _delete_quotas(self, request: cluster_pb2.DeleteQuotasRequest) -> _Answer:
        self._line.name(request.names)
        deletion = DeleteQuotas(names=tuple(request.names), validate_only=request.validate_only)
        outcomes = await self._decide(deletion, _QUOTAS_AT_ONCE, "names")
        response = cluster_pb2.DeleteQuotasResponse(results=map(_quota_result, outcomes))
        return pb.ControllerResponse(delete_quotas=response), outcomes


def _cuts(weights: Iterable[int], at_once: int) -> Iterator[slice]:
    """Yield the parts of a list whose entries have these weights; a request without any is one.

    Args:
        weights: of the entries.
        at_once: a part ends with the entry by which it weighs so much, or more.
    """
    begin = end = weight = 0
    for end, weighed in enumerate(weights, 1):
        weight += weighed
        if weight >= at_once:
            yield slice(begin, end)
            begin, weight = end, 0
    if begin < end or not end:
        yield slice(begin, end)


def _new_topic(topic: cluster_pb2.NewTopic) -> NewTopic:
    return NewTopic(
        name=topic.name,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        config=dict(topic.config),
        assignment=_assignment(topic.assignment),
    )


def _topic_change(change: cluster_pb2.TopicChange) -> TopicChange:
    return TopicChange(
        topic=TopicRef(name=change.name, topic_id=topic_id_of(change.topic_id)),
        set_config=dict(change.set_config),
        unset_config=tuple(change.unset_config),
        partitions=change.partitions,
        assignment=_assignment(change.assignment),
    )


def _assignment(
    assignment: Iterable[cluster_pb2.NewReplicas],
) -> tuple[tuple[BrokerId, ...], ...]:
    return tuple(tuple(map(BrokerId, named.replicas)) for named in assignment)


def _topic_ref(topic: cluster_pb2.TopicRef) -> TopicRef:
    return TopicRef(name=topic.name, topic_id=topic_id_of(topic.topic_id))


def _reassignment(asked: cluster_pb2.Reassignment) -> Reassignment:
    return Reassignment(
        topic_id=TopicId(asked.topic_partition.topic_id),
        partition=asked.topic_partition.partition,
        replicas=None if asked.cancel else tuple(map(BrokerId, asked.replicas)),
    )


def _limits_in_words(quota: Quota) -> str:
    limits = [f"{kind} {quota.limit(kind)}" for kind in QuotaKind if quota.limit(kind) is not None]
    per_broker = ["per broker"] if quota.is_per_broker else []
    return ", ".join([str(quota.entity), *limits, *per_broker])


def _quota_result(outcome: Quota | MillraceError) -> cluster_pb2.QuotaResult:
    if isinstance(outcome, MillraceError):
        return cluster_pb2.QuotaResult(error=error_to_wire(outcome, is_write=True))
    return cluster_pb2.QuotaResult(quota=quota_to_wire(outcome))
