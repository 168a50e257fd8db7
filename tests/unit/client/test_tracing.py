"""Contexts come out of headers as they went in; strangers' headers are harmless; off is free."""

import asyncio
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from tests.arch.repository import ROOT

from millrace.client._consumer.records import Record
from millrace.client.tracing import LINKS_MAX, Tracing, context_of
from millrace.core.errors import NotLeaderError, SerializationError
from millrace.core.ids import Offset, WallMs
from millrace.core.records.columns import HEADERS_TYPE

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Stage:
    """A client's spans, and where they are collected."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = Tracing("billing", "readers", provider=provider)

    def spans(self) -> Any:
        """Return the spans that have ended."""
        return self._exporter.get_finished_spans()


@pytest.fixture
def stage() -> Stage:
    return Stage()


def record(*headers: tuple[str, bytes | None]) -> Record:
    return Record("orders", 3, Offset(17), WallMs(1), b"secret key", b"secret value", headers)


def test_the_context_of_a_span_goes_through_headers(stage: Stage) -> None:
    span = stage.tracing.begin_send("orders")
    headers = tuple(stage.tracing.headers(span))
    assert [name for name, _ in headers] == ["traceparent"]
    context = trace.get_current_span(context_of(record(*headers))).get_span_context()
    assert context.trace_id == span.get_span_context().trace_id
    assert context.span_id == span.get_span_context().span_id
    assert context.is_remote


def test_the_state_of_the_trace_comes_along() -> None:
    context = context_of(record(("traceparent", PARENT), ("tracestate", b"vendor=1")))
    assert trace.get_current_span(context).get_span_context().trace_state["vendor"] == "1"


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("traceparent", None),),
        (("traceparent", b"\xff\xfe"),),
        (("traceparent", b"00-0-0-00"),),
        (("traceparent", b"x" * 1_000_000),),
        (("traceparent", PARENT.replace(b"b7ad6b7169203331", b"0" * 16)),),
    ],
)
def test_headers_of_strangers_give_no_context(stage: Stage, headers: Any) -> None:
    context = context_of(record(*headers))
    assert not trace.get_current_span(context).get_span_context().is_valid
    column = pa.array([headers], HEADERS_TYPE)
    stage.tracing.polled(["orders"], 1, [column], 1)
    (span,) = stage.spans()
    assert span.links == ()


def test_a_span_of_a_record_names_what_was_sent_and_where(stage: Stage) -> None:
    span = stage.tracing.begin_send("orders", 10)
    stage.tracing.end_send(span, None, partition=3, offset=17)
    (ended,) = stage.spans()
    assert (ended.name, ended.kind) == ("send orders", SpanKind.PRODUCER)
    assert dict(ended.attributes) == {
        "messaging.system": "millrace",
        "messaging.client.id": "billing",
        "messaging.consumer.group.name": "readers",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "3",
        "messaging.batch.message_count": 10,
        "messaging.millrace.offset": 17,
    }
    assert ended.status.status_code is StatusCode.UNSET


def test_a_failed_send_has_the_name_of_its_error(stage: Stage) -> None:
    stage.tracing.end_send(stage.tracing.begin_send("orders"), NotLeaderError("it moved"))
    (ended,) = stage.spans()
    assert ended.attributes["error.type"] == "NOT_LEADER"
    assert ended.status.status_code is StatusCode.ERROR
    assert ended.status.description == "it moved"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("invalid literal for int() with base 10: b'the value'"), "ValueError"),
        (SerializationError("the value serializer raised KeyError('the value')"), "SERIALIZATION"),
    ],
)
def test_an_error_that_may_quote_the_record_is_named_alone(
    stage: Stage, error: Exception, kind: str
) -> None:
    def fail(_: Record) -> None:
        raise error

    with pytest.raises(type(error)):
        stage.tracing.traced(fail)(record())
    (span,) = stage.spans()
    assert span.attributes["error.type"] == kind
    assert span.status.status_code is StatusCode.ERROR
    assert "the value" not in span.to_json()


def test_a_poll_has_links_to_different_contexts_and_not_to_all(stage: Stage) -> None:
    parents = [PARENT.replace(b"331-", b"%03x-" % number) for number in range(1, 301)]
    column = pa.array(
        [[("a", b"1"), ("traceparent", parent)] for parent in (*parents, *parents)], HEADERS_TYPE
    )
    stage.tracing.polled(["orders"], 600, [column[2:], column], 1_000)
    (span,) = stage.spans()
    assert (span.name, span.kind, span.start_time) == ("poll orders", SpanKind.CLIENT, 10**9)
    assert span.attributes["messaging.batch.message_count"] == 600
    assert len(span.links) == LINKS_MAX
    assert span.links[0].context.span_id == int(b"b7ad6b7169203003", 16)


def test_a_poll_of_several_topics_names_none(stage: Stage) -> None:
    stage.tracing.polled(["a", "b"], 2, [], 1)
    (span,) = stage.spans()
    assert span.name == "poll"
    assert "messaging.destination.name" not in span.attributes


def test_a_handler_runs_in_the_trace_of_its_record(stage: Stage) -> None:
    seen: list[int] = []

    def handle(_: Record) -> str:
        seen.append(trace.get_current_span().get_span_context().trace_id)
        return "done"

    assert stage.tracing.traced(handle)(record(("traceparent", PARENT))) == "done"
    (span,) = stage.spans()
    assert (span.name, span.kind) == ("process orders", SpanKind.CONSUMER)
    assert seen == [int("0af7651916cd43dd8448eb211c80319c", 16)]
    assert span.parent.span_id == int("b7ad6b7169203331", 16)
    assert not trace.get_current_span().get_span_context().is_valid
    assert "secret" not in span.to_json()


def test_a_coroutine_runs_in_it_until_its_end(stage: Stage) -> None:
    async def handle(_: Record) -> int:
        await asyncio.sleep(0)
        assert not stage.spans()
        return trace.get_current_span().get_span_context().trace_id

    async def main() -> int:
        traced: int = await stage.tracing.traced(handle)(record(("traceparent", PARENT)))
        return traced

    assert asyncio.run(main()) == int("0af7651916cd43dd8448eb211c80319c", 16)
    assert len(stage.spans()) == 1


@pytest.mark.parametrize("is_coroutine", [False, True])
def test_the_error_of_a_handler_is_raised_and_named(stage: Stage, is_coroutine: bool) -> None:
    async def fail_later(_: Record) -> None:
        raise KeyError("missing")

    def fail(_: Record) -> None:
        raise KeyError("missing")

    handler = stage.tracing.traced(fail_later if is_coroutine else fail)

    async def main() -> None:
        await handler(record())

    with pytest.raises(KeyError):
        asyncio.run(main())
    (span,) = stage.spans()
    assert span.attributes["error.type"] == "KeyError"
    assert span.parent is None


def test_clients_do_without_opentelemetry_unless_it_is_asked_for() -> None:
    code = """
import asyncio, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "opentelemetry":
            raise ImportError(f"no {name} here")

sys.meta_path.insert(0, Absent())
from millrace.client import Consumer, InvalidConfigError, Producer, SyncConsumer, SyncProducer

async def main():
    for kind in (Producer, Consumer):
        await kind("localhost:1").close()
        try:
            kind("localhost:1", tracing=True)
        except InvalidConfigError as error:
            assert "pip install opentelemetry-api" in str(error), error
        else:
            raise AssertionError("it was taken")

asyncio.run(main())
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
