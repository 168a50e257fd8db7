"""The options of writers; names are Kafka's if Kafka has the option."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from millrace.core.coordinator.transactions.transaction import full_id
from millrace.core.errors import InvalidTopicError, InvalidTransactionalIdError
from millrace.core.records.compression import CODEC_NAMES
from millrace.core.settings import INT64_MAX, Unit, setting, settings_of
from millrace.core.topics import parse_topic_name
from millrace.spark.options.option import (
    Use,
    brokers_option,
    namespace_option,
    tls_ca_file_option,
    tls_certificate_file_option,
    tls_key_file_option,
    token_file_option,
)
from millrace.spark.options.option_table import NO_BROKERS, Said, Why, parse_table
from millrace.spark.options.source_options import SourceOptions

EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"
_ALL_TOPICS: Final = "all-topics"
"""The target of a query whose rows name their topics."""
_TARGET_LENGTH_MAX: Final = 200
"""Of a topic's name, where the application id is made for one query or one batch."""


def _name(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text.strip()


@dataclass(frozen=True, kw_only=True, slots=True)
class SinkOptions:
    """The options of one query that writes, parsed."""

    bootstrap_servers: str = brokers_option()
    token_file: str = token_file_option()
    namespace: str = namespace_option()
    topic: str | None = setting(
        None, "The topic of all rows; it overrides the column `topic`. Without it that column is "
        "required.",
        parse=str.strip, allowed="a name",
    )  # fmt: skip
    delivery: str = setting(
        EXACTLY_ONCE, "`exactly-once`: a micro-batch, and a batch, is one transaction: all of its "
        "rows count once, or none. `at-least-once`: rows are readable at once, and a repeated task "
        "or micro-batch writes its rows again. Not in Kafka.",
        aliases=("deliveryGuarantee",), choices=(EXACTLY_ONCE, AT_LEAST_ONCE),
    )  # fmt: skip
    application_id: str | None = setting(
        None, "Under which the brokers keep which micro-batch was written last, for the target: "
        "`id` or `namespace/id`. No two queries have the same for one target.",
        name="applicationId", parse=_name, allowed="a name", scope=Use.STREAM,
        default_text="the id of the query, which its checkpoint holds",
    )  # fmt: skip
    txn_app_id: str | None = setting(
        None, "With `txnVersion`, as in Delta: the brokers keep which version of this application "
        "was written last to the target, and the same version is written once. For `foreachBatch`.",
        name="txnAppId", parse=_name, allowed="a name", scope=Use.BATCH,
        default_text="(none: each write counts by itself)",
    )  # fmt: skip
    txn_version: int | None = setting(
        None, "The version that is written, such as the number of the micro-batch: each is larger "
        "than the one before.",
        name="txnVersion", minimum=0, maximum=INT64_MAX, scope=Use.BATCH,
    )  # fmt: skip
    txn_target: str | None = setting(
        None, "Which output of the application this is; each has a version of its own.",
        name="txnTarget", parse=_name, allowed="a name",
        default_text="the option `topic`",
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
    tls_ca_file: str = tls_ca_file_option()
    tls_certificate_file: str = tls_certificate_file_option()
    tls_key_file: str = tls_key_file_option()
    tracing: bool = setting(
        False, "Spans of OpenTelemetry, and the context of the trace in the headers of rows that "
        "have none: see [tracing](tracing.md). Not in Kafka.",
    )  # fmt: skip

    @property
    def is_exactly_once(self) -> bool:
        """Whether what is written is a transaction."""
        return self.delivery == EXACTLY_ONCE

    def transactional_id(self, made: str = "") -> str:
        """Return the id of the transactions: the application's own, and the target's.

        Args:
            made: the application id, if the options have none. No other query or batch has it.
        """
        application_id = self.application_id or self.txn_app_id
        target = self.txn_target or self.topic or _ALL_TOPICS
        if application_id is None:
            application_id, target = made, target[:_TARGET_LENGTH_MAX]
        if "/" not in application_id:
            application_id = f"{self.namespace}/{application_id}"
        return f"{application_id}@{target}"


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
    "transactional.id": "an application id and a target make it: applicationId or txnAppId",
    "transactionalIdPrefix": "each query has one transaction at a time: give it an applicationId",
    "transaction.timeout.ms": "tasks keep the transaction open while they run",
    "transactionTimeoutMs": "tasks keep the transaction open while they run",
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
    yield from _transaction_problems(options, said)
    if options.linger_ms >= options.delivery_timeout_ms:
        yield f"{said('linger_ms')} is not less than {said('delivery_timeout_ms')}"
    if options.batch_bytes > options.buffer_bytes:
        yield f"{said('batch_bytes')} is more than {said('buffer_bytes')}"


def _transaction_problems(options: SinkOptions, said: Said) -> Iterator[str]:
    names = {
        name: value
        for name in ("application_id", "txn_app_id", "txn_version", "txn_target")
        if (value := getattr(options, name)) is not None
    }
    if not options.is_exactly_once:
        for name in names:
            yield f"{said(name)} needs delivery={EXACTLY_ONCE}"
        return
    if ("txn_app_id" in names) != ("txn_version" in names):
        there, missing = ("txn_app_id", "txnVersion"), ("txn_version", "txnAppId")
        given, lacks = there if "txn_app_id" in names else missing
        yield f"{said(given)} is without {lacks}: give both, or none"
    if options.application_id is None and options.txn_app_id is None:
        return
    if options.topic is None and options.txn_target is None:
        yield (
            f"{said('application_id' if options.application_id else 'txn_app_id')} is without a "
            "target: give the option topic, or txnTarget where rows name their topics"
        )
    try:
        full_id(options.transactional_id())
    except InvalidTransactionalIdError as error:
        yield f"{error.message}. The id is that of the application, @, and txnTarget or the topic"
