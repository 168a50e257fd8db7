"""The options of readers.

Names are Kafka's if Kafka has the option, so that a user of Spark's Kafka source changes only the
format.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from millrace.core.errors import InvalidTopicError
from millrace.core.isolation import ISOLATIONS, READ_COMMITTED, READ_UNCOMMITTED, Isolation
from millrace.core.settings import INT64_MAX, Unit, setting, settings_of
from millrace.spark.errors import InvalidOptionError
from millrace.spark.options import subscriptions
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


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceOptions:
    """The options of one query, parsed."""

    bootstrap_servers: str = brokers_option()
    token_file: str = token_file_option()
    subscribe: subscriptions.Topics | None = setting(
        None, "Topics to read, separated by commas. Exactly one of `subscribe`, "
        "`subscribePattern` and `assign` must be given.",
        parse=subscriptions.topics, allowed="names",
    )  # fmt: skip
    subscribe_pattern: subscriptions.TopicPattern | None = setting(
        None, "A regular expression of Python's that the whole name of a topic matches, with its "
        "namespace unless that is `default`. A stream takes in topics that come.",
        name="subscribePattern", parse=subscriptions.pattern, allowed="a regular expression",
    )  # fmt: skip
    namespace: str = namespace_option()
    assign: subscriptions.Partitions | None = setting(
        None, 'Partitions to read: `{"clicks":[0,1]}`.', parse=subscriptions.partitions,
        allowed="JSON",
    )  # fmt: skip
    starting_offsets: subscriptions.OffsetsOption | None = setting(
        None, '`earliest`, `latest`, or `{"clicks":{"0":23,"1":-2}}` with every partition: -2 is '
        "earliest, -1 latest. In a stream it applies to a new checkpoint. `latest` is refused in a "
        "batch, which would read nothing; a stream needs `groupId` with it.",
        name="startingOffsets", parse=subscriptions.offsets, allowed="earliest, latest or JSON",
        default_text="latest (stream), earliest (batch)",
    )  # fmt: skip
    starting_timestamp: subscriptions.OffsetsOption | None = setting(
        None, "Begin at the first record at or after this time: ms since 1970 UTC, or ISO 8601, "
        "UTC unless it names a zone. Counts before `startingOffsetsByTimestamp`, which counts "
        "before `startingOffsets`.",
        name="startingTimestamp", parse=subscriptions.timestamp, allowed="a time",
    )  # fmt: skip
    starting_offsets_by_timestamp: subscriptions.OffsetsOption | None = setting(
        None, 'The same for each partition: `{"clicks":{"0":1672531200000,"1":1672531200000}}`.',
        name="startingOffsetsByTimestamp", parse=subscriptions.timestamps, allowed="JSON",
    )  # fmt: skip
    starting_strategy: str = setting(
        "error", "Where no record is so late: `error` refuses, `latest` begins at the end.",
        name="startingOffsetsByTimestampStrategy", choices=("error", "latest"),
    )  # fmt: skip
    ending_offsets: subscriptions.OffsetsOption | None = setting(
        None, "Where to end, exclusive: `latest`, or JSON as `startingOffsets`.",
        name="endingOffsets", parse=subscriptions.offsets, allowed="latest or JSON",
        default_text="latest", scope=Use.BATCH,
    )  # fmt: skip
    ending_timestamp: subscriptions.OffsetsOption | None = setting(
        None, "End before the first record at or after this time; where there is none, at the end.",
        name="endingTimestamp", parse=subscriptions.timestamp, allowed="a time", scope=Use.BATCH,
    )  # fmt: skip
    ending_offsets_by_timestamp: subscriptions.OffsetsOption | None = setting(
        None, "The same for each partition.",
        name="endingOffsetsByTimestamp", parse=subscriptions.timestamps, allowed="JSON",
        scope=Use.BATCH,
    )  # fmt: skip
    fail_on_data_loss: bool = setting(
        True, "Fail when records to be read are gone: retention has deleted them, the topic "
        "was deleted or created again, the log was truncated after an unclean election. `false` "
        "goes on with the present records, and logs that.",
        name="failOnDataLoss",
    )  # fmt: skip
    max_offsets_per_trigger: int | None = setting(
        None, "Offsets in a micro-batch at the most, shared out by what waits in each partition: "
        "as many records, or fewer where the topic is compacted or has transactions, whose ends "
        "have offsets, too. None starves. Set it: without, a first batch is as large as the topic.",
        name="maxOffsetsPerTrigger", aliases=("maxRecordsPerTrigger",),
        minimum=1, maximum=INT64_MAX, scope=Use.STREAM,
    )  # fmt: skip
    max_bytes_per_trigger: int | None = setting(
        None, "So many bytes in a micro-batch at the most, as they are stored, and at least a "
        "record of each partition where one waits. Not in Kafka.",
        name="maxBytesPerTrigger",
        unit=Unit.BYTES, minimum=1, maximum=INT64_MAX, scope=Use.STREAM,
    )  # fmt: skip
    min_offsets_per_trigger: int | None = setting(
        None, "Wait until so many offsets are there, or `maxTriggerDelay` is over.",
        name="minOffsetsPerTrigger", minimum=1, maximum=INT64_MAX, scope=Use.STREAM,
    )  # fmt: skip
    max_trigger_delay_ms: int = setting(
        15 * 60_000,
        "How long `minOffsetsPerTrigger` may hold a batch back; after a start, not at all.",
        name="maxTriggerDelay", unit=Unit.MILLISECONDS, maximum=INT64_MAX, scope=Use.STREAM,
    )  # fmt: skip
    min_partitions: int | None = setting(
        None, "Tasks at least: large partitions are read by several. Beside `maxPartitions` about "
        "as many.",
        name="minPartitions", minimum=1, maximum=100_000,
    )  # fmt: skip
    max_records_per_partition: int | None = setting(
        None,
        "Offsets that one task reads at the most; more where `maxPartitions` leaves too few tasks.",
        name="maxRecordsPerPartition", minimum=1, maximum=INT64_MAX,
    )  # fmt: skip
    max_partitions: int | None = setting(
        None, "Tasks at the most: small partitions share one. A task costs some 13 ms, so twice "
        "the number of cores is a good choice for low latency. Not in Kafka.",
        name="maxPartitions", minimum=1, maximum=100_000,
    )  # fmt: skip
    isolation: str = setting(
        READ_COMMITTED, "`read_committed`: records of a transaction are read once it is "
        "committed, and a query goes as far as no transaction is open. `read_uncommitted`: also "
        "the records of open and aborted ones; that is Kafka's default.",
        aliases=("kafka.isolation.level",), choices=ISOLATIONS,
    )  # fmt: skip
    include_headers: bool = setting(False, "Adds the column `headers`.", name="includeHeaders")
    tls_ca_file: str = tls_ca_file_option()
    tls_certificate_file: str = tls_certificate_file_option()
    tls_key_file: str = tls_key_file_option()
    tracing: bool = setting(
        False, "Spans of OpenTelemetry for what tasks read, with links to the contexts in which "
        "the records were sent: see [tracing](tracing.md). Not in Kafka.",
    )  # fmt: skip
    group_id: str | None = setting(
        None, "The name under which the brokers keep where the stream began, and how far it has "
        "read. It assigns no partitions. Give each checkpoint a name of its own: another query of "
        "the name begins where the first one did, and is refused if its options differ.",
        name="groupId", aliases=("kafka.group.id",), scope=Use.STREAM,
    )  # fmt: skip
    commit_offsets: bool | None = setting(
        None, "Report to the brokers under `groupId` up to where a micro-batch has read, when the "
        "next one begins. For tools: the query goes on from its checkpoint. Not in Kafka.",
        name="commitOffsets", default_text="true with `groupId`", scope=Use.STREAM,
    )  # fmt: skip
    poll_timeout_ms: int = setting(
        120_000, "How long a task waits for the next records of its range before it fails.",
        name="pollTimeoutMs", aliases=("kafkaConsumer.pollTimeoutMs",),
        unit=Unit.MILLISECONDS, minimum=1,
    )  # fmt: skip
    request_timeout_ms: int = setting(
        30_000, "How long a look-up of offsets may take: elections, and brokers that restart, are "
        "waited for.",
        name="requestTimeoutMs", aliases=("kafka.request.timeout.ms",),
        unit=Unit.MILLISECONDS, minimum=1,
    )  # fmt: skip
    latest_offset_wait_ms: int = setting(
        0, "How long a trigger waits for new records where there are none; 0: not at all. Not in "
        "Kafka.",
        name="latestOffsetMaxWaitMs", unit=Unit.MILLISECONDS, maximum=60_000, scope=Use.STREAM,
    )  # fmt: skip
    fetch_max_bytes: int = setting(
        8 << 20, "Bytes of records that a task has on their way from each broker: what it reads "
        "ahead, and so what it holds in memory. Not less than the largest batch of a topic.",
        name="fetchMaxBytes", aliases=("kafka.fetch.max.bytes",),
        unit=Unit.BYTES, minimum=64 << 10, maximum=1 << 30,
    )  # fmt: skip
    batch_rows: int = setting(
        20_000, "Rows in one Arrow batch at the most. Small batches of the log are put together; "
        "those of 256 KiB or more are handed on as they are.",
        name="batchRows", minimum=1, maximum=1_000_000,
    )  # fmt: skip
    filter_pushdown: bool = setting(
        False, "Let filters on topic, partition, offset and timestamp decide what is read. Spark "
        "wants `spark.sql.python.filterPushdown.enabled=true` with it. Only where every use of the "
        "DataFrame has the same filters: Spark keeps those of one query for the next one, which "
        "then lacks records without an error.",
        name="filterPushdown", scope=Use.BATCH,
    )  # fmt: skip
    rack: str | None = setting(
        None, "The zone of the executors: partitions are read from an in-sync replica of the same "
        "zone where there is one.",
        aliases=("kafka.client.rack",), default_text="`MILLRACE_CLIENT_RACK` of the executor",
    )  # fmt: skip

    @property
    def subscription(self) -> subscriptions.Subscription:
        """Return the subscription."""
        (chosen,) = _chosen_subscriptions(self)
        return chosen

    @property
    def reads(self) -> Isolation:
        """Return the isolation."""
        return READ_COMMITTED if self.isolation == READ_COMMITTED else READ_UNCOMMITTED

    def start(self, use: Use) -> tuple[str, subscriptions.OffsetsOption]:
        """Return where to begin, and the option for that."""
        for name, given in (
            ("startingTimestamp", self.starting_timestamp),
            ("startingOffsetsByTimestamp", self.starting_offsets_by_timestamp),
            ("startingOffsets", self.starting_offsets),
        ):
            if given is not None:
                return name, given
        return "startingOffsets", subscriptions.OffsetsOption(
            "earliest" if use is Use.BATCH else "latest"
        )

    def end(self) -> tuple[str, subscriptions.OffsetsOption]:
        """Return where to end, and the option for that."""
        for name, given in (
            ("endingTimestamp", self.ending_timestamp),
            ("endingOffsetsByTimestamp", self.ending_offsets_by_timestamp),
            ("endingOffsets", self.ending_offsets),
        ):
            if given is not None:
                return name, given
        return "endingOffsets", subscriptions.OffsetsOption("latest")


REFUSED: Final[Mapping[str, Why]] = {
    "auto.offset.reset": "say where to begin with startingOffsets",
    "enable.auto.commit": {
        Use.BATCH: "a batch keeps no offsets: say where to begin with startingOffsets",
        Use.STREAM: "the checkpoint keeps the offsets; commitOffsets reports them",
    },
    "key.deserializer": "keys are bytes: decode the column in Spark",
    "value.deserializer": "values are bytes: decode the column in Spark",
    "key.serializer": "keys are bytes: encode the column in Spark",
    "value.serializer": "values are bytes: encode the column in Spark",
    "interceptor.classes": "nothing stands between the log and Spark",
    "isolation.level": "it is isolation here, by default read_committed",
    "groupIdPrefix": {
        Use.BATCH: "a batch is of no group: leave it out",
        Use.STREAM: "name the query with groupId",
    },
    "fetchOffset.numRetries": "look-ups are repeated for requestTimeoutMs",
    "fetchOffset.retryIntervalMs": "look-ups are repeated for requestTimeoutMs",
    "pushdown": {
        Use.BATCH: "Spark keeps the filters of one query for the next one on the same DataFrame, "
        "which then lacks records: say what to read by assign, startingOffsets and the like, or "
        "give filterPushdown=true where every use of the DataFrame has the same filters",
        Use.STREAM: "Spark pushes no filters into a stream: say what to read by assign, "
        "startingOffsets and the like",
    },
    "path": "topics are named by subscribe, subscribePattern or assign, and not by load()",
}
"""Options of Spark's Kafka source, and former ones, that are not supported here, and why."""


def parse_options(given: Mapping[str, str], use: Use) -> SourceOptions:
    """Return the options of a query that reads.

    Raises:
        InvalidOptionError: one is unknown, malformed, or contradicts another. Lists all problems.
    """
    options = parse_table(
        SourceOptions,
        given,
        use,
        REFUSED,
        lambda options, said: _contradictions(options, use, said),
    )
    return _within_namespace(options)


def _within_namespace(options: SourceOptions) -> SourceOptions:
    """Return the options with full names of topics.

    Raises:
        InvalidOptionError: names that are no topics' are in it.
    """
    named: dict[str, Any] = {}
    problems = []
    for described in settings_of(SourceOptions).values():
        value = getattr(options, described.attribute)
        if described.attribute not in _NAMING_TOPICS or value is None:
            continue
        try:
            named[described.attribute] = value.within(options.namespace)
        except InvalidTopicError as error:
            problems.append(f"{described.name}: {error.message}")
    if problems:
        raise InvalidOptionError("; ".join(problems))
    return replace(options, **named)


_NAMING_TOPICS: Final = (
    "subscribe", "subscribe_pattern", "assign", "starting_offsets", "starting_offsets_by_timestamp",
    "ending_offsets", "ending_offsets_by_timestamp",
)  # fmt: skip


def _chosen_subscriptions(options: SourceOptions) -> list[subscriptions.Subscription]:
    return [
        subscription
        for subscription in (options.subscribe, options.subscribe_pattern, options.assign)
        if subscription is not None
    ]


def _contradictions(options: SourceOptions, use: Use, said: Said) -> Iterator[str]:
    if not options.bootstrap_servers:
        yield NO_BROKERS
    if len(_chosen_subscriptions(options)) != 1:
        yield "give exactly one of subscribe, subscribePattern and assign"
    low, high = options.min_partitions, options.max_partitions
    if low is not None and high is not None and low > high:
        yield f"{said('min_partitions')} is more than {said('max_partitions')}"
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        least_said, most_said = said("min_offsets_per_trigger"), said("max_offsets_per_trigger")
        yield f"{least_said} is more than {most_said}"
    if options.commit_offsets and not options.group_id:
        yield "commitOffsets needs groupId: a name to report the offsets under"
    name, start = options.start(use)
    if use is Use.BATCH:
        if "latest" in (start.everywhere, *start.places.values()):
            yield f"{name}: a batch that begins at the latest offset reads nothing"
        ending, end = options.end()
        if "earliest" in (end.everywhere, *end.places.values()):
            yield f"{ending}: a batch that ends at the earliest offset reads nothing"
    elif not options.group_id:
        ats = (start.everywhere, *start.places.values())
        by_time = options.starting_strategy == "latest"
        if "latest" in ats or (by_time and any(isinstance(at, subscriptions.AtTime) for at in ats)):
            is_default = options.starting_offsets is None and name == "startingOffsets"
            begins = (
                "a stream begins at the latest offset by default"
                if is_default
                else f"{name} may be the latest offset"
            )
            yield (
                f"{begins}, which needs groupId in a stream: under it the brokers keep where it "
                "began, so that no restart can begin later and skip records. Give groupId, or "
                "startingOffsets=earliest"
            )
