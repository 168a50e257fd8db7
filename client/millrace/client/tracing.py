"""Tracing by OpenTelemetry: the context of a trace travels in the headers of records.

It is on with `tracing=True`, needs `pip install opentelemetry-api`, and costs nothing otherwise:
then this module is not even imported. A producer begins a span for each `send()` or `send_batch()`,
which ends with the acknowledgement, and puts the span's context into the headers `traceparent` and
`tracestate` (W3C Trace Context). Records that have a `traceparent` already keep it, as copies do. A
consumer has a span for each `poll` with links to the contexts of its records, and one for each
record that `process` hands to the handler. Without a tracer provider of the program, spans record
nothing, and headers only pass on a context that is current.

Names and attributes are those of OpenTelemetry's conventions for messaging. Keys and values of
records are never in a span.

Sources: https://www.w3.org/TR/trace-context/,
https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from millrace.core.errors import MillraceError, SerializationError
from millrace.core.records.columns import RecordHeaders

PARENT_HEADER: Final = "traceparent"
STATE_HEADER: Final = "tracestate"
_HEADER_BYTES_MAX: Final = 512
"""A longer header of a stranger is not read. `tracestate` may have as many."""
LINKS_MAX: Final = 128
"""Links of one span, as in OpenTelemetry's SDK."""

_W3C: Final = TraceContextTextMapPropagator()
_NS_PER_MS: Final = 1_000_000


class TracedRecord(Protocol):
    """A record of a consumer."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]: ...


def context_of(record: TracedRecord) -> Context:
    """Return the context in which a record was sent.

    It is the parent of what a program does with the record:

        with tracer.start_as_current_span("bill", context=context_of(record)):
            bill(record)

    A record without a context, or with a malformed one, gives an empty context.
    """
    carrier = {
        name: value.decode("ascii", "replace")
        for name, value in record.headers
        if name in (PARENT_HEADER, STATE_HEADER)
        and value is not None
        and len(value) <= _HEADER_BYTES_MAX
    }
    return _W3C.extract(carrier, Context())


class Tracing:
    """The spans of one client.

    Args:
        client_id: of the client.
        group: of a consumer; empty: none.
        provider: of tracers; None: that of the program.
    """

    def __init__(
        self, client_id: str, group: str = "", provider: trace.TracerProvider | None = None
    ) -> None:
        self._tracer = trace.get_tracer("millrace.client", tracer_provider=provider)
        self._attributes: dict[str, str] = {
            "messaging.system": "millrace",
            "messaging.client.id": client_id,
        }
        if group:
            self._attributes["messaging.consumer.group.name"] = group

    # Producers.

    def begin_send(self, topic: str, record_count: int | None = None) -> Span:
        """Begin the span of a record that is sent, or of a batch of so many."""
        return self._begin("send", topic, SpanKind.PRODUCER, record_count)

    def headers(self, span: Span) -> RecordHeaders:
        """Return the headers that carry the context of a span; none: it has no context."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, trace.set_span_in_context(span, Context()))
        return tuple((name, value.encode()) for name, value in carrier.items())

    def end_send(
        self,
        span: Span,
        error: BaseException | None,
        *,
        partition: int | None = None,
        offset: int = -1,
    ) -> None:
        """End the span of a record or batch that is acknowledged or has failed."""
        if partition is not None:
            span.set_attribute("messaging.destination.partition.id", str(partition))
        if offset >= 0:
            span.set_attribute("messaging.millrace.offset", offset)
        _end(span, error)

    def sampled_trace(self, span: Span) -> str:
        """Return the id of a span's trace, if it is recorded; empty: it is not."""
        context = span.get_span_context()
        return trace.format_trace_id(context.trace_id) if context.trace_flags.sampled else ""

    # Consumers.

    def polled(
        self, topics: Iterable[str], record_count: int, headers: Iterable[pa.Array], begun_ms: int
    ) -> None:
        """Record that `poll` handed out records, with links to the contexts of the first of them.

        Args:
            topics: of the records.
            record_count: how many.
            headers: columns of them.
            begun_ms: when `poll` was called.
        """
        contexts: dict[bytes, None] = {}
        for column in headers:
            contexts.update(dict.fromkeys(_parents(column, LINKS_MAX - len(contexts))))
            if len(contexts) >= LINKS_MAX:
                break
        sent_in = map(_span_context, contexts)
        links = [Link(context) for context in sent_in if context.is_valid]
        names = set(topics)
        topic = names.pop() if len(names) == 1 else ""
        begun = begun_ms * _NS_PER_MS
        self._begin(
            "poll", topic, SpanKind.CLIENT, record_count, links=links, start_time=begun
        ).end()

    def traced(self, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a handler of records each of whose calls is a span, in the context of the record.

        A coroutine function stays one.
        """

        def call(record: TracedRecord) -> Any:
            span = self._begin_process(record)
            try:
                with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                    done = handler(record)
            except BaseException as error:
                _end(span, error)
                raise
            if inspect.isawaitable(done):
                return _awaited(done, span)
            span.end()
            return done

        return call

    def _begin_process(self, record: TracedRecord) -> Span:
        context = context_of(record)
        sent_in = trace.get_current_span(context).get_span_context()
        span = self._tracer.start_span(
            f"process {record.topic}",
            context=context if sent_in.is_valid else None,
            kind=SpanKind.CONSUMER,
            attributes=self._named("process", record.topic),
            links=[Link(sent_in)] if sent_in.is_valid else (),
        )
        span.set_attribute("messaging.destination.partition.id", str(record.partition))
        span.set_attribute("messaging.millrace.offset", record.offset)
        return span

    def _begin(
        self,
        operation: str,
        topic: str,
        kind: SpanKind,
        record_count: int | None,
        *,
        links: Iterable[Link] = (),
        start_time: int | None = None,
    ) -> Span:
        attributes: dict[str, str | int] = dict(self._named(operation, topic))
        if record_count is not None:
            attributes["messaging.batch.message_count"] = record_count
        return self._tracer.start_span(
            f"{operation} {topic}".rstrip(),
            kind=kind,
            attributes=attributes,
            links=tuple(links),
            start_time=start_time,
        )

    def _named(self, operation: str, topic: str) -> Mapping[str, str]:
        named = {
            **self._attributes,
            "messaging.operation.name": operation,
            "messaging.operation.type": "receive" if operation == "poll" else operation,
        }
        return {**named, "messaging.destination.name": topic} if topic else named


async def _awaited(done: Any, span: Span) -> Any:
    try:
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            result = await done
    except BaseException as error:
        _end(span, error)
        raise
    span.end()
    return result


def _end(span: Span, error: BaseException | None) -> None:
    if error is not None:
        name, text = type(error).__qualname__, None
        if isinstance(error, MillraceError):
            name = error.name()
            # Another error may quote the record, as that of `int(record.value)` does.
            text = None if isinstance(error, SerializationError) else str(error)
        span.set_attribute("error.type", name)
        span.set_status(StatusCode.ERROR, text)
    span.end()


def _parents(headers: pa.Array, count_max: int) -> list[bytes]:
    """Return the different `traceparent` headers of a column, at most so many."""
    entries = headers.flatten()
    is_parent = pc.equal(entries.field("key"), PARENT_HEADER)
    found = pc.unique(entries.field("value").filter(is_parent))
    return [
        value
        for value in found.slice(0, count_max).to_pylist()
        if value is not None and len(value) <= _HEADER_BYTES_MAX
    ]


def _span_context(parent: bytes) -> trace.SpanContext:
    context = _W3C.extract({PARENT_HEADER: parent.decode("ascii", "replace")}, Context())
    return trace.get_current_span(context).get_span_context()
