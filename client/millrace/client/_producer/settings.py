"""The settings of `Producer`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from millrace.client._cluster.cluster import LEADER_SILENCE_MS_DEFAULT
from millrace.client._settings import Bytes, Milliseconds, TracedConfig, TracedSettings, function
from millrace.client.serialization import Serializer
from millrace.core.client.producer.partitioners import PartitionFunction
from millrace.core.coordinator.transactions.transaction import full_id
from millrace.core.errors import InvalidTransactionalIdError
from millrace.core.records.compression import CODEC_NAMES
from millrace.core.settings import Unit, setting

BATCH_SIZE_DEFAULT: Final = 1_000_000
"""Just below what topics take (`max.message.bytes`): few, large messages cost least."""
PARTITIONERS: Final = ("keyed", "round_robin")
_ACKS: Final = {"all": -1, -1: -1, "-1": -1, 0: 0, "0": 0, 1: 1, "1": 1}
_HOUR_MS: Final = 3_600_000


def _acks(value: object) -> int:
    if isinstance(value, str | int) and not isinstance(value, bool) and value in _ACKS:
        return _ACKS[value]
    raise ValueError('must be "all", 1 or 0')


def _partitioner(value: object) -> Any:
    if callable(value) or (isinstance(value, str) and value in PARTITIONERS):
        return value
    raise ValueError(
        f"choose {' or '.join(PARTITIONERS)}, or give a function of topic, key, value and number "
        "of partitions"
    )


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(TracedConfig):
    """Settings of `Producer` and `SyncProducer`."""

    acks: int = setting(
        -1,
        '"all" (-1), 1 (the leader alone) or 0 (no answer: the producer never learns what became '
        "of a record).",
        parse=_acks,
        allowed='"all", 1 or 0',
        default_text="all",
    )
    linger_ms: int = setting(
        5,
        "How long a record may wait for others to share a batch with.",
        unit=Unit.MILLISECONDS,
        maximum=_HOUR_MS,
    )
    batch_size: int = setting(
        BATCH_SIZE_DEFAULT,
        "Bytes of records at which a batch is sent; 0 sends each record alone.",
        unit=Unit.BYTES,
        maximum=16 * 1024 * 1024 - 1024,
    )
    buffer_memory: int = setting(
        32 << 20,
        "Bytes of records that wait, are compressed, or are in flight.",
        unit=Unit.BYTES,
        minimum=1024,
        maximum=1 << 40,
    )
    max_block_ms: int = setting(
        60_000,
        "How long to wait for room (never on the loop), and for a broker that tells where a "
        "topic's partitions are.",
        unit=Unit.MILLISECONDS,
    )
    topic_wait_ms: int = setting(
        0,
        "How long to wait for a topic that is not there, but no longer than for an "
        "acknowledgement. 0: its records fail at once. Not in Kafka.",
        unit=Unit.MILLISECONDS,
    )
    delivery_timeout_ms: int = setting(
        120_000,
        "From `send()` to an acknowledgement, all repeats included.",
        unit=Unit.MILLISECONDS,
        minimum=1,
    )
    request_timeout_ms: int = setting(
        30_000,
        "How long a broker may wait for replicas.",
        unit=Unit.MILLISECONDS,
        minimum=1,
    )
    close_timeout_ms: int = setting(
        120_000,
        "The longest that `close()` takes to deliver the sent records. If it does not suffice, an "
        "error says how many records have no acknowledgement. Not in Kafka.",
        unit=Unit.MILLISECONDS,
        minimum=1,
    )
    retry_backoff_ms: int = setting(
        100,
        "The pause before a repeat, doubled up to `retry_backoff_max_ms`; and between look-ups of "
        "the leader, which grows as slowly as to be a tenth of the time without one. Each producer "
        "keeps its pauses up to a fifth shorter or longer, so that those that lost a broker "
        "together do not come back together.",
        unit=Unit.MILLISECONDS,
        minimum=1,
        maximum=_HOUR_MS,
    )
    retry_backoff_max_ms: int = setting(
        1_000, "The longest such pause.", unit=Unit.MILLISECONDS, minimum=1, maximum=_HOUR_MS
    )
    metadata_max_age_ms: int = setting(
        300_000,
        "How often to look whether topics in use have more partitions.",
        unit=Unit.MILLISECONDS,
        minimum=1,
    )
    leader_silence_ms: int = setting(
        LEADER_SILENCE_MS_DEFAULT,
        "A leader that has not answered for so long is doubted, and the leader is looked up: a "
        "broker that is paused or cut off keeps its connections, and not its leaderships. What it "
        "has is repeated at the new leader, and never doubled. Not in Kafka.",
        unit=Unit.MILLISECONDS,
        minimum=1,
    )
    compression: str = setting(
        "none",
        "What batches are compressed with.",
        choices=CODEC_NAMES,
        kafka="compression.type",
    )
    compression_level: int | None = setting(
        None,
        "The codec's own level: gzip 1 to 9, lz4 1 to 12, zstd up to 22; the others have none.",
        minimum=-131_072,
        maximum=22,
        default_text="the codec's own",
    )
    partitioner: str | PartitionFunction = setting(
        "keyed",
        'For records that name no partition: "keyed" (Kafka\'s hash of the key; without key a '
        'partition with a short queue), "round_robin", or a function of topic, key, value and '
        "number of partitions.",
        parse=_partitioner,
        allowed="keyed, round_robin or a function",
        kafka="partitioner.class",
    )
    transactional_id: str = setting(
        "",
        "Makes the producer transactional: `id` of at most 255 bytes, or `namespace/id`. Records "
        "are sent in transactions alone. The id stands for one program over its restarts: a "
        "producer that begins with it ends what the last one left open, and fences it.",
        default_text="none",
    )
    transaction_timeout_ms: int = setting(
        60_000,
        "The coordinator aborts a transaction that is open for longer. Readers of committed "
        "records wait for it meanwhile. Brokers have a limit of their own.",
        unit=Unit.MILLISECONDS,
        minimum=1,
        maximum=2**31 - 1,
    )
    key_serializer: Serializer | None = setting(
        None, "From the key that `send()` is given to bytes.", parse=function, allowed="a function"
    )
    value_serializer: Serializer | None = setting(
        None,
        "From the value that `send()` is given to bytes.",
        parse=function,
        allowed="a function",
    )

    def validate(self) -> Iterator[str]:
        """Yield what is wrong between the settings."""
        if self.linger_ms >= self.delivery_timeout_ms:
            yield (
                f"linger_ms = {self.linger_ms}: must be less than delivery_timeout_ms = "
                f"{self.delivery_timeout_ms}"
            )
        if self.transactional_id and self.acks != _ACKS["all"]:
            yield 'transactional_id: needs acks = "all": a transaction counts as a whole'
        if self.transactional_id:
            try:
                full_id(self.transactional_id)
            except InvalidTransactionalIdError as error:
                yield error.message


class ProducerSettings(TracedSettings, total=False):
    """See `ProducerConfig`."""

    acks: Literal["all", -1, 0, 1]
    linger_ms: Milliseconds
    batch_size: Bytes
    buffer_memory: Bytes
    max_block_ms: Milliseconds
    topic_wait_ms: Milliseconds
    delivery_timeout_ms: Milliseconds
    retry_backoff_ms: Milliseconds
    retry_backoff_max_ms: Milliseconds
    metadata_max_age_ms: Milliseconds
    leader_silence_ms: Milliseconds
    compression: str
    compression_level: int | None
    partitioner: Literal["keyed", "round_robin"] | PartitionFunction
    transactional_id: str
    transaction_timeout_ms: Milliseconds
    key_serializer: Serializer | None
    value_serializer: Serializer | None
