"""Who is refused is counted, and named in the log, but not each time."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from millrace.broker.rpc.errors import abort
from millrace.broker.rpc.refusals import Refusals
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.errors import (
    BrokerBusyError,
    CorruptBatchError,
    MalformedRequestError,
    MillraceError,
    NotLeaderError,
)
from millrace.core.ids import MonotonicMs
from millrace.proto.v1.common_pb2 import HelloRequest

PEER = "ipv6:%5B::1%5D:4711"


class Stage:
    """Refusals whose clock the test sets."""

    def __init__(self, callers_max: int = 10) -> None:
        self.now = 1000
        self.metrics = BrokerMetrics()
        self.refusals = Refusals(
            self.metrics, callers_max=callers_max, clock=lambda: MonotonicMs(self.now)
        )

    def hello(self, client_id: str, peer: str = PEER) -> None:
        """Let a client say its name."""
        hello = HelloRequest(client_id=client_id, software_name="x", software_version="1")
        self.refusals.on_hello(peer, hello)

    def refuse(self, error: MillraceError, peer: str = PEER) -> None:
        """Let it be refused."""
        self.refusals.on_refused(error, peer, "Produce")

    def counted(self, error: str) -> float | None:
        """Return how often."""
        return self.metrics.registry.get_sample_value("millrace_refusals_total", {"error": error})


def named(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """Return what the log said since this was asked last."""
    records = list(caplog.records)
    caplog.clear()
    assert all(each.levelno == logging.WARNING for each in records)
    return records


def test_a_flood_of_refusals_is_counted_and_some_of_it_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage()
    stage.hello("loader")
    for _ in range(1000):
        stage.refuse(CorruptBatchError("damaged\n" + "x" * 1000))
    (first,) = named(caplog)
    assert (first.peer, first.client_id, first.software) == ("ipv6:[::1]:4711", "loader", "x 1")
    assert (first.method, first.others_since_the_last) == ("Produce", 0)
    assert first.error.startswith("damaged?x")
    assert len(first.error) == 300
    stage.now += 9999
    stage.refuse(BrokerBusyError("too many"))
    assert not named(caplog)
    stage.now += 1
    stage.refuse(BrokerBusyError("too many"), peer="ipv4:10.0.0.1:1")
    (second,) = named(caplog)
    assert (second.client_id, second.others_since_the_last) == ("", 1000)
    assert stage.counted("CORRUPT_BATCH") == 1000
    assert stage.counted("BROKER_BUSY") == 2


def test_what_is_no_fault_of_the_client_is_counted_alone(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    stage.refuse(NotLeaderError("it moved"))
    assert not named(caplog)
    assert stage.counted("NOT_LEADER") == 1


def test_no_more_names_are_kept_than_there_may_be_clients(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage(callers_max=2)
    for number in range(100):
        stage.hello(f"client-{number}", f"ipv4:10.0.0.1:{number}")
        stage.hello("stays", PEER)
    for peer, client_id in (("98", ""), ("99", "client-99"), ("0", "")):
        stage.now += 10_000
        stage.refuse(CorruptBatchError("damaged"), f"ipv4:10.0.0.1:{peer}")
        (record,) = named(caplog)
        assert record.client_id == client_id
    stage.now += 10_000
    stage.refuse(CorruptBatchError("damaged"))
    (record,) = named(caplog)
    assert record.client_id == "stays"


class Call:
    """A call of which gRPC says that it was ended."""

    def peer(self) -> str:
        return PEER

    async def abort(self, status: grpc.StatusCode, details: str) -> None:
        self.status = status
        raise grpc.aio.AbortError


def handlers_of(serve: Any) -> grpc.GenericRpcHandler:
    """Return handlers of one service, with a method of either kind."""
    return grpc.method_handlers_generic_handler(
        "S",
        {
            "Ask": grpc.unary_unary_rpc_method_handler(serve),
            "Hello": grpc.unary_unary_rpc_method_handler(serve),
            "Follow": grpc.stream_stream_rpc_method_handler(serve),
        },
    )


@pytest.mark.parametrize(("method", "kind"), [("Ask", "unary_unary"), ("Follow", "stream_stream")])
def test_a_call_that_is_refused_as_a_whole_is_counted(method: str, kind: str) -> None:
    async def serve(_: object, context: Any) -> None:
        await abort(context, MalformedRequestError("no request"))

    stage, call = Stage(), Call()
    handlers: Any = stage.refusals.watching(handlers_of(serve))
    handler = handlers.service(SimpleNamespace(method=f"/S/{method}"))
    with pytest.raises(grpc.aio.AbortError):
        asyncio.run(getattr(handler, kind)(b"", call))
    assert call.status is grpc.StatusCode.INVALID_ARGUMENT
    assert stage.counted("MALFORMED_REQUEST") == 1
    assert handlers.service(SimpleNamespace(method="/S/Unknown")) is None


def test_who_says_hello_is_known_by_name(caplog: pytest.LogCaptureFixture) -> None:
    async def serve(_: object, context: Any) -> bytes:
        return b"welcome"

    stage, call = Stage(), Call()
    handlers: Any = stage.refusals.watching(handlers_of(serve))
    handler = handlers.service(SimpleNamespace(method="/S/Hello"))
    hello = HelloRequest(client_id="me").SerializeToString()
    assert asyncio.run(handler.unary_unary(hello, call)) == b"welcome"
    stage.refuse(CorruptBatchError("damaged"))
    assert named(caplog)[0].client_id == "me"
