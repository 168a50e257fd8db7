"""A producer's request that waits for one append."""

import asyncio

from millrace.core.replica.replication.appends import Waiter


class Sender:
    """The owner of one append; its `done` has the outcome."""

    def __init__(self) -> None:
        self.done: asyncio.Future[Waiter] = asyncio.get_running_loop().create_future()

    def on_append_done(self, waiter: Waiter) -> None:
        self.done.set_result(waiter)
