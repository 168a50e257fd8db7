"""Why the sender lets a batch fail, in words for its user."""

from millrace.core.client.producer.batch import BatchState, ProducerBatch
from millrace.core.errors import (
    AbortedError,
    Appended,
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
