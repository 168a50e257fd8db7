"""The simulator's own reader of Kafka's batches: it reads what is honest, and finds what is not."""

import pytest
from tests.fakes.kafka_batches import CODECS, TRANSACTIONAL, Record, batch_of, with_fields
from tests.sim.clients.kafka.records import BrokenBatchError, batches_in

RECORDS = [Record(b"one", b"k", 5), Record(None, b"k", 7), Record(b"three", None, -1)]


def stored(codec: str = "none", **numbers: int) -> bytes:
    return batch_of(RECORDS, codec, base_offset=10, leader_epoch=3, **numbers)


@pytest.mark.parametrize("codec", CODECS)
def test_batches_are_read_one_after_the_other_and_what_is_cut_short_is_not(codec: str) -> None:
    first, second = stored(codec), stored(codec, attributes=TRANSACTIONAL, producer_id=4)
    found = list(batches_in(first + second + first[:-1]))
    assert [(batch.base_offset, batch.last_offset) for batch in found] == [(10, 12), (10, 12)]
    assert [batch.is_transactional for batch in found] == [False, True]
    assert [tuple(record) for record in found[0].records] == [
        (10, 5, b"k", b"one"),
        (11, 7, b"k", None),
        (12, -1, None, b"three"),
    ]


@pytest.mark.parametrize(
    "broken",
    [
        with_fields(stored(), magic=1),
        with_fields(stored(), crc=1),
        with_fields(stored(), record_count=2),
        with_fields(stored(), last_offset_delta=1),
        stored()[:-1] + b"\1",
    ],
)
def test_a_batch_that_is_none_is_found(broken: bytes) -> None:
    with pytest.raises(BrokenBatchError):
        list(batches_in(broken))
