"""What a follower's checking thread makes of a leader's response."""

import pytest
from tests.fakes.stamped_batches import TOPIC_PARTITION, bytes_of, stamped_batch

from millrace.broker.replica.fetcher import _checked, _Refused
from millrace.core.ids import EpochEnd, LeaderEpoch, Offset, TopicId, TopicPartition
from millrace.core.replica.replication.events import Fetched
from millrace.proto.codec import decode_fetch_response, fetch_response
from millrace.proto.v1 import common_pb2
from millrace.proto.v1 import fetch_pb2 as pb

BATCHES = [stamped_batch(0, records=2), stamped_batch(2, as_kafka=True), stamped_batch(3)]


def checked(
    partition: pb.FetchedPartition,
    data: bytes = b"",
    place: TopicPartition | None = TOPIC_PARTITION,
) -> list[Fetched | _Refused]:
    message = b"".join(fetch_response(pb.FetchHeader(partitions=[partition]), [data]))
    return _checked(*decode_fetch_response(message), [place])


def fetched(data: bytes, partition: TopicPartition | None = TOPIC_PARTITION) -> Fetched:
    header = pb.FetchedPartition(handle=7, fetch_offset=0, high_watermark=2, length=len(data))
    (found,) = checked(header, data, partition)
    assert isinstance(found, Fetched)
    return found


def test_batches_are_kept_byte_for_byte() -> None:
    found = fetched(b"".join(map(bytes_of, BATCHES)))
    assert [bytes(batch.header) + bytes(batch.body) for batch in found.batches] == [  # type: ignore[attr-defined]
        bytes_of(batch) for batch in BATCHES
    ]
    assert [(batch.base_offset, batch.next_offset) for batch in found.batches] == [
        (0, 2),
        (2, 3),
        (3, 4),
    ]
    assert not found.is_damaged


@pytest.mark.parametrize("at", [30, 70, 96, 111, -1])
def test_batches_are_taken_up_to_the_first_that_is_damaged(at: int) -> None:
    damaged = bytearray(bytes_of(BATCHES[1]))
    damaged[at] ^= 1
    data = bytes_of(BATCHES[0]) + bytes(damaged) + bytes_of(BATCHES[2])
    found = fetched(data)
    assert [batch.base_offset for batch in found.batches] == [0]
    assert found.is_damaged
    assert found.size == len(data)


def test_a_batch_that_breaks_off_is_damaged() -> None:
    found = fetched(bytes_of(BATCHES[0]) + bytes_of(BATCHES[1])[:-1])
    assert len(found.batches) == 1
    assert found.is_damaged


def test_a_batch_of_another_partition_is_damaged() -> None:
    found = fetched(bytes_of(BATCHES[0]), TopicPartition(TopicId(b"o" * 16), 0))
    assert (found.batches, found.is_damaged) == ([], True)


def test_bytes_of_a_position_that_was_left_are_only_counted() -> None:
    found = fetched(bytes_of(BATCHES[0]), None)
    assert (found.batches, found.is_damaged) == ([], False)
    assert found.size == BATCHES[0].length


def test_a_refusal_says_where_the_log_begins_only_where_the_position_is_outside() -> None:
    def refused(code: "common_pb2.ErrorCode") -> object:
        header = pb.FetchedPartition(
            handle=7, error=common_pb2.Error(code=code), log_start_offset=40
        )
        return checked(header)

    assert refused(common_pb2.ERROR_CODE_OFFSET_OUT_OF_RANGE) == [_Refused(7, Offset(40))]
    assert refused(common_pb2.ERROR_CODE_NOT_LEADER) == [_Refused(7, None)]


def test_a_divergence_is_passed_on() -> None:
    header = pb.FetchedPartition(
        handle=7, diverging=pb.EpochEndOffset(leader_epoch=3, end_offset=9)
    )
    (found,) = checked(header)
    assert isinstance(found, Fetched)
    assert found.diverging == EpochEnd(LeaderEpoch(3), Offset(9))
