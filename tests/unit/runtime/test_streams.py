"""Duties of a stream end together, and leave nothing behind."""

import asyncio
import contextlib
import gc
import weakref
from typing import Any

import pytest

from millrace.runtime.streams import run_until_first


async def fail() -> None:
    raise ValueError("broken")


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


async def do_nothing() -> None:
    pass


def run_and_collect_faults(duties: Any) -> list[dict[str, Any]]:
    """Run duties; return what the loop was told of as nobody's fault but the program's."""
    faults: list[dict[str, Any]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
        try:
            await duties()
        finally:
            assert asyncio.all_tasks() == {asyncio.current_task()}
            gc.collect()

    asyncio.run(run())
    return faults


def test_the_first_that_ends_ends_the_others() -> None:
    assert run_and_collect_faults(lambda: run_until_first(wait_for_ever(), do_nothing())) == []


def test_what_the_first_raises_is_raised_and_what_others_raise_is_not_lost() -> None:
    async def duties() -> None:
        with pytest.raises(ValueError, match="broken"):
            await run_until_first(fail(), fail(), wait_for_ever())

    assert run_and_collect_faults(duties) == []


def test_a_stream_that_is_cancelled_ends_its_duties() -> None:
    async def duties() -> None:
        stream = asyncio.create_task(run_until_first(wait_for_ever(), wait_for_ever()))
        await asyncio.sleep(0)
        stream.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stream

    assert run_and_collect_faults(duties) == []


def test_what_a_failed_duty_held_is_given_up_without_the_garbage_collector() -> None:
    class Connection:
        pass

    connections: list[weakref.ref[Connection]] = []

    async def break_off() -> None:
        connection = Connection()
        connections.append(weakref.ref(connection))
        await asyncio.sleep(0)
        raise ValueError("broken")

    async def run() -> None:
        with contextlib.suppress(ValueError):
            await run_until_first(break_off(), wait_for_ever())
        assert connections[0]() is None

    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()
