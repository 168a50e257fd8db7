"""What a request takes beside its batches."""

from millrace.core.client.producer.sender import REQUEST_OVERHEAD_MAX
from millrace.proto import codec
from millrace.proto.v1 import produce_pb2


def test_a_request_with_one_batch_takes_no_more_than_what_is_left_for_it() -> None:
    header = produce_pb2.ProduceHeader(
        correlation_id=2**63 - 1, acks=-1, request_timeout_ms=2**31 - 1
    )
    header.partitions.add(
        topic_id=bytes(16), partition=2**31 - 1, leader_epoch=-1, length=2**30, is_successor=True
    )
    batch = b"b" * (1 << 20)
    sent = sum(map(len, codec.produce_request(header, [batch])))
    assert sent - len(batch) <= REQUEST_OVERHEAD_MAX
