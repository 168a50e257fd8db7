"""Calls of Millrace's own methods in the process, for a client of Kafka."""

from dataclasses import replace
from typing import Any

import pytest
from tests.fakes.call_context import CALLER, calls_of

from millrace.broker.guard.callers import Access
from millrace.broker.guard.demands import KNOWN, whole
from millrace.broker.guard.file_guard import FileGuard
from millrace.broker.kafka.local_calls import LocalCalls
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.callers import Caller
from millrace.core.errors import (
    MalformedRequestError,
    MillraceError,
    TopicAuthorizationFailedError,
)
from millrace.core.guard.access import Operation, ResourceKind, named
from millrace.core.guard.identity import Identity
from millrace.core.guard.rules import parse_rules
from millrace.proto.v1 import cluster_pb2 as pb

REQUEST = pb.DeleteTopicsRequest(topics=[pb.TopicRef(name="t")])
OF_TOPICS = whole(
    Operation.DELETE,
    ResourceKind.TOPICS,
    lambda request: [named(ResourceKind.TOPICS, topic.name) for topic in request.topics],
)


class Service:
    """A service of two methods; one is passed on as it came."""

    def __init__(self) -> None:
        self.metrics = BrokerMetrics()
        self.asked: list[Any] = []
        methods = calls_of(metrics=self.metrics).methods(
            "t.T",
            unary={"Ask": (self.answer, pb.DeleteTopicsRequest, OF_TOPICS)},
            forwards={"Pass": ((self.answer, pb.DeleteTopicsRequest, self.check), KNOWN)},
        )
        self.local = LocalCalls([methods])

    async def answer(self, request: Any, caller: Caller) -> pb.DeleteTopicsResponse:
        self.asked.append((request, caller.principal))
        return pb.DeleteTopicsResponse(metadata_epoch=7)

    def check(self, request: Any) -> None:
        if len(request.topics) > 1:
            raise MalformedRequestError("too many")

    def refused(self, error: type[MillraceError], method: str) -> float | None:
        labels = {"error": error.name(), "method": method}
        return self.metrics.registry.get_sample_value("millrace_refusals_total", labels)


async def test_a_method_gets_the_message_and_the_one_that_passes_it_on_its_bytes() -> None:
    the = Service()
    assert (await the.local.call("Ask", REQUEST, CALLER)).metadata_epoch == 7
    assert (await the.local.call("Pass", REQUEST, CALLER)).metadata_epoch == 7
    assert the.asked == [
        (REQUEST, CALLER.principal),
        (REQUEST.SerializeToString(), CALLER.principal),
    ]


async def test_what_a_method_demands_is_demanded_and_a_refusal_is_counted() -> None:
    the = Service()
    access = Access(FileGuard(None, parse_rules("")), Identity("stranger"), None)
    stranger = replace(CALLER, principal="stranger", access=access)
    with pytest.raises(TopicAuthorizationFailedError):
        await the.local.call("Ask", REQUEST, stranger)
    assert the.asked == []
    assert the.refused(TopicAuthorizationFailedError, "Ask") == 1


async def test_a_request_that_would_be_refused_further_on_is_refused_here() -> None:
    the = Service()
    many = pb.DeleteTopicsRequest(topics=[pb.TopicRef(name="a"), pb.TopicRef(name="b")])
    with pytest.raises(MalformedRequestError):
        await the.local.call("Pass", many, CALLER)
    assert the.asked == []
    assert the.refused(MalformedRequestError, "Pass") == 1
