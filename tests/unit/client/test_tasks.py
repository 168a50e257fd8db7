"""Background tasks that were cancelled by others start again; calls and streams are told."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import cast

import pytest
from tests.fakes.virtual_loop import in_virtual_time

from millrace.client._cluster.cluster import Cluster
from millrace.client._cluster.connection import Connection
from millrace.client._cluster.shared_tasks import SharedTasks
from millrace.client._threads.tasks import (
    StreamTasks,
    Tasks,
    cancellations,
    let_go,
    parts_of_a_call,
)
from millrace.core.errors import ClientError


def others() -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def until(condition: asyncio.Event) -> None:
    async with asyncio.timeout(10):
        await condition.wait()


async def test_a_background_task_that_others_cancel_does_its_work_again() -> None:
    tasks = Tasks(asyncio.get_running_loop(), "client")
    begun, may_end, has_ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work(name: str) -> None:
        assert name == "orders"
        begun.set()
        await may_end.wait()
        has_ended.set()

    tasks.spawn(work, "orders")
    for _ in range(3):
        await until(begun)
        begun.clear()
        for task in others():
            task.cancel()
    may_end.set()
    await until(has_ended)
    await tasks.end()


async def test_a_task_that_its_owner_ends_does_not_start_again() -> None:
    tasks = Tasks(asyncio.get_running_loop(), "client")
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        await asyncio.Event().wait()

    tasks.spawn(work)
    await asyncio.sleep(0)
    for task in others():
        task.cancel()
    await tasks.end()
    tasks.spawn(work)
    await asyncio.sleep(0.1)  # Longer than the pause before a start.
    assert begun == 1
    assert others() == []


@in_virtual_time
async def test_a_task_that_does_not_end_holds_up_nobody_who_ends_it() -> None:
    """As a user's callback may, which swallows cancellations."""

    loop, may_end = asyncio.get_running_loop(), asyncio.Event()
    tasks = Tasks(loop, "client")

    async def work() -> None:
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await may_end.wait()

    tasks.spawn(work)
    await asyncio.sleep(0)
    begun = loop.time()
    await let_go(begun + 1, tasks.end, tasks.end)
    assert loop.time() - begun < 1.001
    may_end.set()
    await tasks.end()
    await tasks.end()
    assert others() == []


def test_a_stream_is_told_when_others_cancel_one_of_its_tasks() -> None:
    async def story(is_early: bool) -> None:
        told: list[str] = []

        async def duty() -> None:
            await asyncio.Event().wait()

        def on_cancelled() -> None:
            told.append("cancelled")
            tasks.cancel()

        tasks = StreamTasks(
            "stream", duty(), duty(), on_cancelled=on_cancelled, on_failed=lambda error: None
        )
        if not is_early:
            await asyncio.sleep(0)
        others()[0].cancel()
        await tasks.wait(10)
        await asyncio.sleep(0)
        assert told == ["cancelled"]
        assert others() == []

    asyncio.run(story(is_early=False))
    asyncio.run(story(is_early=True))


async def test_a_stream_that_its_client_closes_is_told_nothing() -> None:
    told: list[str] = []

    async def duty() -> None:
        await asyncio.Event().wait()

    tasks = StreamTasks(
        "stream",
        duty(),
        on_cancelled=lambda: told.append("cancelled"),
        on_failed=lambda error: told.append("failed"),
    )
    tasks.cancel()
    await tasks.wait(10)
    await asyncio.sleep(0)
    assert told == []


async def test_a_call_whose_part_others_cancel_fails_with_a_typed_error() -> None:
    async def part() -> None:
        await asyncio.Event().wait()

    async def call() -> None:
        # As in the `finally` of a task that was cancelled before.
        try:
            await asyncio.Event().wait()
        finally:
            assert cancellations() == 1
            async with parts_of_a_call():
                await asyncio.gather(part(), part())

    calling = asyncio.create_task(call())
    await asyncio.sleep(0)
    calling.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    parts = [task for task in others() if task is not calling]
    assert len(parts) == 2
    parts[0].cancel()
    with pytest.raises(ClientError, match="not by the client"):
        await calling
    parts[1].cancel()


async def test_a_cancellation_that_came_before_a_call_is_not_taken_for_one_of_the_call() -> None:
    """As Ctrl-C under `asyncio.run`, while the program computes."""

    async def call() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        async with parts_of_a_call():
            await asyncio.gather(asyncio.sleep(60))

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(call())


async def test_a_call_whose_task_is_cancelled_stays_cancelled() -> None:
    async def call() -> None:
        async with parts_of_a_call():
            await asyncio.gather(asyncio.sleep(60))

    calling = asyncio.create_task(call())
    await asyncio.sleep(0)
    for task in others():
        task.cancel()
    await asyncio.wait([calling])
    assert calling.cancelled()


def test_no_kind_of_call_takes_a_cancellation_that_waits_for_its_own() -> None:
    cluster = Cluster("a:1", client_id="me")
    connection = cast(Connection, SimpleNamespace(address="a:1", is_given_up=False))

    async def waiting() -> None:
        await asyncio.sleep(60)

    async def broker_call() -> None:
        await cluster.on(connection, lambda _: waiting())

    async def shared_task() -> None:
        tasks: SharedTasks[str, None] = SharedTasks()
        await tasks.result("key", waiting)

    async def question() -> None:
        await cluster.ask_all_brokers(["orders"], lambda: False)

    async def parts() -> None:
        async with parts_of_a_call():
            await asyncio.gather(waiting())

    async def story(call: Callable[[], Awaitable[None]]) -> None:
        async def program() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await call()

        running = asyncio.create_task(program())
        await asyncio.wait([running], timeout=10)
        assert running.cancelled(), call

    for call in (broker_call, shared_task, question, parts):
        asyncio.run(story(call))


async def test_a_cancelled_task_can_still_call_in_its_finally() -> None:
    cluster = Cluster("a:1", client_id="me")
    connection = cast(Connection, SimpleNamespace(address="a:1", is_given_up=False))

    async def answer() -> str:
        await asyncio.sleep(0)
        return "closed"

    async def program() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            async with parts_of_a_call():
                answered.append(await cluster.on(connection, lambda _: answer()))

    answered: list[str] = []
    running = asyncio.create_task(program())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running], timeout=10)
    assert answered == ["closed"]
    assert running.cancelled()
