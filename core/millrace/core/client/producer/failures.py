"""Why the sender lets a batch fail, in words for its user."""

from millrace.core.client.producer.batch import BatchState, ProducerBatch
from millrace.core.client.producer.sequences import PartitionBatches, ProducerIds
from millrace.core.errors import (
    AbortedError,
    Appended,
    ConnectionFailedError,
    DeliveryTimedOutError,
    MessageTooLargeError,
    MillraceError,
)
from millrace.core.ids import BrokerId
from millrace.core.words import count


def aborted_by(failure: MillraceError) -> AbortedError:
    """Return the error of the other batches of a transaction, one of which has failed."""
    return AbortedError(
        "another record of the transaction failed, so that it can only be aborted: "
        f"{failure.message}"
    )


def broken_off(broker_id: BrokerId, reason: str, *, is_unsent: bool) -> ConnectionFailedError:
    """Return the error of a batch whose stream ended before its request was answered, or sent."""
    return ConnectionFailedError(
        f"the connection to broker {broker_id} broke before "
        f"{'the request was sent' if is_unsent else 'it answered'}: {reason}",
        appended=Appended.NO if is_unsent else Appended.MAYBE,
    )


def why_not_sent(ids: ProducerIds, partition: PartitionBatches) -> str:
    """Return what keeps a batch here that was never sent."""
    if ids.is_allocating and partition.lacks_producer_id:
        return f"no producer id: {ids.problem or 'no broker has answered yet'}"
    return "is the partition's leader reachable?"


def timed_out(batch: ProducerBatch, delivery_timeout_ms: int, why: str) -> DeliveryTimedOutError:
    """Return the error of a batch that was not acknowledged in time."""
    in_doubt = batch.maybe_appended or batch.state is BatchState.IN_THE_AIR
    return DeliveryTimedOutError(
        f"{count(batch.record_count, 'record')} for {batch.topic!r} partition "
        f"{batch.topic_partition.partition} had no acknowledgement within "
        f"delivery_timeout_ms={delivery_timeout_ms}, in {count(batch.attempts, 'attempt')}: {why}",
        appended=Appended.MAYBE if in_doubt else Appended.NO,
    )


def too_large(
    batch: ProducerBatch, broker_id: BrokerId, message_bytes_max: int
) -> MessageTooLargeError:
    """Return the error of a batch that fits into no request to a broker."""
    what = "the record" if batch.record_count == 1 else f"the batch of {batch.record_count} records"
    return MessageTooLargeError(
        f"{what} for {batch.topic!r} takes {batch.length} bytes, and broker {broker_id} "
        f"takes no message above limits.message_bytes_max={message_bytes_max}: send smaller "
        "records, or raise that and the topic's max.message.bytes"
    )
