"""What needs the controller, where a broker has none: it is asked of others, and told as it is."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.fakes.broker import FakeBroker

from millrace.client import Admin, Producer
from millrace.core.errors import (
    Appended,
    AuthenticationFailedError,
    ConnectionFailedError,
    DeliveryTimedOutError,
    MillraceError,
    NotControllerError,
)

Run = Callable[[Coroutine[Any, Any, None]], None]

NONE = NotControllerError("there is no controller: the store is locked")


@asynccontextmanager
async def brokers(count: int) -> AsyncIterator[tuple[list[FakeBroker], str]]:
    """Run brokers; with where to find them, in their order."""
    running = [FakeBroker(number) for number in range(1, count + 1)]
    for broker in running:
        await broker.start()
    try:
        yield running, ",".join(broker.address for broker in running)
    finally:
        for broker in running:
            broker.controller_gate.set()
            await broker.stop()


async def test_another_broker_is_asked_and_the_connection_stays() -> None:
    async with brokers(2) as ((cut_off, there), addresses), Admin(addresses) as admin:
        cut_off.refusal = NONE
        connection = await admin._cluster.connection(cut_off.address)
        await admin.create_topic("orders")
        assert there.topics.keys() == {"orders"}
        assert cut_off.refused == 1
        assert not connection.is_given_up
        await admin.create_topic("payments")
        assert cut_off.refused == 1, "it was asked first again"


async def test_that_there_is_no_controller_is_told_when_the_time_is_over() -> None:
    async with brokers(3) as (running, addresses):
        for broker in running:
            broker.refusal = NONE
        async with Admin(addresses, request_timeout_ms=3000) as admin:
            began = time.monotonic()
            with pytest.raises(NotControllerError, match="the store is locked") as raised:
                await admin.create_topic("orders")
            assert 2.5 < time.monotonic() - began < 20
            assert raised.value.appended is Appended.NO
            assert all(broker.refused > 1 for broker in running)


async def test_what_may_have_been_done_once_is_not_said_to_be_undone() -> None:
    async with (
        brokers(1) as ((broker,), addresses),
        Admin(addresses, request_timeout_ms=3_000) as admin,  # For one more attempt, in any case.
    ):
        broker.refusal = NotControllerError("it broke", appended=Appended.MAYBE)
        creation = asyncio.create_task(admin.create_topic("orders"))
        await broker.until(lambda: broker.refused > 0)
        broker.refusal = NONE
        with pytest.raises(NotControllerError, match="locked") as raised:
            await creation
        assert raised.value.appended is Appended.MAYBE


async def test_all_brokers_together_have_the_time_of_one_call() -> None:
    async with brokers(6) as (running, addresses):
        for broker in running:
            broker.controller_gate.clear()
        async with Admin(addresses, request_timeout_ms=2_000) as admin:
            began = time.monotonic()
            with pytest.raises(ConnectionFailedError, match="did not answer in"):
                await admin.create_topic("orders")
            assert time.monotonic() - began < 10, "each had the time of one, 12 s together"


async def test_one_that_waits_while_others_refuse_may_have_done_it() -> None:
    async with brokers(2) as ((refuses, waits), addresses):
        refuses.refusal = NONE
        waits.controller_gate.clear()
        # Both are to be asked in this time.
        async with Admin(addresses, request_timeout_ms=2_000) as admin:
            with pytest.raises(NotControllerError) as raised:
                await admin.create_topic("orders")
            assert raised.value.appended is Appended.MAYBE


async def test_a_change_that_was_asked_for_and_not_answered_may_have_been_made() -> None:
    async with (
        brokers(1) as ((broker,), addresses),
        Admin(addresses, request_timeout_ms=2_000) as admin,  # It is to connect in this time.
    ):
        broker.lost_changes = 100
        with pytest.raises(ConnectionFailedError, match="the answer is lost") as raised:
            await admin.create_topic("orders")
        assert broker.topics.keys() == {"orders"}
        assert raised.value.appended is Appended.MAYBE
        broker.controller_gate.clear()
        with pytest.raises(ConnectionFailedError, match="no broker answered: ") as raised:
            await admin.create_topic("payments")
        assert raised.value.appended is Appended.MAYBE


async def test_what_nobody_was_asked_for_is_not_in_doubt() -> None:
    async with Admin("127.0.0.1:1") as admin:
        with pytest.raises(ConnectionFailedError, match="no broker can be reached") as raised:
            await admin.create_topic("orders")
        assert raised.value.appended is Appended.NO
    async with (
        brokers(1) as ((broker,), addresses),
        Admin(addresses, request_timeout_ms=2_000) as admin,  # Likewise.
    ):
        broker.metadata_gate.clear()
        with pytest.raises(ConnectionFailedError, match="no broker answered") as raised:
            await admin.describe_topic("orders")
        assert raised.value.appended is Appended.NO, "a look-up changes nothing"
        broker.metadata_gate.set()


async def test_after_a_change_that_was_not_answered_a_broken_connection_is_no_denial() -> None:
    async with brokers(1) as ((broker,), addresses):
        async with Admin(addresses, request_timeout_ms=2000) as admin:
            broker.refusal = NotControllerError("it broke", appended=Appended.MAYBE)
            creation = asyncio.create_task(admin.create_topic("orders"))
            await broker.until(lambda: broker.refused > 0)
            await broker.stop()
            with pytest.raises((ConnectionFailedError, NotControllerError)) as raised:
                await creation
            assert raised.value.appended is Appended.MAYBE
        await broker.start()


@pytest.mark.parametrize("is_silent", [False, True])
async def test_a_new_producer_gets_its_id_from_another_broker(is_silent: bool) -> None:
    async with brokers(2) as ((cut_off, _), addresses):
        cut_off.create_topic("orders")
        if is_silent:
            cut_off.controller_gate.clear()
        else:
            cut_off.refusal = NONE
        for _ in range(2):
            async with Producer(
                addresses, metadata_timeout_ms=300, delivery_timeout_ms=5_000
            ) as producer:
                await producer.send("orders", b"x")
        assert cut_off.log("orders").values() == [b"x", b"x"]


@pytest.mark.parametrize("refusal", [NONE, AuthenticationFailedError("the token has ended")])
async def test_a_producer_without_an_id_says_why_it_waits(refusal: MillraceError) -> None:
    async with brokers(1) as ((broker,), addresses):
        broker.create_topic("orders")
        broker.refusal = refusal
        async with Producer(addresses, delivery_timeout_ms=2_500) as producer:
            assert producer.producer_id_problem() is None
            sent = producer.send("orders", b"x")
            await broker.until(lambda: producer.producer_id_problem() == refusal.message)
            with pytest.raises(DeliveryTimedOutError, match=refusal.message) as raised:
                await sent
            assert raised.value.appended is Appended.NO
            broker.refusal = None
            await producer.send("orders", b"y")
            assert producer.producer_id_problem() is None
