"""The sender machine of a transactional producer."""

import pytest

from millrace.core.client.producer.batch import ProducerBatch
from millrace.core.client.producer.delivery import Acknowledged
from millrace.core.client.producer.effects import (
    AllocateProducerId,
    Complete,
    Effect,
    Refusal,
    Transmit,
)
from millrace.core.client.producer.sender import Sender, SenderConfig
from millrace.core.client.producer.transaction import ProducerIdentity
from millrace.core.client.routing.router import Router
from millrace.core.errors import (
    AbortedError,
    Appended,
    ConcurrentTransactionsError,
    InvalidTimestampError,
    MillraceError,
    NotEnoughReplicasAfterAppendError,
    OutOfOrderSequenceError,
    SerializationError,
)
from millrace.core.ids import (
    BrokerId,
    Leader,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicPartition,
    WallMs,
)

BROKER = BrokerId(1)
EPOCH = LeaderEpoch(7)
PLACES = [TopicPartition(TopicId(b"t" * 16), number) for number in range(3)]
ACKNOWLEDGED = Acknowledged(Offset(40), WallMs(-1))


def at(ms: int) -> MonotonicMs:
    return MonotonicMs(ms)


def identity(epoch: int) -> ProducerIdentity:
    return ProducerIdentity(ProducerId(9), ProducerEpoch(epoch))


def make() -> Sender:
    sender = Sender(
        SenderConfig(
            acks=-1,
            request_timeout_ms=30_000,
            delivery_timeout_ms=120_000,
            request_bytes_max=1_000,
            requests_in_flight_max=5,
            leader_silence_ms=2_000,
            is_transactional=True,
        ),
        Router(100, 1_000, 300_000, MonotonicMs(0)),
    )
    sender.on_leaders({place: Leader(BROKER, EPOCH) for place in PLACES})
    sender.on_connected(BROKER)
    sender.begin_transaction(identity(0))
    return sender


def batch_of(count: int = 1, partition: int = 0) -> ProducerBatch:
    batch = ProducerBatch("t", PLACES[partition], at(0))
    batch.record_count, batch.size = count, 100
    return batch


def numbers(batch: ProducerBatch) -> tuple[int, int, int]:
    return batch.producer_id, batch.producer_epoch, batch.base_sequence


def refused(error: MillraceError) -> Refusal:
    return Refusal(error, error.retriable)


def completed(effects: list[Effect]) -> list[ProducerBatch]:
    return [effect.batch for effect in effects if isinstance(effect, Complete)]


def requests(effects: list[Effect]) -> list[int]:
    return [effect.correlation_id for effect in effects if isinstance(effect, Transmit)]


def test_each_transaction_has_its_own_epoch_and_sequences_from_0_in_each_partition() -> None:
    sender = make()
    batches = [batch_of(3), batch_of(2), batch_of(partition=1)]
    sender.on_batches(batches)
    joined = [sender.may_have_joined]
    effects = sender.poll(at(0))
    assert AllocateProducerId() not in effects
    joined.append(sender.may_have_joined)
    assert [numbers(batch) for batch in batches] == [(9, 0, 0), (9, 0, 3), (9, 0, 0)]
    for request, count in zip(requests(effects), (2, 1), strict=True):
        sender.on_answer(BROKER, request, [ACKNOWLEDGED] * count, at(1))
    sender.poll(at(1))
    sender.begin_transaction(identity(1))
    assert [*joined, sender.may_have_joined] == [False, True, False]
    later = batch_of()
    sender.on_batches([later])
    sender.poll(at(2))
    assert numbers(later) == (9, 1, 0)


def test_no_transaction_begins_before_all_batches_of_the_last_one_have_their_outcome() -> None:
    sender = make()
    sender.on_batches([batch_of()])
    sender.poll(at(0))
    with pytest.raises(AssertionError, match="never goes out"):
        sender.begin_transaction(identity(1))


def test_a_batch_that_fails_for_good_takes_all_others_with_it() -> None:
    sender = make()
    bad, in_the_air, waiting = batch_of(), batch_of(partition=1), batch_of(partition=2)
    sender.on_batches([bad])
    sender.poll(at(0))
    sender.on_batches([in_the_air])
    sender.poll(at(0))
    sender.on_disconnected(BROKER, "reset", at(1))
    sender.on_connected(BROKER)
    (request,) = requests(sender.poll(at(1)))
    sender.on_batches([waiting])
    sender.on_answer(
        BROKER,
        request,
        [refused(InvalidTimestampError("from 1970")), refused(ConcurrentTransactionsError("wait"))],
        at(2),
    )
    assert set(completed(sender.poll(at(2)))) == {bad, in_the_air, waiting}
    assert isinstance(bad.outcome, InvalidTimestampError)
    assert isinstance(in_the_air.outcome, AbortedError)
    assert in_the_air.outcome.appended is Appended.MAYBE
    assert isinstance(waiting.outcome, AbortedError)
    assert waiting.outcome.appended is Appended.NO
    assert "from 1970" in waiting.outcome.message
    late = batch_of()
    sender.on_batches([late])
    assert completed(sender.poll(at(3))) == [late]
    assert sender.unfinished_count == 0
    sender.begin_transaction(identity(1))
    sender.on_batches([next_one := batch_of()])
    sender.poll(at(4))
    assert numbers(next_one) == (9, 1, 0)


def test_a_batch_that_cannot_be_encoded_fails_the_transaction() -> None:
    sender = make()
    sender.on_batches([other := batch_of()])
    sender.on_unencodable(batch_of(partition=1), SerializationError("no such column"))
    sender.poll(at(0))
    assert isinstance(other.outcome, AbortedError)


def test_what_is_in_the_air_when_the_transaction_is_dropped_is_not_sent_again() -> None:
    """Its answer comes after that of the next transaction's batch, and changes nothing."""
    sender = make()
    sender.on_batches([dropped := batch_of()])
    (first,) = requests(sender.poll(at(0)))
    sender.drop_transaction(AbortedError("the program aborted it"))
    assert completed(sender.poll(at(1))) == [dropped]
    sender.begin_transaction(identity(1))
    sender.on_batches([later := batch_of()])
    (second,) = requests(sender.poll(at(2)))
    sender.on_answer(BROKER, second, [ACKNOWLEDGED], at(3))
    sender.on_answer(
        BROKER, first, [refused(NotEnoughReplicasAfterAppendError("too few in sync"))], at(3)
    )
    effects = sender.poll(at(1_000))
    assert requests(effects) == []
    assert completed(effects) == [later]
    assert isinstance(dropped.outcome, AbortedError)
    assert dropped.outcome.message == "the program aborted it"


def test_a_gap_fails_the_transaction_and_begins_no_other_epoch() -> None:
    """Another epoch would be another transaction: its first records would be lost."""
    sender = make()
    first, second = batch_of(), batch_of()
    sender.on_batches([first])
    (one,) = requests(sender.poll(at(0)))
    sender.on_answer(BROKER, one, [ACKNOWLEDGED], at(1))
    sender.on_batches([second])
    (two,) = requests(sender.poll(at(1)))
    sender.on_answer(BROKER, two, [refused(OutOfOrderSequenceError("0 is missing"))], at(2))
    assert second in completed(sender.poll(at(2)))
    assert isinstance(second.outcome, OutOfOrderSequenceError)


def test_a_successor_that_is_refused_before_its_predecessor_is_repeated_after_it() -> None:
    """A leader that asks the coordinator about the first batch does not know the producer yet."""
    sender = make()
    first, second = batch_of(), batch_of()
    sender.on_batches([first])
    (one,) = requests(sender.poll(at(0)))
    sender.on_batches([second])
    (two,) = requests(sender.poll(at(0)))
    sender.on_answer(BROKER, two, [refused(OutOfOrderSequenceError("unknown producer"))], at(1))
    assert requests(sender.poll(at(1))) == []
    sender.on_answer(BROKER, one, [ACKNOWLEDGED], at(2))
    (again,) = requests(sender.poll(at(2)))
    sender.on_answer(BROKER, again, [ACKNOWLEDGED], at(3))
    assert completed(sender.poll(at(3))) == [second]
    assert (first.outcome, second.outcome) == (ACKNOWLEDGED, ACKNOWLEDGED)
    assert numbers(second) == (9, 0, 1)


def test_a_transaction_that_waits_for_the_end_of_the_last_one_is_repeated() -> None:
    sender = make()
    sender.on_batches([batch := batch_of()])
    (request,) = requests(sender.poll(at(0)))
    refusal = refused(ConcurrentTransactionsError("partition 3 has no marker yet"))
    sender.on_answer(BROKER, request, [refusal], at(1))
    assert requests(sender.poll(at(1))) == []
    (again,) = requests(sender.poll(at(101)))
    sender.on_answer(BROKER, again, [ACKNOWLEDGED], at(102))
    assert completed(sender.poll(at(102))) == [batch]
    assert numbers(batch) == (9, 0, 0)
