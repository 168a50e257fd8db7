"""Each thing is worked on once however often it is named, and by one worker at a time."""

import asyncio

from millrace.operator.queue import PAUSE_S_MAX, PAUSE_S_MIN, WorkQueue


async def test_a_thing_that_is_named_often_is_worked_on_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for name in ("a", "b", "a"):
        queue.add(name)
    assert [await queue.get(), await queue.get()] == ["a", "b"]
    assert len(queue) == 2
    queue.done("a", None)
    queue.done("b", None)
    assert len(queue) == 0


async def test_what_is_named_while_it_is_worked_on_is_worked_on_again_afterwards() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    second = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    assert not second.done()
    queue.done("a", None)
    assert await asyncio.wait_for(second, 5) == "a"


async def test_what_failed_is_tried_again_after_pauses_that_grow_to_a_bound() -> None:
    queue: WorkQueue[str] = WorkQueue()
    pauses = [queue.failed("a") for _ in range(12)]
    assert pauses[:3] == [PAUSE_S_MIN, PAUSE_S_MIN * 2, PAUSE_S_MIN * 4]
    assert pauses[-1] == PAUSE_S_MAX
    queue.done("a", None)
    assert queue.failed("a") == PAUSE_S_MIN


async def test_a_closed_queue_hands_out_nothing_and_loses_nothing() -> None:
    queue: WorkQueue[str] = WorkQueue()
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.is_open = False
    queue.add("a")
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.is_open = True
    assert await asyncio.wait_for(waiting, 5) == "a"


async def test_what_is_to_be_looked_at_later_comes_by_itself() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 0.01)
    queue.add_after("a", 60)  # The earliest time counts.
    assert await asyncio.wait_for(queue.get(), 5) == "a"
