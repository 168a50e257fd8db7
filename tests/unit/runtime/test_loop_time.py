import asyncio
import time

import pytest

from millrace.runtime.loop_time import LoopTime

MS = 1_000_000


def work(ms: int) -> None:
    until = time.thread_time_ns() + ms * MS
    while time.thread_time_ns() < until:
        pass


async def test_only_the_steps_of_a_coroutine_count_and_not_what_it_waits_for() -> None:
    async def call() -> str:
        work(10)
        await asyncio.sleep(0.2)
        work(10)
        return "done"

    timed = LoopTime(call())
    assert await timed == "done"
    assert 20 * MS <= timed.nanoseconds < 150 * MS


async def test_an_error_of_the_coroutine_is_raised_and_its_time_counts() -> None:
    async def call() -> None:
        await asyncio.sleep(0)
        work(5)
        raise LookupError("no")

    timed = LoopTime(call())
    with pytest.raises(LookupError):
        await timed
    assert timed.nanoseconds >= 5 * MS


async def test_a_coroutine_may_catch_an_error_of_what_it_waits_for_and_go_on() -> None:
    async def call() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            await asyncio.sleep(0)
            return "late"
        return "in time"

    assert await LoopTime(call()) == "late"


async def test_a_cancelled_task_cancels_the_coroutine() -> None:
    ended = asyncio.Event()

    async def call() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def run() -> None:
        await LoopTime(call())

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
