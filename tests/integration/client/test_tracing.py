"""The context of a record comes out in the consumer, through a real broker."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from tests.integration.running_broker import RunningBroker, wait_until

from millrace.client import (
    Consumer,
    DeadLetters,
    Producer,
    Record,
    SyncConsumer,
    SyncProducer,
    UnknownTopicOrPartitionError,
)
from millrace.client.metrics import ClientCollector
from millrace.client.tracing import context_of

EXPORTER = InMemorySpanExporter()
TRACER = trace.get_tracer("tests")


@pytest.fixture(scope="module", autouse=True)
def provider() -> None:
    """Collect the spans of this process; a process has one provider, for good."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
    trace.set_tracer_provider(provider)


@pytest.fixture(autouse=True)
def no_spans() -> None:
    EXPORTER.clear()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    running = RunningBroker(tmp_path_factory.mktemp("traced"))
    yield running.start()
    running.abandon()


def spans(name: str, count: int = 1) -> list[Any]:
    """Wait for spans of a name, and return them."""

    def found() -> list[Any]:
        return [span for span in EXPORTER.get_finished_spans() if span.name == name]

    wait_until(lambda: len(found()) >= count, name)
    return found()


def topic(broker: RunningBroker, name: str) -> str:
    broker.create_topic(name)
    return name


def test_a_record_s_context_comes_out_in_the_consumer(broker: RunningBroker) -> None:
    orders = topic(broker, "orders")
    with SyncProducer(broker.address, tracing=True, client_id="shop") as producer:
        with TRACER.start_as_current_span("checkout") as checkout:
            sent = producer.send(orders, b"a", key=b"k", headers={"own": b"1"})
        metadata = sent.result(10)
        producer.send(orders, b"b").result(10)
    first, second = spans("send orders", 2)
    assert first.parent.span_id == checkout.get_span_context().span_id
    assert first.attributes["messaging.client.id"] == "shop"
    assert first.attributes["messaging.destination.partition.id"] == "0"
    assert first.attributes["messaging.millrace.offset"] == metadata.offset
    assert second.parent is None
    with SyncConsumer(broker.address, tracing=True) as consumer:
        consumer.assign([orders])
        read: list[Record] = []
        while len(read) < 2:
            read += consumer.poll(10_000)
    assert [name for name, _ in read[0].headers] == ["own", "traceparent"]
    context = trace.get_current_span(context_of(read[0])).get_span_context()
    assert context.trace_id == checkout.get_span_context().trace_id
    assert context.span_id == first.context.span_id
    links = [link.context.span_id for poll in spans("poll orders") for link in poll.links]
    assert links == [first.context.span_id, second.context.span_id]


def test_the_page_of_a_program_has_the_trace_of_a_slow_send(broker: RunningBroker) -> None:
    orders = topic(broker, "exemplars")
    registry = CollectorRegistry()

    def exemplars() -> list[dict[str, str]]:
        text = generate_latest(registry).decode()  # type: ignore[no-untyped-call]
        families = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
        return [
            sample.exemplar.labels
            for family in families
            for sample in family.samples
            if sample.exemplar is not None
            and sample.name == "millrace_producer_delivery_seconds_bucket"
            and sample.exemplar.value <= float(sample.labels["le"])
        ]

    with SyncProducer(broker.address, tracing=True) as producer:
        registry.register(ClientCollector(producer))
        producer.send(orders, b"a").result(10)
        wait_until(exemplars, "the span has ended")
        producer.send_batch(orders, [b"b", b"c"]).result(10)
        sent = spans("send exemplars", 2)
        wait_until(lambda: 1 <= len(exemplars()) <= 2, "at most one for each bucket")
        traces = [f"{span.context.trace_id:032x}" for span in sent]
        assert {exemplar["trace_id"] for exemplar in exemplars()} <= set(traces)


def test_a_batch_has_one_span_and_each_record_its_context(broker: RunningBroker) -> None:
    name = topic(broker, "batches")
    kept = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    async def main() -> list[pa.RecordBatch]:
        async with Producer(broker.address, tracing=True) as producer:
            await producer.send_batch(name, pa.array(["a", "b"]))
            await producer.send_batch(
                name, [b"c", b"d"], headers=[None, {"traceparent": kept}], partition=0
            )
        async with Consumer(broker.address, tracing=True) as consumer:
            await consumer.assign([name])
            batches: list[pa.RecordBatch] = []
            while sum(map(len, batches)) < 4:
                batches += [batch.records for batch in await consumer.poll_batches(10_000)]
            return batches

    headers = [row["headers"] for batch in asyncio.run(main()) for row in batch.to_pylist()]
    parents = [{header["key"]: header["value"] for header in row}["traceparent"] for row in headers]
    sent = spans("send batches", 2)
    assert [span.attributes["messaging.batch.message_count"] for span in sent] == [2, 2]
    ids = [f"{span.context.span_id:016x}".encode() for span in sent]
    assert [parent.split(b"-")[2] for parent in parents] == [
        ids[0], ids[0], ids[1], b"b7ad6b7169203331",
    ]  # fmt: skip


def test_what_is_not_delivered_ends_with_its_error(broker: RunningBroker) -> None:
    with SyncProducer(broker.address, tracing=True, topic_wait_ms=0) as producer:
        handle = producer.send("absent", b"a")
        batch = producer.send_batch("absent", [b"a", b"b"])
        for waiting in (handle, batch):
            with pytest.raises(UnknownTopicOrPartitionError):
                waiting.result(10)
    ended = spans("send absent", 2)
    assert {span.status.status_code for span in ended} == {StatusCode.ERROR}
    assert {span.attributes["error.type"] for span in ended} == {"UNKNOWN_TOPIC_OR_PARTITION"}


def test_a_handler_goes_on_with_the_trace_and_so_does_a_dead_letter(broker: RunningBroker) -> None:
    jobs, dead = topic(broker, "jobs"), topic(broker, "dead")
    seen: list[int] = []

    def work(record: Record) -> None:
        seen.append(trace.get_current_span().get_span_context().trace_id)
        if record.topic == jobs:
            raise ValueError("it cannot be done")
        consumer.close()

    with SyncProducer(broker.address, tracing=True) as producer:
        with TRACER.start_as_current_span("request") as request:
            producer.send(jobs, b"a").result(10)
        letters = DeadLetters(producer, dead, attempts=1)
        with SyncConsumer(broker.address, tracing=True) as consumer:
            consumer.assign([jobs, dead])
            consumer.process(work, letters)
    assert seen == [request.get_span_context().trace_id] * 2
    (failed,) = spans("process jobs")
    assert failed.attributes["error.type"] == "ValueError"


def test_without_tracing_there_are_neither_spans_nor_headers(broker: RunningBroker) -> None:
    name = topic(broker, "plain")
    with (
        SyncProducer(broker.address) as producer,
        SyncConsumer(broker.address) as consumer,
        TRACER.start_as_current_span("checkout"),
    ):
        producer.send(name, b"a").result(10)
        consumer.assign([name])
        (record,) = consumer.poll(10_000)
    assert record.headers == ()
    assert [span.name for span in EXPORTER.get_finished_spans()] == ["checkout"]
