"""The order and the numbers of one partition's batches; in requests, see `test_sender`."""

from itertools import count

from millrace.core.client.producer.batch import BatchState, ProducerBatch
from millrace.core.client.producer.sequences import (
    PRODUCER_EPOCH_MAX,
    PartitionBatches,
    ProducerIds,
)
from millrace.core.client.routing.route import Route
from millrace.core.ids import (
    NO_PRODUCER_ID,
    LeaderEpoch,
    MonotonicMs,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicPartition,
)

PLACE = TopicPartition(TopicId(b"t" * 16), 0)
EPOCH = LeaderEpoch(7)


_requests = count(1)


def make(batches: int, *, ids: ProducerIds | None = None) -> PartitionBatches:
    """Return a partition in which so many batches of two records wait."""
    partition = PartitionBatches(Route("t", PLACE), ids)
    for _ in range(batches):
        partition.waiting.append(ProducerBatch("t", PLACE, MonotonicMs(0), record_count=2))
    return partition


def allocated(producer_id: int = 9) -> ProducerIds:
    ids = ProducerIds()
    ids.on_allocated(ProducerId(producer_id))
    return ids


def sent(partition: PartitionBatches, connection: int = 1) -> list[ProducerBatch]:
    """Send all that may be sent now; return it."""
    batches = []
    while (batch := partition.next(connection)) is not None:
        partition.take(batch, connection, EPOCH)
        batch.request = next(_requests)
        batches.append(batch)
    return batches


def numbers(batches: list[ProducerBatch]) -> list[tuple[int, int, int]]:
    return [(batch.producer_id, batch.producer_epoch, batch.base_sequence) for batch in batches]


def test_a_producer_id_is_wanted_when_a_batch_is_to_be_sent_and_not_before() -> None:
    ids = ProducerIds()
    partition = make(2, ids=ids)
    before = ids.is_wanted
    assert sent(partition) == []
    assert (before, ids.is_wanted, partition.lacks_producer_id) == (False, True, True)
    ids.on_allocated(ProducerId(9))
    assert numbers(sent(partition)) == [(9, 0, 0), (9, 0, 2)]
    assert (ids.is_wanted, partition.lacks_producer_id) == (False, False)


def test_without_ids_one_batch_is_sent_at_a_time_and_has_no_number() -> None:
    partition = make(2)
    (first,) = sent(partition)
    assert first.producer_id == NO_PRODUCER_ID
    partition.in_flight.remove(first)
    assert len(sent(partition)) == 1


def test_what_was_sent_on_another_connection_decides_what_follows() -> None:
    partition = make(1, ids=allocated())
    (first,) = sent(partition, connection=1)
    partition.waiting.append(ProducerBatch("t", PLACE, MonotonicMs(0), record_count=1))
    assert partition.next(2) is None
    first.state = BatchState.TO_REPEAT
    assert partition.must_repeat
    assert sent(partition, connection=2)[0] is first


def test_a_hole_is_closed_by_the_next_epoch_once_nothing_is_in_the_air() -> None:
    partition = make(3, ids=allocated())
    first, second, third = sent(partition)
    partition.remove(first)
    assert partition.next(1) is None
    assert partition.on_gap(second)
    assert partition.next(1) is None, "the third is in the air"
    assert partition.on_gap(third)
    assert numbers(sent(partition)) == [(9, 1, 0), (9, 1, 2)]


def test_after_the_last_epoch_comes_another_id() -> None:
    ids = allocated(9)
    partition = make(1, ids=ids)
    (first,) = sent(partition)
    partition.producer_epoch = ProducerEpoch(PRODUCER_EPOCH_MAX)
    assert partition.on_gap(first)
    assert sent(partition) == []
    assert ids.is_wanted, "the present one is used up"
    ids.on_allocated(ProducerId(10))
    assert numbers(sent(partition)) == [(10, 0, 0)]


def test_a_partition_that_was_fenced_takes_a_newer_id_where_there_is_one() -> None:
    ids = allocated(9)
    partition = make(1, ids=ids)
    (first,) = sent(partition)
    ids.on_allocated(ProducerId(10))
    partition.on_fenced()
    assert partition.on_gap(first)
    assert numbers(sent(partition)) == [(10, 0, 0)]


def test_a_first_batch_that_may_still_arrive_keeps_its_number_and_fails() -> None:
    partition = make(1, ids=allocated())
    (first,) = sent(partition)
    first.maybe_appended, first.abandoned_in = True, EPOCH
    assert not partition.on_gap(first)
    first.leader_epoch = LeaderEpoch(EPOCH + 1)
    assert partition.on_gap(first), "a later leader refuses the attempts of earlier epochs"
