"""The context of a trace goes through a query of Spark, from record to record."""

from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from tests.integration.running_broker import RunningBroker

from millrace.client import Record, SyncAdmin, SyncConsumer, SyncProducer
from millrace.client.tracing import Tracing, context_of


def test_rows_keep_the_trace_of_their_records(
    spark: Any, shared_broker: RunningBroker, topic_name: str
) -> None:
    before, after = f"{topic_name}-before", f"{topic_name}-after"
    with SyncAdmin(shared_broker.address) as admin:
        admin.create_topic(before)
        admin.create_topic(after)
    span = TracerProvider().get_tracer("tests").start_span("checkout")
    with SyncProducer(shared_broker.address) as producer:
        producer.send(before, b"traced", headers=Tracing("tests").headers(span))
        producer.send(before, b"plain", headers={"own": b"1"})
    options = {"kafka.bootstrap.servers": shared_broker.address, "tracing": "true"}
    rows = (
        spark.read.format("millrace")
        .options(**options, subscribe=before, includeHeaders="true")
        .load()
        .select("value", "headers")
    )
    rows.write.format("millrace").options(**options, topic=after).mode("append").save()
    with SyncConsumer(shared_broker.address) as consumer:
        consumer.assign([after])
        read: dict[bytes, Record] = {}
        while len(read) < 2:
            read |= {record.value: record for record in consumer.poll(10_000)}
    context = trace.get_current_span(context_of(read[b"traced"])).get_span_context()
    assert context.trace_id == span.get_span_context().trace_id
    assert context.span_id == span.get_span_context().span_id
    assert read[b"plain"].headers == (("own", b"1"),), "its workers have no tracer provider"
