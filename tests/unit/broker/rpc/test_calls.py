"""Who makes a call, and how it is ended where it is refused."""

import asyncio
import contextlib
import gc
import time
import tracemalloc
import weakref
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from tests.fakes.call_context import CallContext, calls_of, serve_call

from millrace.broker.guard.callers import GuardedCaller
from millrace.broker.guard.demands import KNOWN
from millrace.broker.rpc.calls import Calls
from millrace.broker.rpc.connection_watch import ConnectionWatch
from millrace.broker.rpc.grpc_calls import grpc_handlers
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.broker_config import LimitsConfig
from millrace.core.callers import Caller
from millrace.core.errors import (
    Appended,
    MalformedRequestError,
    MessageTooLargeError,
    NotControllerError,
)
from millrace.core.metadata.model import Listener
from millrace.proto.errors import error_from_trailers
from millrace.proto.v1.cluster_pb2 import GetMetadataRequest, GetMetadataResponse, TopicMetadata
from millrace.runtime.transport.calls import ServerCall
from millrace.runtime.turns import SLICE_SECONDS

USER_AGENT = ("user-agent", "own/7 grpc-x/1")


def client_ids(*values: str | bytes) -> list[tuple[str, str | bytes]]:
    """Return the metadata of a call with these client ids."""
    return [("millrace-client-id", value) for value in values]


def ask(calls: Calls, context: CallContext, method: Any) -> None:
    """Make a call with one request, and wait for its end."""
    handlers = calls.methods("S", unary={"Ask": (method, GetMetadataRequest, KNOWN)})
    asyncio.run(serve_call(handlers, "/S/Ask", context, b""))


def callers_of(calls: Calls, context: CallContext) -> list[Caller]:
    """Return the callers of a call of each kind from one client."""
    found: list[Caller] = []

    async def answer(_: GetMetadataRequest, caller: Caller) -> GetMetadataResponse:
        found.append(caller)
        return GetMetadataResponse()

    async def follow(_: ServerCall, caller: Caller) -> None:
        found.append(caller)

    handlers = calls.methods(
        "S", unary={"Ask": (answer, GetMetadataRequest, KNOWN)}, streams={"Follow": (follow, KNOWN)}
    )
    asyncio.run(serve_call(handlers, "/S/Ask", context, b""))
    asyncio.run(serve_call(handlers, "/S/Follow", context))
    return found


def test_each_call_has_a_caller_by_its_connection_and_what_it_says() -> None:
    context = CallContext(USER_AGENT, *client_ids("billing"), peer="ipv6:%5B2001:db8::1%5D:4711")
    caller = GuardedCaller(
        principal="anonymous",
        client_id="billing",
        address="[2001:db8::1]:4711",
        listener="outside",
        software="own/7 grpc-x/1",
    )
    assert callers_of(calls_of(Listener.OUTSIDE), context) == [caller, caller]


def test_a_client_that_says_nothing_has_no_name() -> None:
    (caller, _) = callers_of(calls_of(), CallContext())
    assert (caller.client_id, caller.software) == ("", "")


def test_a_principal_is_what_the_connection_has_proved_and_never_what_the_call_says() -> None:
    (caller, _) = callers_of(calls_of(), CallContext(("millrace-principal", "root")))
    assert caller.principal == "anonymous"
    for certificate, principal in (
        ({"peer_uri": [b"spiffe://prod/a"], "x509_common_name": [b"b"]}, "spiffe://prod/a"),
        ({"x509_common_name": [b"b"]}, "b"),
        ({"x509_common_name": [b"b\x1b"]}, "anonymous"),
        ({"peer_uri": [b"spiffe://prod/a", b"spiffe://prod/b"]}, "anonymous"),
    ):
        (caller, _) = callers_of(calls_of(), CallContext(certificate=certificate))
        assert caller.principal == principal


def test_what_a_stranger_calls_its_software_is_short_and_printable() -> None:
    (caller, _) = callers_of(calls_of(), CallContext(("user-agent", "\x1b[2J" + "x" * 1000)))
    assert caller.software == "?[2J" + "x" * 96


@pytest.mark.parametrize("method", ["Ask", "Follow"])
@pytest.mark.parametrize(
    "said",
    [["x" * 256], ["a\x1b[2J"], ["a b"], [""], ["é"], [b"\xff\xfe"], ["a", "b"], ["a\n"]],
    ids=repr,
)
def test_a_malformed_client_id_ends_the_call_before_it_is_served(
    said: list[str | bytes], method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def serve(_: object, caller: Caller) -> Any:
        pytest.fail(f"{caller} was served")

    metrics = BrokerMetrics()
    handlers = calls_of(metrics=metrics).methods(
        "S", unary={"Ask": (serve, GetMetadataRequest, KNOWN)}, streams={"Follow": (serve, KNOWN)}
    )
    context = CallContext(*client_ids(*said))
    request = b"" if method == "Ask" else None
    asyncio.run(serve_call(handlers, f"/S/{method}", context, request))
    assert context.status is grpc.StatusCode.INVALID_ARGUMENT
    error = error_from_trailers(context.trailers, context.details)
    assert isinstance(error, MalformedRequestError)
    assert "client" in error.message
    assert error.message.isprintable()
    assert len(error.message) < 200
    counted = metrics.registry.get_sample_value(
        "millrace_refusals_total", {"error": "MALFORMED_REQUEST", "method": method}
    )
    assert counted == 1
    (line,) = caplog.records
    assert (line.client_id, line.address) == ("", "10.0.0.1:4711")  # type: ignore[attr-defined]


def test_the_longest_client_id_is_taken() -> None:
    (caller, _) = callers_of(calls_of(), CallContext(*client_ids("~" * 255)))
    assert caller.client_id == "~" * 255


def test_a_call_that_is_refused_names_the_error_and_whether_it_may_be_done() -> None:
    async def refuse(_: GetMetadataRequest, __: Caller) -> GetMetadataResponse:
        raise NotControllerError("it stopped", appended=Appended.MAYBE)

    context = CallContext()
    ask(calls_of(), context, refuse)
    assert (context.status, context.details) == (grpc.StatusCode.UNAVAILABLE, "it stopped")
    error = error_from_trailers(context.trailers, context.details)
    assert isinstance(error, NotControllerError)
    assert (error.message, error.appended) == ("it stopped", Appended.MAYBE)


def test_an_answer_larger_than_a_message_may_be_is_refused_by_name() -> None:
    limits = LimitsConfig(message_bytes_max=64 << 10, fetch_response_bytes_max=1024)

    async def answer(request: GetMetadataRequest, _: Caller) -> GetMetadataResponse:
        return GetMetadataResponse(cluster_id=request.topics[0] * 1000)

    def answer_to(text: str) -> bytes | None:
        data = GetMetadataRequest(topics=[text]).SerializeToString()
        handlers = calls_of(limits=limits).methods(
            "S", unary={"Ask": (answer, GetMetadataRequest, KNOWN)}
        )
        answer_or_none: bytes | None = asyncio.run(serve_call(handlers, "/S/Ask", context, data))
        return answer_or_none

    context = CallContext()
    assert len(answer_to("x" * 65) or b"") > 65_000
    assert answer_to("x" * 66) is None
    error = error_from_trailers(context.trailers, context.details)
    assert isinstance(error, MessageTooLargeError)
    assert error.appended is Appended.MAYBE, "it was to be answered, so it was done"


def test_a_stream_whose_client_goes_away_in_the_middle_of_a_message_just_ends() -> None:
    async def serve(_: ServerCall, __: Caller) -> None:
        raise grpc.aio.InternalError

    context = CallContext()
    handlers = calls_of().methods("S", streams={"Follow": (serve, KNOWN)})
    asyncio.run(serve_call(handlers, "/S/Follow", context))
    assert context.status is None


@pytest.mark.parametrize("method", ["Ask", "Follow"])
def test_a_refused_call_and_its_request_are_gone_without_the_garbage_collector(method: str) -> None:
    class Held:
        """What a handler holds, such as a decoded request."""

    held: list[weakref.ref[Any]] = []

    async def refuse(_: object, __: Caller) -> Any:
        request = Held()
        held.append(weakref.ref(request))
        raise MalformedRequestError("it is none")

    handlers: Any = calls_of().methods(
        "S", unary={"Ask": (refuse, GetMetadataRequest, KNOWN)}, streams={"Follow": (refuse, KNOWN)}
    )
    watch = ConnectionWatch(Listener.CLIENTS, LimitsConfig(), BrokerMetrics())

    async def find(details: Any) -> Any:
        return grpc_handlers(handlers).service(details)

    async def call() -> None:
        details: Any = SimpleNamespace(method=f"/S/{method}", invocation_metadata=())
        served: Any = await watch.intercept_service(find, details)
        context = CallContext()
        held.append(weakref.ref(context))
        with contextlib.suppress(grpc.aio.AbortError):
            await (served.unary_unary or served.stream_stream)(b"", context)
        assert context.status is grpc.StatusCode.INVALID_ARGUMENT
        del context  # The error's traceback has this frame, too.

    gc.disable()
    try:
        asyncio.run(call())
        assert [each() for each in held] == [None, None]
    finally:
        gc.enable()


class LargeCall:
    """A call by DRPC whose request has a megabyte of a field that nobody knows."""

    metadata = ()
    address = "10.0.0.1:4711"
    principal = ""

    def on_known(self) -> None:
        pass

    async def read(self) -> memoryview:
        known = GetMetadataRequest(topics=["t"]).SerializeToString()
        unknown = b"\xa2\x06\x80\x80\x3c" + bytes(60 << 14)  # Field 100, with its length.
        return memoryview(bytearray(known + unknown))

    async def write(self, *parts: object) -> None:
        pass


def test_while_a_handler_waits_nothing_holds_the_bytes_of_its_request() -> None:
    found: list[tuple[int, int]] = []

    async def wait(request: GetMetadataRequest, _: Caller) -> GetMetadataResponse:
        await asyncio.sleep(0)
        found.append((tracemalloc.get_traced_memory()[0], request.ByteSize()))
        assert list(request.topics) == ["t"]
        return GetMetadataResponse()

    methods = calls_of().methods("S", unary={"Ask": (wait, GetMetadataRequest, KNOWN)})
    call: Any = LargeCall()
    handle: Any = methods.by_path()["/S/Ask"]
    tracemalloc.start()
    try:
        asyncio.run(handle(call))
        ((held, size),) = found
    finally:
        tracemalloc.stop()
    assert held < 480 << 10
    assert size < 100


def test_a_call_with_too_much_metadata_is_gone_without_the_garbage_collector() -> None:
    watch = ConnectionWatch(Listener.CLIENTS, LimitsConfig(), BrokerMetrics())
    held: list[weakref.ref[Any]] = []

    async def find(_: Any) -> Any:
        raise AssertionError("no handler is looked for")

    async def call() -> None:
        details: Any = SimpleNamespace(method="/S/Ask", invocation_metadata=[("b", "x")] * 1000)
        served: Any = await watch.intercept_service(find, details)
        context = CallContext()
        held.append(weakref.ref(context))
        with contextlib.suppress(grpc.aio.AbortError):
            await served.stream_stream(None, context)
        assert context.status is grpc.StatusCode.RESOURCE_EXHAUSTED
        del context  # The error's traceback has this frame, too.

    gc.disable()
    try:
        asyncio.run(call())
        assert [each() for each in held] == [None]
    finally:
        gc.enable()


def test_large_requests_that_come_together_are_decoded_in_turns_of_the_loop() -> None:
    decode_seconds = SLICE_SECONDS / 2
    decoded = 0

    class Request(SimpleNamespace):
        DESCRIPTOR = GetMetadataRequest.DESCRIPTOR

        @classmethod
        def FromString(cls, data: bytes) -> GetMetadataRequest:
            nonlocal decoded
            decoded += 1
            until = time.monotonic() + decode_seconds
            while time.monotonic() < until:
                pass
            return GetMetadataRequest.FromString(data)

    async def answer(_: object, __: Caller) -> GetMetadataResponse:
        return GetMetadataResponse()

    async def most_in_a_turn(data: bytes) -> int:
        handlers = calls_of().methods("S", unary={"Ask": (answer, Request, KNOWN)})
        calls = [
            asyncio.create_task(serve_call(handlers, "/S/Ask", CallContext(), data))
            for _ in range(10)
        ]
        most = before = decoded
        while not all(call.done() for call in calls):
            await asyncio.sleep(0)  # One turn.
            most, before = max(most, decoded - before), decoded
        return most

    large = GetMetadataRequest(topics=["x" * 200] * 1000).SerializeToString()
    # The one that is under way when the slice ends is decoded.
    assert asyncio.run(most_in_a_turn(large)) <= 3
    assert decoded == 10


def test_a_request_of_ordinary_size_waits_for_no_large_one() -> None:
    ended: list[int] = []
    ordinary = GetMetadataRequest(topics=["x" * 200] * 100).SerializeToString()
    large = GetMetadataRequest(topics=["x" * 200] * 1000).SerializeToString()

    class Request(SimpleNamespace):
        DESCRIPTOR = GetMetadataRequest.DESCRIPTOR

        @classmethod
        def FromString(cls, data: bytes) -> GetMetadataRequest:
            until = time.monotonic() + SLICE_SECONDS / 2
            while len(data) == len(large) and time.monotonic() < until:
                pass
            return GetMetadataRequest.FromString(data)

    async def answer(request: GetMetadataRequest, _: Caller) -> GetMetadataResponse:
        return GetMetadataResponse(topics=[TopicMetadata(name=topic) for topic in request.topics])

    async def story() -> None:
        handlers = calls_of().methods("S", unary={"Ask": (answer, Request, KNOWN)})

        async def call(data: bytes) -> None:
            await serve_call(handlers, "/S/Ask", CallContext(), data)
            ended.append(len(data))

        await asyncio.gather(*(call(data) for data in [large] * 10 + [ordinary]))

    asyncio.run(story())
    assert ended.index(len(ordinary)) <= 3, "those that the first slice has time for come first"


def test_a_request_that_is_passed_on_is_decoded_once() -> None:
    decoded: list[bytes] = []
    passed_on: list[bytes] = []

    class Request(SimpleNamespace):
        DESCRIPTOR = GetMetadataRequest.DESCRIPTOR

        @classmethod
        def FromString(cls, data: bytes) -> GetMetadataRequest:
            decoded.append(data)
            return GetMetadataRequest.FromString(data)

    async def forward(data: bytes, _: Caller) -> GetMetadataResponse:
        passed_on.append(data)
        return GetMetadataResponse()

    handlers = calls_of().methods(
        "S", forwards={"Ask": ((forward, Request, lambda _: None), KNOWN)}
    )
    data = GetMetadataRequest(topics=["a", "b"]).SerializeToString()
    asyncio.run(serve_call(handlers, "/S/Ask", CallContext(), data))
    assert decoded == passed_on == [data]
