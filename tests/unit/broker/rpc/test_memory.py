"""The bound on the bytes of requests: nobody gets more, nobody waits for ever."""

import asyncio

from millrace.broker.rpc.memory import ConnectionMemory, MemoryPool


async def test_bytes_beyond_the_pool_wait_until_some_are_given_back() -> None:
    pool, connection = MemoryPool(10, 10), ConnectionMemory()
    await pool.take(8, connection)
    waiting = asyncio.ensure_future(pool.take(3, connection))
    await asyncio.sleep(0)
    assert not waiting.done()
    pool.give_back(8, connection)
    await waiting
    assert (pool.used, connection.used) == (3, 3)


async def test_a_connection_at_its_own_bound_does_not_hold_up_the_others() -> None:
    pool, greedy, modest = MemoryPool(10, 5), ConnectionMemory(), ConnectionMemory()
    await pool.take(5, greedy)
    waiting = asyncio.ensure_future(pool.take(1, greedy))
    await asyncio.sleep(0)
    await asyncio.wait_for(pool.take(5, modest), 1)
    assert not waiting.done()
    pool.give_back(5, greedy)
    await waiting
    assert pool.used == 6


async def test_nobody_overtakes_who_waits_for_the_pool() -> None:
    pool, one, two = MemoryPool(10, 10), ConnectionMemory(), ConnectionMemory()
    await pool.take(6, one)
    large = asyncio.ensure_future(pool.take(6, two))
    await asyncio.sleep(0)
    small = asyncio.ensure_future(pool.take(1, two))
    await asyncio.sleep(0)
    assert not small.done()
    pool.give_back(6, one)
    await asyncio.gather(large, small)
    assert pool.used == 7


async def test_a_request_larger_than_the_pool_is_served_alone() -> None:
    pool, connection = MemoryPool(10, 10), ConnectionMemory()
    await pool.take(25, connection)
    waiting = asyncio.ensure_future(pool.take(1, connection))
    await asyncio.sleep(0)
    assert not waiting.done()
    pool.give_back(25, connection)
    await waiting


async def test_who_stops_waiting_holds_nothing() -> None:
    pool, connection = MemoryPool(10, 10), ConnectionMemory()
    await pool.take(10, connection)
    waiting = asyncio.ensure_future(pool.take(5, connection))
    granted = asyncio.ensure_future(pool.take(5, connection))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    pool.give_back(10, connection)
    granted.cancel()  # It was granted already, but has not run since.
    await asyncio.gather(waiting, granted, return_exceptions=True)
    assert (pool.used, connection.used) == (0, 0)


async def test_who_stops_waiting_does_not_hold_up_the_others() -> None:
    pool, connection = MemoryPool(10, 10), ConnectionMemory()
    await pool.take(6, connection)
    large = asyncio.ensure_future(pool.take(6, connection))
    small = asyncio.ensure_future(pool.take(1, connection))
    await asyncio.sleep(0)
    assert not small.done()
    large.cancel()
    await asyncio.wait_for(small, 1)
    assert (pool.used, connection.used) == (7, 7)
