"""The sender machine, effect by effect."""

import re
from itertools import pairwise
from math import inf

import pytest

from millrace.core.client.producer.batch import BatchState, ProducerBatch
from millrace.core.client.producer.delivery import Acknowledged
from millrace.core.client.producer.effects import (
    AllocateProducerId,
    Complete,
    Disconnect,
    Effect,
    Refusal,
    Transmit,
)
from millrace.core.client.producer.sender import REQUEST_OVERHEAD_MAX, Sender, SenderConfig
from millrace.core.client.routing.router import Connect, RefreshMetadata, Router
from millrace.core.errors import (
    Appended,
    AuthenticationFailedError,
    ConnectionFailedError,
    DeliveryTimedOutError,
    FencedLeaderEpochError,
    InvalidProducerEpochError,
    InvalidTimestampError,
    MessageTooLargeError,
    MillraceError,
    NotEnoughReplicasError,
    NotLeaderError,
    OutOfOrderSequenceError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import (
    BrokerId,
    KnownLeader,
    Leader,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    ProducerId,
    TopicId,
    TopicPartition,
    WallMs,
)

BROKER = BrokerId(1)
OTHER_BROKER = BrokerId(2)
EPOCH = LeaderEpoch(7)
PLACES = [TopicPartition(TopicId(b"t" * 16), number) for number in range(3)]
ACKNOWLEDGED = Acknowledged(Offset(40), WallMs(-1))


def at(ms: int) -> MonotonicMs:
    return MonotonicMs(ms)


def make(acks: int = -1, *, ready: bool = True, request_bytes_max: int = 1000) -> Sender:
    sender = Sender(
        SenderConfig(
            acks=acks,
            request_timeout_ms=30_000,
            delivery_timeout_ms=120_000,
            request_bytes_max=request_bytes_max,
            requests_in_flight_max=5,
            leader_silence_ms=2_000,
        ),
        Router(100, 1_000, 300_000, MonotonicMs(0)),
    )
    if ready:
        sender.on_leaders({place: Leader(BROKER, EPOCH) for place in PLACES})
        sender.on_connected(BROKER)
        sender.on_producer_id(ProducerId(9))
    if ready and acks == -1:  # Let the leaders know the producer: then there is no slow start.
        sender.on_batches([batch_of(0, number, size=0) for number in range(3)])
        sender.poll(at(0))
        sender.on_answer(BROKER, 1, [ACKNOWLEDGED] * 3, at(0))
        sender.poll(at(0))
    return sender


def batch_of(count: int = 1, partition: int = 0, size: int = 100, now: int = 0) -> ProducerBatch:
    batch = ProducerBatch("t", PLACES[partition], at(now))
    batch.record_count, batch.size = count, size
    return batch


def sending(*batches: ProducerBatch, acks: int = -1) -> Sender:
    """Return a sender that has sent these batches."""
    sender = make(acks)
    sender.on_batches(batches)
    sender.poll(at(0))
    return sender


def sent(effects: list[Effect]) -> list[list[ProducerBatch]]:
    return [[b for b, _ in e.batches] for e in effects if isinstance(e, Transmit)]


def completed(effects: list[Effect]) -> list[ProducerBatch]:
    return [effect.batch for effect in effects if isinstance(effect, Complete)]


def failure(batch: ProducerBatch) -> tuple[type, Appended]:
    """Return the error of a batch, and whether it may be appended."""
    assert isinstance(batch.outcome, MillraceError)
    return type(batch.outcome), batch.outcome.appended


def refused(error: MillraceError) -> Refusal:
    return Refusal(error, error.retriable)


def test_nothing_is_sent_before_leader_connection_and_producer_id_are_there() -> None:
    sender = make(ready=False)
    batch = batch_of()
    sender.on_batches([batch])
    assert sender.poll(at(0)) == [RefreshMetadata(["t"])]
    sender.on_leaders({PLACES[0]: Leader(BROKER, EPOCH)})
    sender.on_refreshed(at(1))
    assert sender.poll(at(1)) == [Connect(BROKER)]
    sender.on_connected(BROKER)
    assert sender.poll(at(2)) == [AllocateProducerId()]
    assert sender.poll(at(3)) == []
    sender.on_producer_id(ProducerId(9))
    assert sender.poll(at(4)) == [Transmit(BROKER, 1, [(batch, EPOCH)])]
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (9, 0, 0)


def test_sequences_follow_one_another_per_partition() -> None:
    batches = [batch_of(3), batch_of(2), batch_of(4, partition=1)]
    sending(*batches)
    assert [batch.base_sequence for batch in batches] == [0, 3, 0]


def test_a_batch_says_whether_those_before_it_have_an_outcome() -> None:
    # Otherwise the second could be taken for the first, when the first is refused.
    sender = make(ready=False)
    sender.on_leaders({PLACES[0]: Leader(BROKER, EPOCH)})
    sender.on_connected(BROKER)
    sender.on_producer_id(ProducerId(9))
    batches = [batch_of() for _ in range(3)]
    sender.on_batches(batches)
    assert sent(sender.poll(at(0))) == [[batch] for batch in batches]
    assert [batch.is_successor for batch in batches] == [False, True, True]
    sender.on_answer(BROKER, 1, [refused(NotEnoughReplicasError("too few"))], at(1))
    for request in (2, 3):
        sender.on_answer(BROKER, request, [refused(OutOfOrderSequenceError("unknown"))], at(2))
    assert sent(sender.poll(at(101))) == [[batch] for batch in batches]
    assert [batch.is_successor for batch in batches] == [False, True, True]


def test_a_successor_that_a_leader_waits_with_in_vain_is_repeated_as_the_first() -> None:
    """The batch before it was acknowledged by a leader whose log is lost."""
    first, second = batch_of(), batch_of()
    sender = sending(first, second)
    sender.on_answer(BROKER, 2, [ACKNOWLEDGED], at(1))
    number = second.base_sequence
    sender.on_answer(BROKER, 3, [refused(OutOfOrderSequenceError("unknown"))], at(1))
    assert sent(sender.poll(at(1))) == [[second]]
    assert (second.is_successor, second.producer_epoch, second.base_sequence) == (False, 0, number)


def test_what_no_broker_takes_fails_before_it_is_sent_and_the_rest_goes_on() -> None:
    """Its stream would break, and it would be repeated for as long as it may."""
    sender = make(ready=False)
    sender.on_leaders({PLACES[0]: Leader(BROKER, EPOCH)})
    sender.on_connected(BROKER, message_bytes_max=10_000)
    sender.on_producer_id(ProducerId(9))
    too_large, largest = batch_of(size=10_000), batch_of(size=10_000 - REQUEST_OVERHEAD_MAX)
    sender.on_batches([too_large, largest])
    effects = sender.poll(at(0))
    assert completed(effects) == [too_large]
    assert sent(effects) == [[largest]]
    assert largest.base_sequence == 0
    assert failure(too_large) == (MessageTooLargeError, Appended.NO)
    assert "the record for 't' takes 10000 bytes" in str(too_large.outcome)
    assert "limits.message_bytes_max=10000" in str(too_large.outcome)


def test_what_another_leader_does_not_take_stays_in_doubt() -> None:
    sender = make(ready=False)
    sender.on_leaders({PLACES[0]: Leader(BROKER, EPOCH)})
    sender.on_connected(BROKER, message_bytes_max=10_000)
    sender.on_producer_id(ProducerId(9))
    batch = batch_of(size=9_000)
    sender.on_batches([batch])
    sender.poll(at(0))
    sender.on_disconnected(BROKER, "reset", at(1))
    sender.on_leaders({PLACES[0]: Leader(OTHER_BROKER, LeaderEpoch(8))})
    sender.on_connected(OTHER_BROKER, message_bytes_max=5_000)
    assert completed(sender.poll(at(2))) == [batch]
    assert failure(batch) == (MessageTooLargeError, Appended.MAYBE)


def test_a_client_that_is_not_let_in_is_told_at_once_and_what_was_sent_stays_in_doubt() -> None:
    sender = make()
    sent_batch, waiting = batch_of(), batch_of(partition=1)
    sender.on_batches([sent_batch])
    sender.poll(at(0))
    sender.on_batches([waiting])
    denied = AuthenticationFailedError("bring a token")
    sender.on_denied(BROKER, denied, at(1))
    assert completed(sender.poll(at(2))) == [sent_batch, waiting]
    assert failure(sent_batch) == (AuthenticationFailedError, Appended.MAYBE)
    assert failure(waiting) == (AuthenticationFailedError, Appended.NO)


def test_batches_that_fail_together_have_errors_of_their_own() -> None:
    """Handles note in it which of a batch's records have told of it."""
    sender = make()
    batches = [batch_of() for _ in range(2)]
    sender.on_batches(batches)
    sender.on_denied(BROKER, AuthenticationFailedError("bring a token"), at(1))
    assert completed(sender.poll(at(2))) == batches
    assert batches[0].outcome is not batches[1].outcome


def test_batches_of_many_partitions_share_a_request_up_to_its_bound() -> None:
    sender = make(request_bytes_max=250)
    batches = [batch_of(partition=number) for number in range(3)]
    sender.on_batches(batches)
    assert sent(sender.poll(at(0))) == [batches[:2], batches[2:]]


def test_a_request_holds_one_batch_of_a_partition() -> None:
    sender = make()
    batches = [batch_of() for _ in range(2)]
    sender.on_batches(batches)
    assert sent(sender.poll(at(0))) == [[batches[0]], [batches[1]]]


def test_at_most_five_batches_of_a_partition_are_in_flight() -> None:  # P44
    sender = make()
    batches = [batch_of() for _ in range(8)]
    sender.on_batches(batches)
    assert sent(sender.poll(at(0))) == [[batch] for batch in batches[:5]]
    sender.on_answer(BROKER, 2, [ACKNOWLEDGED], at(1))
    effects = sender.poll(at(1))
    assert completed(effects) == [batches[0]]
    assert sent(effects) == [[batches[5]]]


def test_an_answer_that_overtakes_makes_no_room_for_a_batch_beyond_the_leaders_memory() -> None:
    """It remembers five: the first, repeated after a lost connection, must be among them."""
    sender = make()
    batches = [batch_of() for _ in range(7)]
    sender.on_batches(batches)
    assert len(sent(sender.poll(at(0)))) == 5
    for correlation_id in (3, 4):
        sender.on_answer(BROKER, correlation_id, [ACKNOWLEDGED], at(1))
        assert sent(sender.poll(at(1))) == []
    sender.on_answer(BROKER, 2, [ACKNOWLEDGED], at(2))
    assert sent(sender.poll(at(2))) == [[batches[5]], [batches[6]]]


def test_a_refused_batch_is_repeated_in_order_with_its_sequence() -> None:
    first, second = batch_of(3), batch_of(2)
    sender = sending(first, second)
    sender.on_answer(BROKER, 2, [refused(NotEnoughReplicasError("too few"))], at(1))
    sender.on_answer(BROKER, 3, [refused(OutOfOrderSequenceError("a gap"))], at(1))
    assert sender.poll(at(50)) == []
    assert sender.next_wake(at(50)) == 101
    assert sent(sender.poll(at(101))) == [[first], [second]]
    assert (first.base_sequence, second.base_sequence) == (0, 3)
    sender.on_answer(BROKER, 4, [Acknowledged(Offset(0), WallMs(-1))], at(102))
    sender.on_answer(BROKER, 5, [Acknowledged(Offset(3), WallMs(-1))], at(102))
    assert completed(sender.poll(at(102))) == [first, second]


def test_a_refusal_that_overtakes_its_predecessors_answer_waits_for_it() -> None:
    # Else the second would be sent and refused as fast as the broker answers, until the first's
    # request, which may wait for the replicas of other partitions, is answered.
    first, second = batch_of(), batch_of()
    sender = sending(first, second)
    sender.on_answer(BROKER, 3, [refused(OutOfOrderSequenceError("a gap"))], at(1))
    assert sender.poll(at(1)) == []
    sender.on_answer(BROKER, 2, [refused(NotEnoughReplicasError("too few"))], at(2))
    assert sent(sender.poll(at(102))) == [[first], [second]]


def test_no_new_batch_passes_one_that_must_be_repeated() -> None:
    first, second = batch_of(), batch_of()
    sender = sending(first)
    sender.on_answer(BROKER, 2, [refused(NotEnoughReplicasError("too few"))], at(1))
    sender.on_batches([second])
    assert sender.poll(at(2)) == []
    assert sent(sender.poll(at(101))) == [[first], [second]]


def test_the_pause_doubles_up_to_its_bound_and_a_success_ends_it() -> None:
    sender = make()
    batch = batch_of()
    sender.on_batches([batch])
    now = 0
    pauses = []
    for correlation_id in range(2, 8):
        sender.poll(at(now))
        refusal = refused(NotEnoughReplicasError("too few"))
        sender.on_answer(BROKER, correlation_id, [refusal], at(now))
        sender.poll(at(now))
        wake = sender.next_wake(at(now))
        assert wake is not None
        pauses.append(wake - now)
        now = wake
    assert pauses == [100, 200, 400, 800, 1000, 1000]


def test_a_moved_leader_is_looked_up_and_followed() -> None:
    batch = batch_of()
    sender = sending(batch)
    sender.on_answer(BROKER, 2, [refused(NotLeaderError("moved"))], at(1))
    assert sender.poll(at(1)) == [RefreshMetadata(["t"])]
    sender.on_leaders({PLACES[0]: Leader(BrokerId(2), LeaderEpoch(8))})
    sender.on_refreshed(at(5))
    assert sender.poll(at(5)) == [Connect(BrokerId(2))]
    sender.on_connected(BrokerId(2))
    effects = sender.poll(at(6))
    assert effects == [Transmit(BrokerId(2), 3, [(batch, LeaderEpoch(8))])]


def test_a_new_leader_epoch_ends_the_pause_and_what_is_known_already_does_not() -> None:
    batch = batch_of()
    sender = sending(batch)
    sender.on_answer(BROKER, 2, [refused(FencedLeaderEpochError("old"))], at(1))
    assert sender.poll(at(1)) == [RefreshMetadata(["t"])]
    sender.on_leaders({place: Leader(BROKER, EPOCH) for place in PLACES})
    assert sender.poll(at(5)) == []
    sender.on_leaders({PLACES[0]: Leader(BROKER, LeaderEpoch(8))})
    assert sender.poll(at(6)) == [Transmit(BROKER, 3, [(batch, LeaderEpoch(8))])]


def moved_to(broker_id: int, epoch: int) -> Refusal:
    error = NotLeaderError("moved", appended=Appended.NO)
    error.leader = KnownLeader(Leader(BrokerId(broker_id), LeaderEpoch(epoch)), "h:1")
    return refused(error)


def test_a_leader_that_a_refusal_names_is_followed_without_a_look_up() -> None:
    sender = make()
    batches = [batch_of(), batch_of()]
    sender.on_batches(batches[:1])
    sender.poll(at(0))
    sender.on_batches(batches[1:])
    sender.poll(at(0))
    sender.on_answer(BROKER, 2, [moved_to(2, 8)], at(1))
    sender.on_answer(BROKER, 3, [moved_to(2, 8)], at(1))
    assert sender.poll(at(1)) == [Connect(BrokerId(2))]
    sender.on_connected(BrokerId(2))
    assert sent(sender.poll(at(1))) == [[batches[0]], [batches[1]]]


def test_what_must_be_repeated_does_not_wait_for_other_requests_to_be_answered() -> None:
    sender = make()
    sender.on_leaders({PLACES[1]: Leader(OTHER_BROKER, LeaderEpoch(8))})
    sender.on_connected(OTHER_BROKER)
    for number in range(5):
        sender.on_batches([batch_of(partition=1)])
        assert len(sent(sender.poll(at(number)))) == 1
    batches = [batch_of(), batch_of()]
    for number, batch in enumerate(batches):
        sender.on_batches([batch])
        sender.poll(at(5 + number))
    late = batch_of()
    sender.on_batches([late])
    sender.poll(at(7))
    for correlation_id in (7, 8, 9):
        sender.on_answer(BROKER, correlation_id, [moved_to(OTHER_BROKER, 8)], at(8))
    assert sent(sender.poll(at(8))) == [[batch] for batch in (*batches, late)]
    sender.on_batches([batch_of()])
    assert sent(sender.poll(at(9))) == [], "what is new waits"


@pytest.mark.parametrize("epoch", [6, 7])
def test_a_refusal_that_names_no_news_is_looked_up_after_a_pause(epoch: int) -> None:
    sender = sending(batch_of())
    sender.on_answer(BROKER, 2, [moved_to(BROKER, epoch)], at(1))
    assert sender.poll(at(1)) == [RefreshMetadata(["t"])]
    assert sender.next_wake(at(1)) == 101


def test_when_a_broker_is_silent_it_is_looked_up_whether_others_lead_by_now() -> None:
    batches = [batch_of(), batch_of(partition=1)]
    sender = sending(*batches)
    assert sender.next_wake(at(0)) == 2_000
    assert sender.poll(at(1_999)) == []
    assert sender.poll(at(2_000)) == [RefreshMetadata(["t"])]
    sender.on_refreshed(at(2_001))
    assert sender.poll(at(2_001)) == [], "nobody else leads: it is waited for"
    assert sender.next_wake(at(2_001)) == 4_000
    assert sender.poll(at(4_000)) == [RefreshMetadata(["t"])]
    other = Leader(BrokerId(2), LeaderEpoch(EPOCH + 1))
    sender.on_leaders({PLACES[0]: other, PLACES[1]: other})
    sender.on_refreshed(at(4_001))
    given_up, connect, *_ = sender.poll(at(4_001))
    assert isinstance(given_up, Disconnect)
    assert connect == Connect(BrokerId(2))
    sender.on_connected(BrokerId(2))
    sequences = [(batch.producer_epoch, batch.base_sequence) for batch in batches]
    assert sent(sender.poll(at(4_002))) == [batches]
    assert sequences == [(batch.producer_epoch, batch.base_sequence) for batch in batches]


def test_older_news_about_a_leader_are_ignored() -> None:
    sender = make()
    sender.on_leaders({PLACES[0]: Leader(BrokerId(2), LeaderEpoch(EPOCH - 1))})
    sender.on_batches([batch_of()])
    (effect,) = sender.poll(at(0))
    assert isinstance(effect, Transmit)
    assert effect.broker_id == BROKER


def test_a_broken_connection_repeats_everything_in_order_after_reconnecting() -> None:
    batches = [batch_of() for _ in range(3)]
    sender = sending(*batches)
    sender.on_disconnected(BROKER, "reset", at(1))
    assert not completed(sender.poll(at(1)))
    assert Connect(BROKER) in sender.poll(at(101))
    sender.on_connected(BROKER)
    assert sent(sender.poll(at(102))) == [[batch] for batch in batches]
    assert [batch.base_sequence for batch in batches] == [0, 1, 2]
    assert all(batch.maybe_appended for batch in batches)


def test_an_answer_of_a_broken_connection_means_nothing() -> None:
    sender = sending(batch_of())
    sender.on_disconnected(BROKER, "reset", at(1))
    sender.on_answer(BROKER, 2, [ACKNOWLEDGED], at(2))
    assert not completed(sender.poll(at(2)))


def test_a_batch_in_the_air_to_the_old_leader_holds_its_successors_back() -> None:
    first, second = batch_of(), batch_of()
    sender = sending(first)
    sender.on_leaders({PLACES[0]: Leader(BrokerId(2), LeaderEpoch(8))})
    sender.on_connected(BrokerId(2))
    sender.on_batches([second])
    assert not sent(sender.poll(at(1)))
    sender.on_answer(BROKER, 2, [ACKNOWLEDGED], at(2))
    assert sent(sender.poll(at(2))) == [[second]]


def test_a_failure_for_good_leaves_a_hole_that_a_new_epoch_closes() -> None:
    first, second, third = batch_of(2), batch_of(2), batch_of(2)
    sender = sending(first, second)
    error = InvalidTimestampError("too far off")
    sender.on_answer(BROKER, 2, [refused(error)], at(1))
    effects = sender.poll(at(1))
    assert completed(effects) == [first]
    assert first.outcome is error
    sender.on_batches([third])
    assert not sent(sender.poll(at(1)))  # The second's outcome is not known yet.
    sender.on_answer(BROKER, 3, [refused(OutOfOrderSequenceError("a gap"))], at(2))
    assert sent(sender.poll(at(2))) == [[second], [third]]
    assert (second.producer_epoch, second.base_sequence) == (1, 0)
    assert (third.producer_epoch, third.base_sequence) == (1, 2)


def test_what_comes_after_a_batch_that_was_not_appended_is_in_no_doubt() -> None:
    """It would be repeated as fast as the leader refuses it, and keep the others from going on."""
    first, second, third = batch_of(2), batch_of(2), batch_of(2)
    sender = sending(first, second, third)
    sender.on_answer(BROKER, 2, [refused(InvalidTimestampError("too far off"))], at(1))
    sender.on_answer(BROKER, 3, [refused(OutOfOrderSequenceError("a gap"))], at(1))
    assert not sent(sender.poll(at(1)))
    sender.on_disconnected(BROKER, "reset", at(2))
    assert third.maybe_appended
    sender.on_connected(BROKER)
    assert sent(sender.poll(at(2))) == [[second], [third]]
    assert [(batch.producer_epoch, batch.base_sequence) for batch in (second, third)] == [
        (1, 0),
        (1, 2),
    ]
    assert not third.maybe_appended


def test_a_batch_that_may_still_arrive_at_its_leader_never_gets_another_number() -> None:
    first, second = batch_of(), batch_of()
    sender = sending(first, second)
    sender.on_disconnected(BROKER, "reset", at(1))
    sender.on_connected(BROKER)
    sender.poll(at(2))
    sender.on_answer(BROKER, 4, [refused(InvalidTimestampError("off"))], at(3))
    sender.on_answer(BROKER, 5, [refused(OutOfOrderSequenceError("a gap"))], at(3))
    effects = sender.poll(at(3))
    assert completed(effects) == [first]
    assert sent(effects) == [[second]]
    assert (second.producer_epoch, second.base_sequence) == (0, 1)
    sender.on_answer(BROKER, 6, [refused(OutOfOrderSequenceError("a gap"))], at(4))
    assert completed(sender.poll(at(4))) == [second]
    assert failure(second) == (OutOfOrderSequenceError, Appended.MAYBE)


@pytest.mark.parametrize("number", [0, 1])
def test_what_may_be_in_the_log_out_of_order_is_not_sent_again(number: int) -> None:
    batches = [batch_of(), batch_of()]
    sender = sending(*batches)
    gap = OutOfOrderSequenceError("only a part is there", appended=Appended.MAYBE)
    sender.on_answer(BROKER, 2 + number, [refused(gap)], at(1))
    effects = sender.poll(at(1))
    assert completed(effects) == [batches[number]]
    assert sent(effects) == []
    assert failure(batches[number]) == (OutOfOrderSequenceError, Appended.MAYBE)


def test_what_a_later_leader_lacks_is_in_no_doubt_and_goes_on_in_a_new_epoch() -> None:
    """As when the one before it expires while both are on their way to a leader that dies."""
    first, second, third = batch_of(2), batch_of(2, now=50), batch_of(2, now=50)
    sender = sending(first, second, third)
    sender.on_disconnected(BROKER, "reset", at(1))
    assert completed(sender.poll(at(120_000))) == [first]
    assert first.outcome is not None
    sender.on_leaders({PLACES[0]: Leader(OTHER_BROKER, LeaderEpoch(EPOCH + 1))})
    sender.on_connected(OTHER_BROKER)
    assert sent(sender.poll(at(120_001))) == [[second], [third]]
    assert (second.producer_epoch, second.base_sequence) == (0, 2)
    for request in (5, 6):
        gap = refused(OutOfOrderSequenceError("a new epoch begins with 0"))
        sender.on_answer(OTHER_BROKER, request, [gap], at(120_002))
    effects = sender.poll(at(120_002))
    assert not completed(effects)
    assert sent(effects) == [[second], [third]]
    assert [(batch.producer_epoch, batch.base_sequence) for batch in (second, third)] == [
        (1, 0),
        (1, 2),
    ]


def test_what_was_answered_is_not_under_way_any_more() -> None:
    first, second = batch_of(), batch_of()
    sender = sending(first, second)
    for request, batch in ((2, first), (3, second)):
        sender.on_answer(BROKER, request, [refused(NotLeaderError("moved"))], at(1))
        assert batch.maybe_appended
    sender.on_leaders({PLACES[0]: Leader(BROKER, LeaderEpoch(EPOCH + 1))})
    sender.poll(at(2))
    sender.on_answer(BROKER, 4, [refused(InvalidTimestampError("off"))], at(3))
    sender.on_answer(BROKER, 5, [refused(OutOfOrderSequenceError("a gap"))], at(3))
    assert sent(sender.poll(at(3))) == [[second]]
    assert (second.producer_epoch, second.base_sequence) == (1, 0)


def test_a_refusal_after_an_attempt_in_doubt_stays_in_doubt() -> None:
    batch = batch_of()
    sender = sending(batch)
    sender.on_disconnected(BROKER, "reset", at(1))
    sender.on_connected(BROKER)
    sender.poll(at(2))
    sender.on_answer(BROKER, 3, [refused(InvalidTimestampError("off"))], at(3))
    assert completed(sender.poll(at(3))) == [batch]
    assert failure(batch) == (InvalidTimestampError, Appended.MAYBE)


def test_an_unknown_failure_is_final_and_in_doubt() -> None:
    first, second = batch_of(), batch_of()
    sender = sending(first)
    sender.on_answer(BROKER, 2, [refused(UnknownServerError("?"))], at(1))
    assert completed(sender.poll(at(1))) == [first]
    sender.on_batches([second])
    assert sent(sender.poll(at(2))) == [[second]]
    assert (second.producer_epoch, second.base_sequence) == (1, 0)


def test_a_fenced_producer_takes_another_id() -> None:
    first, second = batch_of(), batch_of()
    sender = sending(first)
    sender.on_answer(BROKER, 2, [refused(InvalidProducerEpochError("fenced"))], at(1))
    sender.on_batches([second])
    effects = sender.poll(at(1))
    assert completed(effects) == [first]
    assert AllocateProducerId() in effects
    sender.on_producer_id(ProducerId(10))
    assert sent(sender.poll(at(2))) == [[second]]
    assert (second.producer_id, second.producer_epoch, second.base_sequence) == (10, 0, 0)


def test_a_batch_that_was_never_sent_times_out_as_not_appended() -> None:
    sender = make(ready=False)
    batch = batch_of()
    sender.on_batches([batch])
    sender.poll(at(0))
    assert sender.next_wake(at(0)) == 120_000
    assert completed(sender.poll(at(120_000))) == [batch]
    assert failure(batch) == (DeliveryTimedOutError, Appended.NO)
    assert re.match(
        "1 record for .* partition 0 had no acknowledgement within delivery_timeout_ms=120000",
        str(batch.outcome),
    )
    assert sender.unfinished_count == sender.waiting_count == 0


def test_a_batch_that_waited_for_its_topic_times_out_before_younger_ones() -> None:
    sender = make(ready=False)
    young, old, brother = batch_of(now=58_000), batch_of(now=1_000), batch_of(now=1_000)
    sender.on_batches([young, old, brother])
    sender.poll(at(59_000))
    assert sender.next_wake(at(59_000)) == 121_000
    assert completed(sender.poll(at(121_000))) == [old, brother]
    assert sender.next_wake(at(121_000)) == 178_000
    assert completed(sender.poll(at(178_000))) == [young]


def test_a_batch_in_the_air_times_out_in_doubt_and_its_late_answer_is_ignored() -> None:
    sender = make()
    first = batch_of()
    sender.on_batches([first])
    sender.poll(at(100_000))
    assert completed(sender.poll(at(120_000))) == [first]
    assert failure(first) == (DeliveryTimedOutError, Appended.MAYBE)
    second = batch_of(now=120_000)
    sender.on_batches([second])
    assert sent(sender.poll(at(120_001))) == [[second]]
    assert (second.producer_epoch, second.base_sequence) == (1, 0)
    sender.on_answer(BROKER, 2, [ACKNOWLEDGED], at(120_002))
    assert not completed(sender.poll(at(120_002)))
    assert first.state is BatchState.DONE


def test_a_silent_broker_is_given_up() -> None:
    batch = batch_of()
    sender = sending(batch)
    effects = sender.poll(at(34_999))
    assert sender.next_wake(at(34_999)) == 35_000
    assert not any(isinstance(effect, Disconnect) for effect in effects)
    effects = sender.poll(at(35_000))
    assert isinstance(effects[0], Disconnect)
    assert Connect(BROKER) in sender.poll(at(35_100))
    sender.on_connected(BROKER)
    assert sent(sender.poll(at(35_101))) == [[batch]]


def test_a_broker_that_asks_for_a_pause_gets_it() -> None:
    first, second = batch_of(), batch_of()
    sender = sending(first)
    assert sender.on_throttled(BROKER, 500, at(1)) == 500
    sender.on_answer(BROKER, 2, [ACKNOWLEDGED], at(1))
    sender.on_batches([second])
    assert not sent(sender.poll(at(2)))
    assert sender.next_wake(at(2)) == 501
    assert sent(sender.poll(at(501))) == [[second]]


def test_a_pause_is_counted_once() -> None:
    sender = sending(batch_of())
    assert sender.on_throttled(BROKER, 500, at(100)) == 500
    assert sender.on_throttled(BROKER, 700, at(300)) == 400
    assert sender.on_throttled(BROKER, 100, at(400)) == -500  # The quota has changed.


def test_a_request_that_a_broker_does_not_read_for_a_quota_has_more_time() -> None:
    sender = sending(batch_of())
    sender.on_throttled(BROKER, 60_000, at(100))
    assert not any(isinstance(effect, Disconnect) for effect in sender.poll(at(60_000)))
    late = [effect for effect in sender.poll(at(100_000)) if isinstance(effect, Disconnect)]
    assert [request.broker_id for request in late] == [BROKER]


def test_a_pause_that_was_shortened_does_not_lengthen_the_wait_for_an_answer() -> None:
    sender = sending(batch_of())
    sender.on_throttled(BROKER, 60_000, at(100))
    sender.on_throttled(BROKER, 1, at(200))
    late = [effect for effect in sender.poll(at(40_000)) if isinstance(effect, Disconnect)]
    assert [request.broker_id for request in late] == [BROKER]


def test_a_pause_does_not_outlast_its_connection() -> None:
    sender = sending(batch_of())
    sender.on_throttled(BROKER, 60_000, at(1))
    sender.on_disconnected(BROKER, "restarted", at(100))
    sender.on_connected(BROKER)
    assert sent(sender.poll(at(10_000)))


def test_with_acks_1_one_batch_of_a_partition_is_in_flight_without_an_id() -> None:
    sender = make(acks=1)
    first, second = batch_of(), batch_of()
    sender.on_batches([first, second])
    assert sent(sender.poll(at(0))) == [[first]]
    assert (first.producer_id, first.base_sequence) == (-1, -1)
    sender.on_answer(BROKER, 1, [ACKNOWLEDGED], at(1))
    assert sent(sender.poll(at(1))) == [[second]]


@pytest.mark.parametrize(
    ("error", "is_repeated"),
    [(NotEnoughReplicasError("too few"), True), (NotLeaderError("moved"), False)],
)
def test_with_acks_1_only_what_was_not_appended_is_repeated(
    error: MillraceError, is_repeated: bool
) -> None:
    batch = batch_of()
    sender = sending(batch, acks=1)
    sender.on_answer(BROKER, 1, [refused(error)], at(1))
    effects = sender.poll(at(101))
    assert sent(effects) == ([[batch]] if is_repeated else [])
    assert completed(effects) == ([] if is_repeated else [batch])


def test_with_acks_1_a_broken_connection_is_final() -> None:
    batch = batch_of()
    sender = sending(batch, acks=1)
    sender.on_disconnected(BROKER, "reset", at(1))
    assert completed(sender.poll(at(1))) == [batch]
    assert failure(batch) == (ConnectionFailedError, Appended.MAYBE)


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_what_a_broken_stream_had_not_sent_is_repeated_without_doubt(acks: int) -> None:
    sender = make(acks)
    batch = batch_of(size=999)
    sender.on_batches([batch])
    (transmit,) = sender.poll(at(0))
    assert isinstance(transmit, Transmit)
    sender.on_unsent(BROKER, [transmit.correlation_id, 99])
    sender.on_disconnected(BROKER, "it drains", at(1))
    assert completed(sender.poll(at(1))) == []
    assert not batch.maybe_appended
    sender.on_refreshed(at(1))
    sender.on_connected(BROKER)
    assert sent(sender.poll(at(200))) == [[batch]]
    sender.on_answer(BROKER, transmit.correlation_id + 1, [ACKNOWLEDGED], at(201))
    assert completed(sender.poll(at(201))) == [batch]
    assert batch.outcome == ACKNOWLEDGED


def test_with_acks_1_what_was_sent_before_a_stream_broke_is_final_beside_what_was_not() -> None:
    sender = make(acks=1)
    gone, kept = batch_of(size=999), batch_of(size=999, partition=1)
    sender.on_batches([gone, kept])
    assert sent(sender.poll(at(0))) == [[gone], [kept]]
    sender.on_unsent(BROKER, [2])
    sender.on_disconnected(BROKER, "it drains", at(1))
    assert completed(sender.poll(at(1))) == [gone]
    assert failure(gone) == (ConnectionFailedError, Appended.MAYBE)
    sender.on_connected(BROKER)
    assert sent(sender.poll(at(200))) == [[kept]]


def test_with_acks_0_what_the_transport_has_not_taken_is_in_flight() -> None:
    sender = make(acks=0)
    batches = [batch_of(size=999) for _ in range(2)]
    sender.on_batches(batches)
    assert sender.poll(at(0)) == [Transmit(BROKER, 1, [(batches[0], EPOCH)])]
    written = Acknowledged(Offset(-1), WallMs(-1))
    sender.on_answer(BROKER, 1, [written], at(1))
    assert sender.poll(at(1)) == [
        Complete(batches[0]),
        Transmit(BROKER, 2, [(batches[1], EPOCH)]),
    ]
    assert batches[0].outcome == written
    sender.on_disconnected(BROKER, "reset", at(2))
    assert completed(sender.poll(at(2))) == [batches[1]]
    assert isinstance(batches[1].outcome, ConnectionFailedError)


def test_with_acks_0_a_refusal_of_what_is_done_lets_the_leaders_be_looked_up_once() -> None:
    sender = sending(batch_of(), acks=0)
    sender.on_answer(BROKER, 1, [Acknowledged(Offset(-1), WallMs(-1))], at(1))
    sender.poll(at(1))
    sender.on_late_refusal(OTHER_BROKER)  # It leads nothing that was sent to.
    assert sender.poll(at(1)) == []
    sender.on_late_refusal(BROKER)
    sender.on_late_refusal(BROKER)
    assert sender.poll(at(1)) == [RefreshMetadata(["t"])]
    sender.on_late_refusal(BROKER)
    assert sender.poll(at(2)) == []
    sender.on_leaders({PLACES[0]: Leader(OTHER_BROKER, LeaderEpoch(EPOCH + 1))})
    sender.on_connected(OTHER_BROKER)
    sender.on_refreshed(at(3))
    batch = batch_of()
    sender.on_batches([batch])
    assert Transmit(OTHER_BROKER, 2, [(batch, LeaderEpoch(EPOCH + 1))]) in sender.poll(at(3))


def test_sequences_wrap_to_zero() -> None:
    first, second, third = batch_of(2**31 - 2), batch_of(4), batch_of(1)
    sending(first, second, third)
    assert (second.base_sequence, third.base_sequence) == (2**31 - 2, 2)


def test_batches_of_a_deleted_topic_fail_when_two_look_ups_say_that_it_is_gone() -> None:
    sender = make()
    sent_before, waiting = batch_of(size=999), batch_of(size=999)
    sender.on_batches([sent_before])
    assert sent(sender.poll(at(0))) == [[sent_before]]
    sender.on_answer(BROKER, 2, [refused(UnknownTopicOrPartitionError("not here"))], at(1))
    sender.on_batches([waiting])
    assert RefreshMetadata(["t"]) in sender.poll(at(1))
    sender.on_topics({"t": None})
    sender.on_refreshed(at(2))
    assert completed(sender.poll(at(2))) == []  # That broker may not have heard of it yet.
    effects = sender.poll(at(102))
    assert RefreshMetadata(["t"]) in effects
    assert sent(effects) == [[sent_before], [waiting]]  # It might be there by now.
    refusal = refused(UnknownTopicOrPartitionError("not here"))
    sender.on_answer(BROKER, 3, [refusal], at(103))
    sender.on_topics({"t": None})
    assert completed(sender.poll(at(103))) == [sent_before]
    sender.on_answer(BROKER, 4, [refusal], at(104))
    assert completed(sender.poll(at(104))) == [waiting]
    for batch in (sent_before, waiting):
        assert isinstance(batch.outcome, UnknownTopicOrPartitionError)
        assert "'t' was deleted" in batch.outcome.message
        assert batch.outcome.appended is Appended.NO
    assert sender.unfinished_count == sender.waiting_count == 0


def test_a_topic_that_is_found_again_at_once_was_never_gone() -> None:
    sender = make()
    batch = batch_of()
    for _ in range(2):
        sender.on_topics({"t": None})
        sender.on_topics({"t": PLACES[0].topic_id})
    sender.on_batches([batch])
    assert sent(sender.poll(at(0))) == [[batch]]
    assert batch.producer_id == 9


def test_partitions_of_a_deleted_topic_are_forgotten_and_their_numbers_never_used_again() -> None:
    sender = make()
    sender.on_topics({"t": None})
    sender.on_topics({"t": None})
    assert not sender._partitions
    # It is there after all: its leader would take these sequences for repeated ones.
    batch = batch_of()
    sender.on_topics({"t": PLACES[0].topic_id})
    sender.on_leaders({place: Leader(BROKER, EPOCH) for place in PLACES})
    sender.on_batches([batch])
    effects = sender.poll(at(0))
    assert AllocateProducerId() in effects
    assert not sent(effects)
    sender.on_producer_id(ProducerId(10))
    assert sent(sender.poll(at(0))) == [[batch]]
    assert (batch.producer_id, batch.base_sequence) == (10, 0)


def test_a_partition_is_forgotten_when_its_last_batch_has_its_outcome() -> None:
    batch = batch_of(now=0)
    sender = sending(batch)
    sender.on_topics({"t": TopicId(b"u" * 16)})
    assert set(sender._partitions) == {PLACES[0]}
    sender.poll(at(4_000))  # Its broker is silent; who leads the partition is not known any more.
    assert completed(sender.poll(at(120_000))) == [batch]
    assert not sender._partitions
    sender.poll(at(140_000))


def test_a_new_leader_is_looked_for_while_the_old_one_cannot_be_reached() -> None:
    """However long the pauses between the attempts to connect have become."""
    batch = batch_of()
    sender = sending(batch)
    sender.on_disconnected(BROKER, "gone", at(0))
    assert sender.poll(at(0)) == [RefreshMetadata(["t"])]
    assert sender.next_wake(at(0)) == 100
    assert sender.poll(at(100)) == [Connect(BROKER)]
    for ms in (110, 220, 330):  # It cannot be connected to all that time.
        sender.on_refreshed(at(ms))
        assert sender.poll(at(ms)) == []
        assert sender.next_wake(at(ms)) == ms + 100
        assert sender.poll(at(ms + 100)) == [RefreshMetadata(["t"])]
    sender.on_leaders({PLACES[0]: Leader(OTHER_BROKER, LeaderEpoch(8))})
    sender.on_refreshed(at(440))
    assert sender.poll(at(440)) == [Connect(OTHER_BROKER)]


def test_while_nobody_leads_it_is_looked_up_more_and_more_seldom_until_something_happens() -> None:
    sender = make()
    sender.on_leaders({PLACES[0]: Leader(BrokerId(-1), LeaderEpoch(8))})
    sender.on_batches([batch_of()])
    look_ups, now = [], 0
    while now < 60_000:
        if RefreshMetadata(["t"]) in sender.poll(at(now)):
            look_ups.append(now)
            sender.on_leaders({PLACES[0]: Leader(BrokerId(-1), LeaderEpoch(8))})
            sender.on_refreshed(at(now))
            sender.poll(at(now))
        wake = sender.next_wake(at(now))
        assert wake is not None
        now = wake
    pauses = [after - before for before, after in pairwise(look_ups)]
    assert pauses[:10] == [100] * 10
    assert all(pause <= max(100, at / 10) for at, pause in zip(look_ups, pauses, strict=False))
    assert pauses[-30:] == [1_000] * 30
    # Another partition's leader is lost: who follows it is looked up as soon as ever.
    sender.on_batches([batch_of(partition=1)])
    sender.poll(at(60_000))
    sender.on_answer(BROKER, 2, [refused(NotLeaderError("moved"))], at(60_001))
    soon = look_ups[-1] + 100
    assert RefreshMetadata(["t"]) in sender.poll(at(max(soon, 60_001)))
    sender.on_leaders({PLACES[1]: Leader(OTHER_BROKER, LeaderEpoch(8))})
    sender.on_refreshed(at(61_000))
    sender.poll(at(61_000))
    assert sender.next_wake(at(61_000)) == 61_100


def test_a_leader_that_a_refusal_names_is_connected_to_without_a_pause() -> None:
    sender = make()
    sender.on_disconnected(OTHER_BROKER, "gone", at(0))
    sender.on_batches([batch_of()])
    sender.poll(at(0))
    sender.on_answer(BROKER, 2, [moved_to(OTHER_BROKER, 8)], at(1))
    assert Connect(OTHER_BROKER) in sender.poll(at(1))


def test_what_is_in_the_air_to_a_topic_made_again_is_in_doubt_until_it_is_answered() -> None:
    sender = make(request_bytes_max=1)
    acknowledged, refused_batch, lost = batch_of(), batch_of(), batch_of()
    sender.on_batches([acknowledged, refused_batch, lost])
    assert len(sent(sender.poll(at(0)))) == 3
    sender.on_topics({"t": TopicId(b"u" * 16)})
    assert completed(sender.poll(at(1))) == []
    sender.on_answer(BROKER, 2, [ACKNOWLEDGED], at(2))
    sender.on_answer(BROKER, 3, [refused(UnknownTopicOrPartitionError("not here"))], at(2))
    sender.on_disconnected(BROKER, "gone", at(2))
    assert completed(sender.poll(at(2))) == [acknowledged, refused_batch, lost]
    assert acknowledged.outcome == ACKNOWLEDGED
    for batch, appended in ((refused_batch, Appended.NO), (lost, Appended.MAYBE)):
        assert isinstance(batch.outcome, UnknownTopicOrPartitionError)
        assert "made again" in batch.outcome.message
        assert batch.outcome.appended is appended
    late = batch_of()
    sender.on_batches([late])
    assert completed(sender.poll(at(3))) == []
    sender.on_topics({"t": TopicId(b"u" * 16)})
    assert completed(sender.poll(at(4))) == [late]
    assert isinstance(late.outcome, UnknownTopicOrPartitionError)


def test_a_batch_that_is_too_large_fails_and_the_topics_limit_is_looked_up_for_the_next() -> None:
    batch = batch_of()
    sender = sending(batch)
    sender.on_answer(BROKER, 2, [refused(MessageTooLargeError("5000 bytes"))], at(1))
    effects = sender.poll(at(1))
    assert completed(effects) == [batch]
    assert RefreshMetadata(["t"]) in effects


def test_the_brokers_that_batches_wait_for_are_known() -> None:
    sender = make()
    assert sender.awaited_brokers() == []
    sender.on_batches([batch_of(), batch_of(partition=1)])
    assert sender.awaited_brokers() == [BROKER]
    sender.on_leaders({PLACES[1]: Leader(BrokerId(-1), LeaderEpoch(EPOCH + 1))})
    assert sender.awaited_brokers() == [BROKER, BrokerId(-1)]
    sender.poll(at(0))
    sender.on_answer(BROKER, 2, [ACKNOWLEDGED], at(1))
    assert sender.awaited_brokers() == [BrokerId(-1)]


def test_the_queue_of_a_partition_that_nobody_leads_is_infinitely_long() -> None:
    sender = make(ready=False)
    assert sender.queue_length(PLACES[0]) == 0, "nobody has said yet who leads it"
    sender.on_leaders({PLACES[0]: Leader(BROKER, EPOCH), PLACES[1]: Leader(BrokerId(-1), EPOCH)})
    sender.on_batches([batch_of(), batch_of()])
    assert sender.queue_length(PLACES[0]) == 2
    assert sender.queue_length(PLACES[1]) == inf


def test_what_keeps_a_producer_id_away_is_known_and_told_with_the_batches_that_lack_one() -> None:
    sender = make(ready=False)
    assert sender.producer_id_problem() is None
    sender.on_leaders({place: Leader(BROKER, EPOCH) for place in PLACES})
    sender.on_connected(BROKER)
    batch = batch_of()
    sender.on_batches([batch])
    assert AllocateProducerId() in sender.poll(at(0))
    assert sender.producer_id_problem() == ""
    sender.on_no_producer_id("there is no controller: the store is locked")
    assert sender.producer_id_problem() == "there is no controller: the store is locked"
    assert not sender.poll(at(1)), "it is asked for already"
    assert completed(sender.poll(at(120_000))) == [batch]
    assert isinstance(batch.outcome, DeliveryTimedOutError)
    assert batch.outcome.message.endswith(
        "in 0 attempts: no producer id: there is no controller: the store is locked"
    )
    sender.on_producer_id(ProducerId(9))
    assert sender.producer_id_problem() is None


def test_a_batch_that_has_its_numbering_does_not_blame_that_there_is_no_other() -> None:
    sender = make()
    sender._ids.is_allocating = True  # For another partition, whose epochs are used up.
    sender.on_no_producer_id("there is no controller")
    sender.on_disconnected(BROKER, "gone", at(0))
    batch = batch_of()
    sender.on_batches([batch])
    sender.poll(at(0))
    assert completed(sender.poll(at(120_000))) == [batch]
    assert isinstance(batch.outcome, DeliveryTimedOutError)
    assert batch.outcome.message.endswith("is the partition's leader reachable?")
