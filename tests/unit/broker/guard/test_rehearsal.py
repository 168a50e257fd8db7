"""Callers are let through, and it is told what would be refused (G4)."""

import asyncio
from typing import Any

import pytest
from tests.fakes.call_context import CallContext, calls_of, serve_call

from millrace.broker.guard import callers
from millrace.broker.guard.callers import GuardedCaller, TopicAccess
from millrace.broker.guard.demands import KNOWN, whole
from millrace.broker.guard.file_guard import FileAuthenticator, FileGuard
from millrace.core.guard.access import Operation, Resource, ResourceKind, named
from millrace.core.guard.rules import parse_rules
from millrace.core.guard.token_file import Tokens, new_entry
from millrace.core.ids import TopicId
from millrace.core.metadata.model import Listener
from millrace.core.quotas.concurrency import CallsUnderWay
from millrace.proto.v1.cluster_pb2 import GetMetadataRequest, GetMetadataResponse

TOKEN = "mlr_" + "x" * 30
RULES = '[[rules]]\nwho = ["alice"]\nmay = ["consume", "describe"]\ntopics = ["shop/*"]\n'
SECRET = named(ResourceKind.TOPICS, "other/secret")
DEMANDS = whole(
    Operation.PRODUCE,
    ResourceKind.TOPICS,
    lambda request: [named(ResourceKind.TOPICS, name) for name in request.topics],
)


def bearer(token: str = TOKEN) -> tuple[str, str]:
    return ("authorization", f"Bearer {token}")


def open_guard() -> FileGuard:
    tokens = Tokens([new_entry(TOKEN, "alice", [], None, b"s" * 16)])
    guard = FileGuard(FileAuthenticator(tokens), parse_rules(RULES))
    guard.is_enforced = False
    return guard


def ask(caplog: pytest.LogCaptureFixture, *metadata: Any, topic: str) -> tuple[str, list[str]]:
    """Make a call; return whom its handler sees, and what would be refused."""
    served: list[GuardedCaller] = []

    async def answer(_: object, caller: GuardedCaller) -> GetMetadataResponse:
        served.append(caller)
        return GetMetadataResponse()

    calls = calls_of(Listener.CLIENTS, guard=open_guard())
    handlers = calls.methods("S", unary={"Ask": (answer, GetMetadataRequest, DEMANDS)})
    request = GetMetadataRequest(topics=[topic]).SerializeToString()
    caplog.clear()
    context = CallContext(*metadata)
    asyncio.run(serve_call(handlers, "/S/Ask", context, request))
    assert not context.details, "it is served"
    (caller,) = served
    told = [record for record in caplog.records if record.message.startswith("a caller does what")]
    counted = calls.refusals.metrics.rehearsed_refusals._value.get()
    assert counted == len(told)
    return caller.principal, [str(record.__dict__) for record in told]


def test_who_may_not_do_something_does_it_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    principal, (told,) = ask(caplog, bearer(), topic="other/secret")
    assert principal == "alice"
    assert "'alice' may not produce topic 'other/secret'" in told.replace("\\'", "'")


@pytest.mark.parametrize("metadata", [(), (bearer("y" * 30),), (("authorization", "?"),)])
def test_who_proves_nothing_is_let_through_as_nobody_and_told_once(
    caplog: pytest.LogCaptureFixture, metadata: Any
) -> None:
    principal, told = ask(caplog, *metadata, topic="other/secret")
    assert principal == "anonymous"
    assert len(told) == 1


def test_who_has_more_calls_than_will_be_allowed_makes_them_and_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As a service of a thousand pods, which was counted by nobody before."""

    async def answer(_: object, caller: GuardedCaller) -> GetMetadataResponse:
        return GetMetadataResponse()

    calls = calls_of(Listener.CLIENTS, guard=open_guard(), under_way=CallsUnderWay(0, 1))
    handlers = calls.methods("S", unary={"Ask": (answer, GetMetadataRequest, KNOWN)})
    context = CallContext(bearer())
    asyncio.run(serve_call(handlers, "/S/Ask", context, b""))
    assert not context.details
    (told,) = caplog.records
    assert "limits.principal_calls_max allows" in str(told.__dict__)


def test_a_stream_goes_on_when_its_token_does_not_count_any_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(callers, "_LOOK_SECONDS", 0.01)
    guard = open_guard()
    calls = calls_of(Listener.CLIENTS, guard=guard)

    async def follow(_: object, caller: GuardedCaller) -> None:
        guard._authenticator = FileAuthenticator(Tokens([]))
        await asyncio.sleep(0.1)
        topics = caller.on_topics(Operation.PRODUCE, lambda _: SECRET)
        assert isinstance(topics, TopicAccess)
        assert topics.refusal(TopicId(b"o" * 16)) is None

    handlers = calls.methods("S", streams={"Follow": (follow, KNOWN)})
    context = CallContext(bearer())
    asyncio.run(asyncio.wait_for(serve_call(handlers, "/S/Follow", context), 5))
    assert not context.details
    assert caplog.text.count("a caller does what will be refused") == 2


def test_listings_have_everything() -> None:
    found: list[Resource] = []

    async def answer(_: object, caller: GuardedCaller) -> GetMetadataResponse:
        found.extend(await caller.seen(Operation.DESCRIBE, [SECRET], lambda each: each))
        return GetMetadataResponse()

    calls = calls_of(Listener.CLIENTS, guard=open_guard())
    handlers = calls.methods("S", unary={"Ask": (answer, GetMetadataRequest, KNOWN)})
    asyncio.run(serve_call(handlers, "/S/Ask", CallContext(bearer()), b""))
    assert found == [SECRET]
