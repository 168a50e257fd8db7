"""Long work gives the loop back, and all of it together has one slice in each turn."""

import asyncio
import time

from millrace.broker.runtime.turns import SLICE_SECONDS, Turns

ENTRY_SECONDS = 0.001


def busy() -> None:
    until = time.monotonic() + ENTRY_SECONDS
    while time.monotonic() < until:
        pass


def test_all_long_work_together_has_one_slice_in_a_turn_of_the_loop() -> None:
    async def story() -> None:
        turns = Turns()
        done = 0

        async def work() -> None:
            nonlocal done
            for _ in range(5):
                await turns.give_way()
                busy()
                done += 1

        working = [asyncio.create_task(work()) for _ in range(20)]
        most = before = 0
        while not all(task.done() for task in working):
            await asyncio.sleep(0)  # One turn.
            most, before = max(most, done - before), done
        assert done == 100
        # The entry that is under way when the slice ends is done.
        assert 1 <= most <= SLICE_SECONDS / ENTRY_SECONDS + 1

    asyncio.run(story())


def test_who_came_first_goes_on_first() -> None:
    async def story() -> None:
        turns = Turns()
        ended: list[int] = []

        async def work(number: int) -> None:
            for _ in range(6):
                await turns.give_way()
                busy()
            ended.append(number)

        await asyncio.gather(*(work(number) for number in range(5)))
        assert ended == sorted(ended)

    asyncio.run(story())


def test_work_that_is_given_up_holds_up_nobody() -> None:
    async def story() -> None:
        turns = Turns()

        async def endless() -> None:
            while True:
                await turns.give_way()
                busy()

        given_up = asyncio.create_task(endless())
        await asyncio.sleep(0.02)
        given_up.cancel()
        async with asyncio.timeout(10):
            for _ in range(20):
                await turns.give_way()
                busy()

    asyncio.run(story())
