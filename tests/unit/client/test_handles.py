"""Handles: what they tell, and to whom."""

import random
import threading
import time
import traceback
from typing import Any

import pyarrow as pa
import pytest

from millrace.client._producer.handles import BatchHandle, RecordHandle, RecordMetadata
from millrace.core.client.producer.delivery import Acknowledged, Delivery
from millrace.core.client.producer.distributor import Distributor, TopicLayout
from millrace.core.client.producer.intake import Intake, Intakes
from millrace.core.client.producer.partitioners import Keyed
from millrace.core.errors import (
    Appended,
    MillraceError,
    NotLeaderError,
    SerializationError,
)
from millrace.core.ids import (
    BrokerId,
    KnownLeader,
    Leader,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    TopicId,
    TopicPartition,
    WallMs,
)

PLACE = TopicPartition(TopicId(b"t" * 16), 0)


def intake_of(delivery: Delivery, count: int = 1) -> Intake:
    intake = Intake("t", MonotonicMs(0), WallMs(0), 0, 0)
    intake.record_count = count
    intake.segments = [(delivery, 0, count)]
    intake.is_distributed = True
    return intake


def handle_of(intake: Intake, index: int) -> RecordHandle:
    handle = RecordHandle()
    handle.intake, handle.index = intake, index
    return handle


def test_every_caller_gets_an_error_of_its_own() -> None:
    """A batch has a hundred thousand records: its error must not grow with each that is told."""
    failure = NotLeaderError("moved", appended=Appended.MAYBE)
    failure.leader = KnownLeader(Leader(BrokerId(1), LeaderEpoch(2)), "h:1")
    failure.__cause__ = cause = OSError("reset")
    rejection = SerializationError("no bytes")
    intake = intake_of(Delivery("t", PLACE, outcome=failure), 3)
    given_up = Intake("t", MonotonicMs(0), WallMs(0), 0, 0)
    given_up.fail(failure)
    batch = BatchHandle("t", 3, [intake], {})
    rejecting = BatchHandle("t", 1, [], {0: rejection})
    for ask in (
        handle_of(intake, 1).result,
        handle_of(given_up, 0).result,
        batch.result,
        batch[2].result,
        rejecting.result,
        lambda: rejecting[0],
    ):
        lengths = set()
        for _ in range(3):
            with pytest.raises(MillraceError) as caught:
                ask()
            lengths.add(len(traceback.extract_tb(caught.value.__traceback__)))
            told = caught.value
            if isinstance(told, NotLeaderError):
                assert (told.message, told.appended) == ("moved", Appended.MAYBE)
                assert (told.leader, told.__cause__) == (failure.leader, cause)
            else:
                assert isinstance(told, SerializationError)
        assert len(lengths) == 1
    assert failure.__traceback__ is None


@pytest.mark.parametrize("has_keys", [False, True])
def test_each_handle_tells_where_its_own_record_is(has_keys: bool) -> None:
    intakes = Intakes(100_000, 1_000_000)
    handles = {}
    for number in range(200):
        value, key = b"%d" % number, b"key %d" % (number % 31) if has_keys else None
        added = intakes.add("t", value, key, None, None, None, MonotonicMs(0), WallMs(number))
        assert added is not None
        handles[value] = handle_of(*added)
        assert not handles[value].done()
    intakes.close("t")
    distributor = Distributor(200, Keyed(), lambda _: 0, random.Random(1))
    distributor.distribute(intakes.closed[0], TopicLayout(PLACE.topic_id, 7))
    distributor.seal_opened_until(MonotonicMs(0))
    found = {}
    for number, batch in enumerate(distributor.sealed):
        rows = batch.columns()
        batch.outcome = Acknowledged(Offset(1000 * number), WallMs(-1))
        values: Any = rows.values
        for row, value in enumerate(
            values.to_pylist() if isinstance(values, pa.Array) else values.cells()
        ):
            found[value] = (batch.topic_partition.partition, 1000 * number + row)
    assert len(distributor.sealed) > 7
    for value, handle in handles.items():
        metadata = handle.result(timeout=0)
        assert type(metadata) is RecordMetadata
        assert (metadata.partition, metadata.offset) == found[value]
        assert (metadata.topic, metadata.timestamp) == ("t", 0)


def test_a_batch_in_many_parts_is_waited_for_once() -> None:
    first, second = Delivery("t", PLACE), Delivery("t", PLACE)
    intakes = [intake_of(first), intake_of(second)]
    for intake in intakes:
        intake.batches_open = 1

    def complete_the_first() -> None:
        first.outcome = Acknowledged(Offset(0), WallMs(-1))
        intakes[0].batches_open = 0
        for _, waiter in intakes[0].waiters:
            waiter()

    timer = threading.Timer(0.6, complete_the_first)
    timer.start()
    started = time.monotonic()
    with pytest.raises(TimeoutError, match="within 1 s"):
        BatchHandle("t", 2, intakes, {}).result(timeout=1)
    assert time.monotonic() - started < 1.5
    timer.join()


def test_a_time_out_leaves_no_waiter() -> None:
    delivery = Delivery("t", PLACE, outcome=None)
    intake = intake_of(delivery)
    for is_distributed in (False, True):
        intake.is_distributed = is_distributed
        with pytest.raises(TimeoutError):
            handle_of(intake, 0).result(timeout=0)
        assert not intake.waiters
        assert not delivery.waiters
