"""Where a log ends, by the isolation of the reader who asks."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.call_context import CALLER
from tests.fakes.stamped_batches import TOPIC_PARTITION
from tests.fakes.until import until

from millrace.broker.rpc.offset_lookups import OffsetLookups
from millrace.core.ids import LeaderEpoch
from millrace.core.metadata.model import Listener
from millrace.proto.v1 import fetch_pb2 as pb
from millrace.proto.v1.common_pb2 import TopicPartition
from millrace.runtime.turns import Turns

PLACE = TopicPartition(topic_id=TOPIC_PARTITION.topic_id, partition=TOPIC_PARTITION.partition)
COMMITTED, UNCOMMITTED = pb.ISOLATION_LEVEL_READ_COMMITTED, pb.ISOLATION_LEVEL_READ_UNCOMMITTED


class Partition:
    """A log of 90 records, whose last ten belong to an open transaction."""

    def __init__(self) -> None:
        self.leader = SimpleNamespace(
            check_epoch=lambda _: None,
            check_end_offset=lambda: None,
            last_stable_offset=80,
            high_watermark=90,
        )
        self.log = SimpleNamespace(
            log_start_offset=7,
            log_dir_of=lambda offset: "/0",
            leader_epochs=SimpleNamespace(epoch_of=lambda offset: LeaderEpoch(3)),
            reader=SimpleNamespace(
                offset_after_bytes=lambda start, size, end: end,
                offset_for_timestamp=lambda time, end: SimpleNamespace(offset=end, timestamp=1),
            ),
        )
        self.readers: list[tuple[Any, int]] = []

    def follow(self, reader: Any, handle: int) -> None:
        self.readers.append((reader, handle))

    def leave(self, reader: Any, handle: int) -> None:
        self.readers.remove((reader, handle))


def lookups_of(partition: Partition) -> OffsetLookups:
    async def call(log_dir: str, search: Any, *args: Any) -> Any:
        found = search(*args)
        return (found.offset, found.timestamp) if isinstance(found, SimpleNamespace) else found

    held: Any = SimpleNamespace(get=lambda _: partition, find=lambda _: partition, image=None)
    reader: Any = SimpleNamespace(call=call)
    reader.of = lambda owner: reader
    return OffsetLookups(held, reader, Turns(), wait_ms_max=60_000, listener=Listener.CLIENTS)


def request(level: pb.IsolationLevel, max_wait_ms: int = 0, **position: Any) -> Any:
    query = pb.ListOffsetsPartition(topic_partition=PLACE, **position)
    return pb.ListOffsetsRequest(partitions=[query], isolation_level=level, max_wait_ms=max_wait_ms)


@pytest.mark.parametrize(("level", "end"), [(COMMITTED, 80), (UNCOMMITTED, 90)])
@pytest.mark.parametrize(
    "position",
    [
        {"latest": True},
        {"latest_after": 0},
        {"timestamp": 5},
        {"bytes_after": pb.BytesAfter(offset=7, size=1 << 20)},
    ],
)
async def test_a_log_ends_where_its_reader_does(
    level: pb.IsolationLevel, end: int, position: dict[str, Any]
) -> None:
    lookups = lookups_of(Partition())
    (listed,) = (await lookups.list_offsets(request(level, **position), CALLER)).offsets
    assert listed.offset == end


async def test_a_log_begins_where_it_does_for_everyone() -> None:
    lookups = lookups_of(Partition())
    (listed,) = (await lookups.list_offsets(request(COMMITTED, earliest=True), CALLER)).offsets
    assert listed.offset == 7


async def test_who_waits_for_committed_records_hears_when_the_last_stable_offset_moves() -> None:
    partition = Partition()
    lookups = lookups_of(partition)
    asking = asyncio.create_task(
        lookups.list_offsets(request(COMMITTED, 60_000, latest_after=80), CALLER)
    )
    await until(lambda: bool(partition.readers))
    ((waiting, handle),) = partition.readers
    partition.leader.high_watermark = 95
    waiting.on_advanced(handle)
    await asyncio.sleep(0)
    assert not asking.done(), "nothing came for this reader"
    partition.leader.last_stable_offset = 95
    waiting.on_advanced(handle)
    (listed,) = (await asyncio.wait_for(asking, 5)).offsets
    assert listed.offset == 95
    assert not partition.readers
