"""From threads to the loop: every message arrives, in order, with few wake-ups."""

import asyncio
import threading

import pytest

from millrace.runtime.mailbox import Mailbox, Worker


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
