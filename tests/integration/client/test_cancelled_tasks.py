"""A program cancels tasks of its loop: clients go on, or say at once what happened.

`for task in asyncio.all_tasks(): task.cancel()` meets also the tasks of clients and of gRPC, at any
point of their work. Each story runs once for each of some points and for each task alone, and for
all of them together.
"""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import pytest
from tests.integration.client.conftest import Run
from tests.integration.running_broker import RunningBroker

from millrace.client import Admin, Consumer, MillraceError, Producer, SyncConsumer

POINTS = (0, 1, 2, 4, 9, 20)
"""Turns of the loop after which tasks are cancelled; a call takes some ten of them."""
SETTLED = 1_000
ALONE_MAX = 8
LIMIT_S = 15
"""Far below what a client waits for a broker, and far above what it needs."""


def name_of(task: asyncio.Task[Any]) -> str:
    return getattr(task.get_coro(), "__qualname__", "")


class Canceller:
    """Cancels what a client runs, once, after so many turns of the loop.

    Args:
        turns: the point.
        alone: number of the only task that is cancelled; None: all of them.
    """

    def __init__(self, turns: int, alone: int | None) -> None:
        self._turns = turns
        self._alone = alone
        self._spared = asyncio.all_tasks()
        self.cancelled: list[str] = []

    async def run(self) -> None:
        me = asyncio.current_task()
        for _ in range(self._turns):
            await asyncio.sleep(0 if self._turns < SETTLED else 0.000_1)
        tasks = [task for task in asyncio.all_tasks() - self._spared if task is not me]
        tasks.sort(key=name_of)
        if self._alone is not None:
            tasks = tasks[self._alone : self._alone + 1]
        for task in tasks:
            self.cancelled.append(name_of(task))
            task.cancel()


async def at_all_points(
    story: Callable[[Awaitable[None]], Coroutine[Any, Any, None]],
) -> None:
    """Run a story with cancellations at all points; it awaits that they have happened."""
    for turns in (*POINTS, SETTLED):
        for alone in (None, *range(ALONE_MAX)):
            canceller = Canceller(turns, alone)
            cancelling = asyncio.create_task(canceller.run())
            try:
                async with asyncio.timeout(LIMIT_S):
                    await story(cancelling)
            except (TimeoutError, asyncio.CancelledError, MillraceError) as error:
                raise AssertionError(
                    f"after {turns} turns of the loop {canceller.cancelled} were cancelled"
                ) from error
            if alone is not None and not canceller.cancelled:
                break  # There are no more tasks at this point.


@pytest.fixture
def topic(shared_broker: RunningBroker, topic_name: str) -> str:
    shared_broker.create_topic(topic_name, partitions=2)
    return topic_name


def test_a_producer_delivers_whichever_task_is_cancelled(
    run: Run, shared_broker: RunningBroker, topic: str
) -> None:
    async def story(cancelling: Awaitable[None]) -> None:
        async with Producer(shared_broker.address) as producer:
            handle = producer.send(topic, b"before")
            await cancelling
            await handle
            await producer.send(topic, b"after")
            assert await producer.partitions_for(topic) == [0, 1]

    run(at_all_points(story))


@pytest.mark.parametrize("is_member", [False, True])
async def test_a_consumer_reads_whichever_task_is_cancelled(
    shared_broker: RunningBroker, topic: str, is_member: bool
) -> None:
    groups = count()

    async def story(producer: Producer, cancelling: Awaitable[None]) -> None:
        group = f"{topic[:100]}-{next(groups)}" if is_member else ""
        async with Consumer(shared_broker.address, group=group) as consumer:
            await consumer.subscribe([topic])
            while not await consumer.poll(100):
                pass
            await cancelling
            await producer.send(topic, b"after", partition=0)
            values: list[bytes] = []
            while b"after" not in values:
                values += [record.value for record in await consumer.poll(100)]
            await consumer.position((topic, 0))

    async with Producer(shared_broker.address) as producer:
        await producer.send(topic, b"before", partition=0)
        await at_all_points(partial(story, producer))


def test_each_call_of_an_admin_answers_or_fails_at_once_whichever_task_is_cancelled(
    run: Run, shared_broker: RunningBroker, topic: str
) -> None:
    calls: list[Callable[[Admin], Awaitable[object]]] = [
        lambda admin: admin.describe_topic(topic),
        lambda admin: admin.list_offsets([topic]),
        lambda admin: admin.describe_logs(topic),
        lambda admin: admin.describe_group("nobody"),
        lambda admin: admin.describe_quotas(),
        lambda admin: admin.describe_cluster(),
    ]

    async def story(cancelling: Awaitable[None]) -> None:
        async with Admin(shared_broker.address) as admin:
            for call in calls:
                with suppress(MillraceError):
                    await call(admin)
            await cancelling
            for call in calls:
                await call(admin)

    run(at_all_points(story))


async def test_a_stream_whose_end_grpc_can_no_longer_tell_is_opened_anew(
    shared_broker: RunningBroker, topic: str
) -> None:
    """Else it would be read for ever once its connection has broken."""
    spared = asyncio.all_tasks()
    async with (
        Producer(shared_broker.address, transport="grpc") as producer,
        Consumer(shared_broker.address, transport="grpc") as consumer,
    ):
        await producer.send(topic, b"before")
        await consumer.subscribe([topic])
        while not await consumer.poll(100):
            pass
        for task in asyncio.all_tasks() - spared:
            if name_of(task).startswith("_AioCall"):
                task.cancel()
        async with asyncio.timeout(LIMIT_S):
            while not producer.metrics()["failed_streams"]:
                await producer.send(topic, b"between")
            while not consumer.metrics()["failed_streams"]:
                await consumer.poll(10)
            await producer.send(topic, b"after")
            values: list[bytes] = []
            while b"after" not in values:
                values += [record.value for record in await consumer.poll(100)]


_CLOSED_LAST = """
import asyncio, sys
from millrace.client import Producer

async def work(connected):
    producer = Producer(sys.argv[1])
    try:
        if sys.argv[3] == "connected":
            await producer.send(sys.argv[2], b"first")
        connected.set()
        producer.send(sys.argv[2], b"last")
        await asyncio.Event().wait()
    finally:
        await producer.close()

async def main():
    connected = asyncio.Event()
    task = asyncio.create_task(work(connected))
    await connected.wait()
    return task

asyncio.run(main())
"""


@pytest.mark.parametrize("state", ["connected", "new"])
def test_close_in_a_finally_delivers_at_the_end_of_asyncio_run(
    shared_broker: RunningBroker, topic: str, state: str
) -> None:
    command = [sys.executable, "-c", _CLOSED_LAST, shared_broker.address, topic, state]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with SyncConsumer(shared_broker.address) as consumer:
        consumer.subscribe([topic])
        values: list[bytes] = []
        while b"last" not in values:
            found = consumer.poll(20_000)
            assert found, f"the last record is not among {values}"
            values += [record.value for record in found]
