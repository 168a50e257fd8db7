"""Pauses between attempts; those before connecting on a loop of their own for each test."""

import asyncio

from millrace.client._pauses import ConnectPauses, spread
from millrace.core.ids import BrokerId

BROKER, OTHER = BrokerId(1), BrokerId(2)


def test_pauses_are_spread_over_two_fifths_and_keep_their_ratio() -> None:
    drawn = [spread(1_000, 10_000) for _ in range(200)]
    assert len({first for first, _ in drawn}) > 50
    assert all(800 <= first <= 1_200 and abs(10 * first - last) <= 5 for first, last in drawn)
    assert spread(1) == (1,)


def test_nobody_waits_before_the_first_attempt_or_when_it_answers() -> None:
    async def story() -> None:
        pauses = ConnectPauses(60_000, 60_000)
        async with asyncio.timeout(10):
            await pauses.wait(BROKER)
            pauses.on_failed(BROKER)
            pauses.on_answered(BROKER)
            await pauses.wait(BROKER)

    asyncio.run(story())


def test_news_of_a_broker_end_its_pause_and_no_other() -> None:
    async def story() -> None:
        pauses = ConnectPauses(60_000, 60_000)
        pauses.on_failed(BROKER)
        pauses.on_failed(OTHER)
        waiting = [asyncio.create_task(pauses.wait(each)) for each in (BROKER, OTHER)]
        await asyncio.sleep(0)
        pauses.on_news(BROKER)
        async with asyncio.timeout(10):
            await waiting[0]
            await pauses.wait(BROKER)  # It counts for the next attempt, too.
        assert not waiting[1].done()
        waiting[1].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(story())


def test_a_pause_ends_by_itself() -> None:
    async def story() -> None:
        pauses = ConnectPauses(1, 1)
        for _ in range(20):
            pauses.on_failed(BROKER)
        async with asyncio.timeout(10):
            await pauses.wait(BROKER)

    asyncio.run(story())
