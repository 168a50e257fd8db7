"""The options of writers; names are Kafka's if Kafka has the option."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from millrace.core.errors import InvalidTopicError
from millrace.core.records.compression import CODEC_NAMES
from millrace.core.settings import Unit, setting, settings_of
from millrace.core.topics import parse_topic_name
from millrace.spark.options.option import Use, brokers_option, namespace_option
from millrace.spark.options.option_table import NO_BROKERS, Said, Why, parse_table
from millrace.spark.options.source_options import SourceOptions

AT_LEAST_ONCE: Final = "at-least-once"


def _guarantee(text: str) -> str:
    if text.lower() == "exactly-once":
        raise ValueError(
            "it needs transactions, which are not there yet: leave it out, and keep the last row "
            "of each key where that matters"
        )
    if text.lower() != AT_LEAST_ONCE:
        raise ValueError(f"must be {AT_LEAST_ONCE}")
    return AT_LEAST_ONCE


@dataclass(frozen=True, kw_only=True, slots=True)
class SinkOptions:
    """The options of one query that writes, parsed."""

    bootstrap_servers: str = brokers_option()
    namespace: str = namespace_option()
    topic: str | None = setting(
        None, "The topic of all rows; it overrides the column `topic`. Without it that column is "
        "required.",
        parse=str.strip, allowed="a name",
    )  # fmt: skip
    delivery_guarantee: str = setting(
        AT_LEAST_ONCE, "A task or micro-batch that is repeated writes its rows again. "
        "`exactly-once` is refused until it exists. Not in Kafka.",
        name="deliveryGuarantee", parse=_guarantee, allowed=AT_LEAST_ONCE,
    )  # fmt: skip
    partitioner: str = setting(
        "keyed", "For rows that name no partition. `keyed`: by Kafka's hash of the key, and "
        "without a key wherever the queue is short. `round_robin`: one after the other.",
        choices=("keyed", "round_robin"),
    )  # fmt: skip
    compression: str = setting(
        "none", "How batches are compressed, in the brokers' files, too.",
        aliases=("kafka.compression.type",), choices=CODEC_NAMES,
    )  # fmt: skip
    batch_bytes: int = setting(
        1_000_000, "Bytes of rows at which a batch for a partition is sent; where the "
        "topic's `max.message.bytes` is less, that counts.",
        name="batchBytes", aliases=("kafka.batch.size",),
        unit=Unit.BYTES, minimum=1, maximum=16 * 1024 * 1024 - 1024,
    )  # fmt: skip
    linger_ms: int = setting(
        50, "How long rows wait for others to share a batch with; the end of a task does not wait.",
        name="lingerMs", aliases=("kafka.linger.ms",), unit=Unit.MILLISECONDS, maximum=3_600_000,
    )  # fmt: skip
    buffer_bytes: int = setting(
        32 << 20, "Bytes of rows that a task has on their way; it holds up to twice that, beside "
        "what Spark hands it. Not less than the largest row.",
        name="bufferBytes", aliases=("kafka.buffer.memory",),
        unit=Unit.BYTES, minimum=1 << 20, maximum=1 << 40,
    )  # fmt: skip
    delivery_timeout_ms: int = setting(
        120_000, "How long a row may take to be acknowledged, elections and repeats included, "
        "before its task fails.",
        name="deliveryTimeoutMs", aliases=("kafka.delivery.timeout.ms",),
        unit=Unit.MILLISECONDS, minimum=1,
    )  # fmt: skip
    request_timeout_ms: int = setting(
        30_000, "How long a broker may wait for its replicas, and how long it may take to find one "
        "that answers at all.",
        name="requestTimeoutMs", aliases=("kafka.request.timeout.ms",),
        unit=Unit.MILLISECONDS, minimum=1,
    )  # fmt: skip
    tracing: bool = setting(
        False, "Spans of OpenTelemetry, and the context of the trace in the headers of rows that "
        "have none: see [tracing](tracing.md). Not in Kafka.",
    )  # fmt: skip


REFUSED: Final[Mapping[str, Why]] = {
    "acks": "a row counts as written when all in-sync replicas have it",
    "enable.idempotence": "retries of the writer are never duplicated",
    "retries": "rows are sent again for deliveryTimeoutMs",
    "max.block.ms": "rows wait for room for deliveryTimeoutMs",
    "max.in.flight.requests.per.connection": "the order of rows does not depend on it here",
    "key.serializer": "keys are bytes or text: encode the column in Spark",
    "value.serializer": "values are bytes or text: encode the column in Spark",
    "key.deserializer": "keys are bytes or text: encode the column in Spark",
    "value.deserializer": "values are bytes or text: encode the column in Spark",
    "interceptor.classes": "nothing stands between Spark and the log",
    "partitioner.class": "choose a partitioner, or give a column partition",
    "transactional.id": "the sink writes without transactions",
    "transactionalIdPrefix": "the sink writes without transactions",
    "transactionTimeoutMs": "the sink writes without transactions",
    "path": "the topic is named by the option topic or a column topic, and not by save() or "
    "start()",
}
"""Options of Spark's Kafka sink that are not supported here, and why."""

_SPARKS_OWN: Final = ("checkpointlocation", "queryname")
"""Options that Spark adds for the writer of a stream."""


def parse_sink_options(given: Mapping[str, str], use: Use) -> SinkOptions:
    """Return the options of a query that writes.

    Raises:
        InvalidOptionError: one is unknown, malformed, or contradicts another. Lists all problems.
    """
    of_readers: dict[str, Why] = dict.fromkeys(
        settings_of(SourceOptions), "it is for reading: leave it out"
    )
    if use is Use.STREAM:
        given = {name: text for name, text in given.items() if name.lower() not in _SPARKS_OWN}
    options = parse_table(SinkOptions, given, use, {**of_readers, **REFUSED}, _contradictions)
    if options.topic is None:
        return options
    return replace(options, topic=str(parse_topic_name(options.topic, options.namespace)))


def _contradictions(options: SinkOptions, said: Said) -> Iterator[str]:
    if not options.bootstrap_servers:
        yield NO_BROKERS
    if options.topic is not None:
        try:
            parse_topic_name(options.topic, options.namespace)
        except InvalidTopicError as error:
            yield f"topic={options.topic!r}: {error.message}"
    if options.linger_ms >= options.delivery_timeout_ms:
        yield f"{said('linger_ms')} is not less than {said('delivery_timeout_ms')}"
    if options.batch_bytes > options.buffer_bytes:
        yield f"{said('batch_bytes')} is more than {said('buffer_bytes')}"
