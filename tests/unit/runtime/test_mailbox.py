"""From threads to the loop: every message arrives, in order, with few wake-ups."""

import asyncio
import threading
from collections.abc import Generator

import pytest

from millrace.runtime.mailbox import Mailbox, Worker, at_once


async def test_messages_of_many_threads_all_arrive_and_each_threads_in_order() -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    arrived: list[tuple[int, int]] = []
    finished = asyncio.Event()

    def deliver(thread: int, number: int) -> None:
        arrived.append((thread, number))
        if len(arrived) == 4000:
            finished.set()

    def post(thread: int) -> None:
        for number in range(1000):
            mailbox.post(deliver, thread, number)

    threads = [threading.Thread(target=post, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    await asyncio.wait_for(finished.wait(), 10)
    for thread in threads:
        thread.join()
    for number in range(4):
        assert [n for t, n in arrived if t == number] == list(range(1000))


async def test_a_worker_runs_jobs_in_order_and_reports_results_and_errors() -> None:
    worker = Worker("test", Mailbox(asyncio.get_running_loop()))
    ran: list[int] = []
    futures = [worker.call(lambda n=n: ran.append(n) or n) for n in range(10)]  # type: ignore[func-returns-value]
    assert await asyncio.gather(*futures) == list(range(10))
    assert ran == list(range(10))
    with pytest.raises(ZeroDivisionError):
        await worker.call(lambda: 1 // 0)
    assert await worker.call(lambda: 7) == 7
    worker.close()


async def test_owners_take_turns_and_each_has_its_jobs_in_order() -> None:
    worker = Worker("test", Mailbox(asyncio.get_running_loop()))
    begin = threading.Event()
    ran: list[tuple[str, int]] = []
    worker.submit(lambda *_: None, begin.wait)
    futures = [worker.call(ran.append, ("much", number), owner="much") for number in range(50)]
    futures += [worker.call(ran.append, ("little", number), owner="little") for number in range(2)]
    futures.append(worker.call(ran.append, ("nobody", 0)))
    begin.set()
    await asyncio.gather(*futures)
    assert ran[:5] == [("much", 0), ("little", 0), ("nobody", 0), ("much", 1), ("little", 1)]
    assert ran[5:] == [("much", number) for number in range(2, 50)]
    worker.close()


async def test_a_long_job_leaves_others_their_turn_and_the_next_of_its_owner_waits_for_it() -> None:
    worker = Worker("test", Mailbox(asyncio.get_running_loop()))
    begin = threading.Event()
    ran: list[object] = []

    def long(turns: int) -> Generator[None, None, str]:
        for turn in range(turns):
            ran.append(turn)
            yield
        if not turns:
            raise ZeroDivisionError
        return "all of it"

    worker.submit(lambda *_: None, begin.wait)
    first = worker.call(long, 3, owner="much")
    broken = worker.call(long, 0, owner="much")
    last = worker.call(ran.append, "last", owner="much")
    others = [worker.call(ran.append, "other", owner="little") for _ in range(2)]
    begin.set()
    assert await first == "all of it"
    with pytest.raises(ZeroDivisionError):
        await broken
    await asyncio.gather(last, *others)
    assert ran == [0, "other", 1, "other", 2, "last"]
    assert at_once(long(2)) == "all of it"
    worker.close()


async def test_all_jobs_are_done_before_a_worker_ends() -> None:
    worker = Worker("test", Mailbox(asyncio.get_running_loop()))
    ran: list[int] = []
    for number in range(100):
        worker.submit(lambda *_: None, ran.append, number, owner=number % 3)
    await asyncio.to_thread(worker.close)
    assert sorted(ran) == list(range(100))
