"""What messages say in a trace: for people, without bytes."""

import pytest
from tests.sim.messages import Answer, Ask, Batches, Produce, Produced, Read
from tests.sim.network import Received
from tests.sim.telling import readable, state, told

from millrace.core.errors import NotLeaderError
from millrace.core.ids import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicPartition,
    WallMs,
)
from millrace.core.metadata.model import BrokerLife, PartitionState
from millrace.core.metadata.requests import Heartbeat
from millrace.core.records.batch import prepare
from millrace.core.records.columns import Columns
from millrace.core.records.header import HEADER_BYTES, stamp
from millrace.core.replication.leader import Acks

PARTITION = TopicPartition(TopicId(b"t1 of simulated "), 2)
LIFE = BrokerLife(BrokerId(1), BrokerEpoch(7))
STATE = PartitionState(
    replicas=(BrokerId(1), BrokerId(2)),
    leader=BrokerId(1),
    leader_epoch=LeaderEpoch(3),
    partition_epoch=PartitionEpoch(9),
    isr=(LIFE,),
)


def batch() -> bytes:
    prepared = prepare(PARTITION, Columns(2, WallMs(1), values=[b"a", b"b"]))
    return prepared.finish(ProducerId(4), ProducerEpoch(0), 6) + bytes(prepared.body)


def stamped() -> bytes:
    sealed = batch()
    head = stamp(
        sealed[:HEADER_BYTES],
        base_offset=Offset(10),
        leader_epoch=LeaderEpoch(3),
        append_timestamp=WallMs(-1),
    )
    return head + sealed[HEADER_BYTES:]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            Received("producer-0", Produce(5, PARTITION, LeaderEpoch(3), batch(), Acks.ALL)),
            "produce #5 to t1-2, acks=all: 2 records of producer 4, sequence 6",
        ),
        (Produced(5, Offset(10)), "produced #5: at offset 10"),
        (Produced(5, Offset(-1), NotLeaderError("no")), "produced #5: NotLeaderError: no"),
        (Read(6, PARTITION, Offset(10), LeaderEpoch(3), LeaderEpoch(2)), ""),
        (Batches(6, b"", Offset(12)), ""),
        (
            Batches(6, stamped(), Offset(12)),
            "read #6: offsets 10 to 11 of epoch 3; committed to 12",
        ),
        (Ask(1, Heartbeat(life=LIFE, metadata_epoch=20)), ""),
        (
            Ask(1, Heartbeat(life=LIFE, metadata_epoch=20, wants_shutdown=True)),
            "#1: 1.7 wants to leave",
        ),
        (
            Answer(2, [STATE]),
            "#2: 1.7 leads in epoch 3, ISR [1.7] (partition epoch 9)",
        ),
    ],
)
def test_a_message_says_what_it_is_about(message: object, text: str) -> None:
    assert told(message) == text


def test_ids_of_topics_read_as_their_names() -> None:
    assert readable(f"broker-0, leader of {PARTITION} in 3") == "broker-0, leader of t1-2 in 3"
    assert state(STATE).startswith("1.7 leads")
