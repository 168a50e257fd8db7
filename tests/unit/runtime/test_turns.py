"""Long work gives the loop back, and all of it together has one slice in each turn."""

import asyncio

import pytest

from millrace.runtime import host
from millrace.runtime.turns import FREE_BYTES, FREE_ENTRIES, SLICE_SECONDS, Turns

ENTRY_SECONDS = 0.001


class Time:
    """Seconds that have passed."""

    now = 1000.0


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let time pass in `busy` alone: whatever else the machine does takes none."""
    monkeypatch.setattr(host, "monotonic_s", lambda: Time.now)


def busy(seconds: float = ENTRY_SECONDS) -> None:
    Time.now += seconds


async def test_all_long_work_together_has_one_slice_in_a_turn_of_the_loop() -> None:
    turns = Turns()
    done = 0

    async def request() -> None:
        nonlocal done
        work = turns.work()
        for _ in range(5):
            await work.give_way(FREE_ENTRIES + 1)
            busy()
            done += 1

    working = [asyncio.create_task(request()) for _ in range(20)]
    most = before = 0
    while not all(task.done() for task in working):
        await asyncio.sleep(0)  # One turn.
        most, before = max(most, done - before), done
    assert done == 100
    # The entry that is under way when the slice ends is done.
    assert 1 <= most <= SLICE_SECONDS / ENTRY_SECONDS + 1


async def test_who_came_first_goes_on_first() -> None:
    turns = Turns()
    ended: list[int] = []

    async def request(number: int) -> None:
        work = turns.work()
        for _ in range(6):
            await work.give_way(FREE_ENTRIES + 1)
            busy()
        ended.append(number)

    await asyncio.gather(*(request(number) for number in range(5)))
    assert ended == sorted(ended)


async def test_work_without_end_does_not_keep_the_slices_for_itself() -> None:
    turns = Turns()

    async def endless() -> None:
        while True:
            await turns.next_slice()
            busy()

    working = [asyncio.create_task(endless()) for _ in range(3)]
    await asyncio.sleep(0.02)
    for _ in range(5):
        waiting = asyncio.create_task(turns.next_slice())
        for _ in range(2 * len(working)):
            await asyncio.sleep(0)  # One turn.
        assert waiting.done()
    for task in working:
        task.cancel()


async def test_long_work_beside_work_without_end_has_half_of_the_time() -> None:
    turns = Turns()
    done = 0

    async def endless() -> None:
        nonlocal done
        while True:
            await turns.next_slice()
            busy()
            done += 1

    working = asyncio.create_task(endless())
    await asyncio.sleep(0)
    work, done = turns.work(), 0
    for _ in range(50):
        await work.give_way(FREE_ENTRIES + 1)
        busy(SLICE_SECONDS / 50)  # It is many entries, and little time.
    assert done * ENTRY_SECONDS <= 2 * SLICE_SECONDS + ENTRY_SECONDS
    working.cancel()


async def test_who_is_given_up_when_its_slice_was_about_to_begin_holds_up_nobody() -> None:
    turns = Turns()
    ended: list[int] = []

    async def request(number: int) -> None:
        await turns.next_slice()
        busy(2 * SLICE_SECONDS)
        ended.append(number)

    first, second, third = (asyncio.create_task(request(number)) for number in range(3))
    async with asyncio.timeout(10):
        await first
        second.cancel()
        await third
    assert ended == [0, 2]


async def test_an_owner_of_much_work_without_end_has_one_turn_among_the_owners() -> None:
    turns = Turns()

    async def endless() -> None:
        while True:
            await turns.next_slice("busy")
            busy()

    working = [asyncio.create_task(endless()) for _ in range(50)]
    await asyncio.sleep(0.02)
    for owner in ("other", None):
        waiting = asyncio.create_task(turns.next_slice(owner))
        for _ in range(6):
            await asyncio.sleep(0)  # One turn.
        assert waiting.done()
    for task in working[1:]:
        task.cancel()
    async with asyncio.timeout(10):
        for _ in range(20):
            await turns.next_slice("busy")
            busy()
    working[0].cancel()


async def test_work_that_is_given_up_holds_up_nobody() -> None:
    turns = Turns()

    async def endless() -> None:
        while True:
            await turns.next_slice()
            busy()

    given_up = asyncio.create_task(endless())
    await asyncio.sleep(0.02)
    given_up.cancel()
    async with asyncio.timeout(10):
        for _ in range(20):
            await turns.next_slice()
            busy()


async def test_what_is_small_waits_for_nobody() -> None:
    turns = Turns()
    await turns.next_slice()
    busy(2 * SLICE_SECONDS)

    async def large() -> None:
        work = turns.work()
        for _ in range(FREE_ENTRIES + 20):
            await work.give_way()
            busy()

    others = [asyncio.create_task(large()) for _ in range(5)]
    await asyncio.sleep(0)
    small = turns.work()
    for _ in range(FREE_ENTRIES):
        await small.give_way()
    await turns.give_way_to(FREE_BYTES)
    assert not any(task.done() for task in others)
    await asyncio.gather(*others)
