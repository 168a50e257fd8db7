"""What ends a broker's process, and what becomes of the tasks that run as long as it does."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from millrace.broker.upkeep.duties import Duties
from millrace.core.errors import BrokerShuttingDownError, InvalidConfigError, LogDirFailedError


async def forever() -> None:
    await asyncio.Event().wait()


async def failing(error: Exception) -> None:
    raise error


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(10):
            await story

    asyncio.run(bounded())


def test_a_duty_that_fails_ends_the_process_with_a_code_that_says_so() -> None:
    async def story() -> None:
        duties = Duties()
        duties.begin(forever())
        duties.begin(failing(AssertionError("broken")))
        await duties.is_over.wait()
        assert duties.exit_code == 1
        await duties.end()

    run(story())


def test_a_signal_ends_it_in_good_order() -> None:
    async def story() -> None:
        duties = Duties()
        duties.stop_soon()
        assert duties.is_over.is_set()
        assert duties.exit_code == 0

    run(story())


def test_duties_that_are_ended_are_no_failure() -> None:
    async def story() -> None:
        duties = Duties()
        duties.begin(forever())
        await asyncio.sleep(0)
        await duties.end()
        assert (duties.exit_code, duties.is_over.is_set()) == (0, False)
        assert len(asyncio.all_tasks()) == 1

    run(story())


async def test_a_duty_that_anything_else_cancels_ends_the_process() -> None:
    duties = Duties()
    duties.begin(forever())
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await duties.is_over.wait()
    assert duties.exit_code == 1
    await duties.end()


def test_what_is_waited_for_is_given_up_with_the_first_error_that_was_told_in_words() -> None:
    async def story() -> None:
        duties = Duties()
        waiting = asyncio.create_task(duties.unless_over(forever()))
        await asyncio.sleep(0)
        duties.fail(InvalidConfigError("the first"))
        duties.fail(LogDirFailedError("the second"))
        with pytest.raises(InvalidConfigError, match="the first"):
            await waiting

    run(story())


def test_what_comes_in_time_is_returned_and_its_own_error_is_raised() -> None:
    async def story() -> None:
        duties = Duties()
        assert await duties.unless_over(asyncio.sleep(0, "there")) == "there"
        with pytest.raises(InvalidConfigError):
            await duties.unless_over(failing(InvalidConfigError("its own")))
        duties.stop_soon()
        with pytest.raises(BrokerShuttingDownError):
            await duties.unless_over(forever())

    run(story())
