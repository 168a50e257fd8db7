"""The options of writers; names are Kafka's wherever Kafka has the option."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from millrace.core.errors import InvalidTopicError
from millrace.core.settings import INT32_MAX
from millrace.core.topics import parse_topic_name
from millrace.spark.option import (
    Use,
    brokers,
    duration,
    namespace_option,
    number,
    one_of,
    option,
    size,
)
from millrace.spark.option_table import NO_BROKERS, options_of, parse_table
from millrace.spark.options import SourceOptions


def _guarantee(text: str) -> str:
    if text.lower() == "exactly-once":
        raise ValueError(
            "it needs transactions, which are not there yet: leave it out, and keep the last row "
            "of each key where that matters"
        )
    return one_of("at-least-once")(text)


@dataclass(frozen=True, kw_only=True, slots=True)
class SinkOptions:
    """The options of one query that writes, parsed."""

    bootstrap_servers: str = option(
        "bootstrap.servers", brokers, "",
        "`host:port` of brokers, separated by commas. Must be given.",
        aliases=("kafka.bootstrap.servers",),
    )  # fmt: skip
    namespace: str = namespace_option()
    topic: str | None = option(
        "topic", str.strip, None,
        "Where all rows go, whatever a column `topic` says. Without it that column must be there.",
    )  # fmt: skip
    delivery_guarantee: str = option(
        "deliveryGuarantee", _guarantee, "at-least-once",
        "`at-least-once`: a task or micro-batch that is repeated writes its rows again. "
        "`exactly-once` is refused until it exists. Not in Kafka.",
    )  # fmt: skip
    partitioner: str = option(
        "partitioner", one_of("keyed", "round_robin"), "keyed",
        "For rows that name no partition. `keyed`: by Kafka's hash of the key, and without a key "
        "wherever the queue is short. `round_robin`: one after the other.",
    )  # fmt: skip
    compression: str = option(
        "compression", one_of("none", "gzip", "snappy", "lz4", "zstd"), "none",
        "How batches are compressed, in the brokers' files, too.",
        aliases=("kafka.compression.type",),
    )  # fmt: skip
    batch_bytes: int = option(
        "batchBytes", size(1, 16 * 1024 * 1024 - 1024), 1_000_000,
        "Bytes of rows at which a batch for a partition is sent; where the topic's "
        "`max.message.bytes` is less, that counts.",
        aliases=("kafka.batch.size",),
    )  # fmt: skip
    linger_ms: int = option(
        "lingerMs", duration(3_600_000), 50,
        "How long rows wait for others to share a batch with; the end of a task does not wait.",
        aliases=("kafka.linger.ms",), default="50ms",
    )  # fmt: skip
    buffer_bytes: int = option(
        "bufferBytes", size(1 << 20, 1 << 40), 32 << 20,
        "Bytes of rows that a task has on their way; it holds up to twice that, beside what Spark "
        "hands it. Not less than the largest row.",
        aliases=("kafka.buffer.memory",), default="32m",
    )  # fmt: skip
    delivery_timeout_ms: int = option(
        "deliveryTimeoutMs", number(1, INT32_MAX), 120_000,
        "How long a row may take to be acknowledged, elections and repeats included, before its "
        "task fails.",
        aliases=("kafka.delivery.timeout.ms",),
    )  # fmt: skip
    request_timeout_ms: int = option(
        "requestTimeoutMs", number(1, INT32_MAX), 30_000,
        "How long a broker may wait for its replicas, and how long it may take to find one that "
        "answers at all.",
        aliases=("kafka.request.timeout.ms",),
    )  # fmt: skip


REFUSED: Final[Mapping[str, str]] = {
    "acks": "a row counts as written when all in-sync replicas have it",
    "enable.idempotence": "what the writer itself repeats is never doubled",
    "retries": "rows are sent again for deliveryTimeoutMs",
    "max.block.ms": "rows wait for room for deliveryTimeoutMs",
    "max.in.flight.requests.per.connection": "the order of rows does not depend on it here",
    "key.serializer": "keys are bytes or text: encode the column in Spark",
    "value.serializer": "values are bytes or text: encode the column in Spark",
    "key.deserializer": "keys are bytes or text: encode the column in Spark",
    "value.deserializer": "values are bytes or text: encode the column in Spark",
    "interceptor.classes": "nothing stands between Spark and the log",
    "partitioner.class": "choose a partitioner, or give a column partition",
    "transactional.id": "there are no transactions yet",
    "transactionalIdPrefix": "there are no transactions yet",
    "transactionTimeoutMs": "there are no transactions yet",
    "path": "the topic is named by the option topic or a column topic, and not by save() or "
    "start()",
}
"""Options of Spark's Kafka sink that have no place here, and why."""

_SPARKS_OWN: Final = ("checkpointlocation", "queryname")
"""What Spark hands to the writer of a stream beside the user's options."""


def parse_sink_options(given: Mapping[str, str], use: Use) -> SinkOptions:
    """Return the options of a query that writes.

    Raises:
        InvalidOptionError: one is unknown, malformed, or contradicts another. Says all that is
            wrong.
    """
    of_readers = {
        known.name: "it is for reading: leave it out" for _, known in options_of(SourceOptions)
    }
    if use is Use.STREAM:
        given = {name: text for name, text in given.items() if name.lower() not in _SPARKS_OWN}
    options = parse_table(SinkOptions, given, use, {**of_readers, **REFUSED}, _contradictions)
    if options.topic is None:
        return options
    return replace(options, topic=str(parse_topic_name(options.topic, options.namespace)))


def _contradictions(options: SinkOptions) -> Iterator[str]:
    if not options.bootstrap_servers:
        yield NO_BROKERS
    if options.topic is not None:
        try:
            parse_topic_name(options.topic, options.namespace)
        except InvalidTopicError as error:
            yield f"topic={options.topic!r}: {error.message}"
    if options.linger_ms >= options.delivery_timeout_ms:
        yield (
            f"lingerMs={options.linger_ms} is not less than "
            f"deliveryTimeoutMs={options.delivery_timeout_ms}"
        )
    if options.batch_bytes > options.buffer_bytes:
        yield f"batchBytes={options.batch_bytes} is more than bufferBytes={options.buffer_bytes}"
