"""What is over is noted by the broker that leads the coordinator's partition, and by no other."""

import asyncio

from tests.fakes.transactions_log import ID, producer

from millrace.broker.coordinator.completions import Completions
from millrace.broker.coordinator.marker_delivery import Telling
from millrace.broker.coordinator.owed_topics import TransactionsRuntime
from millrace.core.coordinator.transactions.transaction import Decision
from millrace.core.ids import LeaderEpoch, Offset, TopicId, TopicPartition, WallMs
from millrace.core.records.markers import BUMPING
from millrace.runtime.tasks import Tasks

PLACE = TopicPartition(TopicId(b"t" * 16), 0)


async def nobody(*_: object) -> None:
    raise AssertionError("what is dropped is not noted")


def over() -> Telling:
    """A transaction of which all participants have the marker."""
    decision = Decision(ID, producer(100, 1), True, BUMPING, [], [], Offset(7))
    return Telling(PLACE, LeaderEpoch(3), decision, nobody)


def runtime() -> TransactionsRuntime:
    raise AssertionError("another broker coordinates the partition")


async def test_what_is_over_as_another_broker_takes_over_is_left_to_that_one() -> None:
    failures: list[BaseException] = []
    tasks = Tasks(failures.append)
    completions = Completions(runtime, lambda: WallMs(0), tasks, lambda _: None)
    completions.add(over())
    completions.drop(PLACE)  # In the same turn of the loop.
    await asyncio.sleep(0.1)
    assert failures == []
    assert completions.find(PLACE, ID) is None
    await tasks.cancel()
