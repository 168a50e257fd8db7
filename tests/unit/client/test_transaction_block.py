"""What becomes of a transaction whose block is left."""

from collections.abc import Iterator
from typing import Any, cast

import pytest

from millrace.client._producer.record_sink import RecordSink
from millrace.client._producer.transaction_block import Transaction
from millrace.client._sync.loop_thread import LoopThread
from millrace.client._sync.transaction import SyncTransaction


class Transactions:
    """Implements `Transactions` of a producer; notes what is asked of it."""

    def __init__(self) -> None:
        self.done: list[str] = []

    async def begin(self, _: object) -> None:
        self.done.append("begin")

    async def commit(self) -> None:
        self.done.append("commit")

    async def abort(self) -> None:
        self.done.append("abort")

    async def give_up(self) -> None:
        self.done.append("give up")


def block(transactions: Transactions) -> SyncTransaction:
    sink = cast("RecordSink", None)
    inner = Transaction(sink, cast("Any", transactions), None)
    return SyncTransaction(sink, LoopThread.shared(), inner)


def generated(transactions: Transactions, *, aborts: bool = False) -> Iterator[int]:
    """Yield within a block."""
    with block(transactions) as t:
        if aborts:
            t.abort()
        yield from range(3)


def test_a_block_that_ends_commits() -> None:
    transactions = Transactions()
    assert list(generated(transactions)) == [0, 1, 2]
    assert transactions.done == ["begin", "commit"]


def test_a_block_that_fails_aborts() -> None:
    transactions = Transactions()
    with pytest.raises(KeyError), block(transactions):
        raise KeyError("broken")
    assert transactions.done == ["begin", "give up"]


def test_a_generator_that_is_left_within_the_block_aborts() -> None:
    """Otherwise readers would wait for the time-out, and the producer could begin no other one."""
    transactions = Transactions()
    reading = generated(transactions)
    next(reading)
    cast("Any", reading).close()
    assert transactions.done == ["begin", "give up"]


def test_a_generator_that_is_left_after_its_own_abort_aborts_nothing_more() -> None:
    transactions = Transactions()
    reading = generated(transactions, aborts=True)
    next(reading)
    cast("Any", reading).close()
    assert transactions.done == ["begin", "abort"]
