"""Calls of clients whose quota limits the time of their requests."""

import asyncio
import time
from dataclasses import replace
from typing import Any

from tests.fakes.call_context import CALLER, CallContext, serve_call
from tests.fakes.quotas import follow, no_quotas
from tests.fakes.until import until

from millrace.broker.guard.demands import KNOWN
from millrace.broker.quotas import Quotas
from millrace.broker.rpc.audit import AuditLog
from millrace.broker.rpc.calls import Calls
from millrace.broker.rpc.refusals import Refusals
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.broker_config import LimitsConfig
from millrace.core.callers import Caller
from millrace.core.errors import MalformedRequestError
from millrace.core.metadata.model import Listener
from millrace.core.quotas.quota import Quota, QuotaEntity, QuotaKind
from millrace.proto.v1.common_pb2 import HelloRequest, HelloResponse
from millrace.runtime.turns import Turns

PATH = "/test.Service/Hello"
WORK_MS = 20
BUSY = replace(CALLER, client_id="busy")


def handlers(quotas: Quotas) -> Any:
    async def hello(request: HelloRequest, _: Caller) -> HelloResponse:
        if request.cluster_id == "bad":
            raise MalformedRequestError("bad")
        until = time.thread_time() + WORK_MS / 1000
        while time.thread_time() < until:
            pass
        return HelloResponse(broker_id=7)

    refusals = Refusals(BrokerMetrics(), AuditLog(lines_max=100))
    calls = Calls(Listener.CLIENTS, LimitsConfig(), refusals, Turns(), quotas=quotas)
    return calls.methods("test.Service", unary={"Hello": (hello, HelloRequest, KNOWN)})


def percent(limit: int) -> Quota:
    return Quota(name="busy", entity=QuotaEntity(client_id="busy"), request_percent=limit)


def call(served: Any, client_id: str, request: HelloRequest | None = None) -> Any:
    context = CallContext(("millrace-client-id", client_id))
    message = (request or HelloRequest()).SerializeToString()
    return serve_call(served, PATH, context, message)


async def test_large_requests_of_one_quota_are_served_one_at_a_time_and_others_are_not() -> None:
    quotas = no_quotas()
    follow(quotas, percent(50))
    under_way = most = 0

    async def hello(_: HelloRequest, __: Caller) -> HelloResponse:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.01)
        under_way -= 1
        return HelloResponse(broker_id=7)

    refusals = Refusals(BrokerMetrics(), AuditLog(lines_max=100))
    calls = Calls(Listener.CLIENTS, LimitsConfig(), refusals, Turns(), quotas=quotas)
    served = calls.methods("test.Service", unary={"Hello": (hello, HelloRequest, KNOWN)})
    large = HelloRequest(cluster_id="x" * 20_000)
    await asyncio.gather(*(call(served, "busy", large) for _ in range(5)))
    assert most == 1
    await asyncio.gather(*(call(served, "free", large) for _ in range(5)))
    assert most == 5


async def test_large_requests_that_wait_for_a_quota_hold_so_many_bytes_and_others_are_served() -> (
    None
):
    quotas = no_quotas()
    follow(quotas, percent(1), replace(percent(1), name="n", entity=QuotaEntity(client_id="next")))
    limits = replace(LimitsConfig(), connection_request_memory_bytes_max=100_000)
    metrics = BrokerMetrics()
    refusals = Refusals(metrics, AuditLog(lines_max=100))
    calls = Calls(Listener.CLIENTS, limits, refusals, Turns(), quotas=quotas)

    async def hello(_: HelloRequest, __: Caller) -> HelloResponse:
        return HelloResponse(broker_id=7)

    served = calls.methods("test.Service", unary={"Hello": (hello, HelloRequest, KNOWN)})
    large = HelloRequest(cluster_id="x" * 20_000).SerializeToString()

    def context(client_id: str, peer: str = "ipv4:10.0.0.1:4711") -> CallContext:
        return CallContext(("millrace-client-id", client_id), peer=peer)

    def begun(contexts: list[CallContext]) -> list[asyncio.Task[Any]]:
        return [asyncio.create_task(serve_call(served, PATH, each, large)) for each in contexts]

    for client_id in ("busy", "next"):
        owing = quotas.throttle(
            QuotaKind.REQUEST, replace(CALLER, client_id=client_id), lambda: None
        )
        owing.charge_time(10_000_000_000)
        owing.close()
    several = [context("busy") for _ in range(5)]
    waiting = begun(several)
    await until(lambda: sum(task.done() for task in waiting) == 3)
    busy = [each for each in several if each.status is not None]
    assert len(busy) == 3, "half of the bytes, for one quota"
    assert all("limits.connection_request_memory_bytes_max" in each.details for each in busy)
    invented = context("next")
    await serve_call(served, PATH, invented, large)
    assert "limits.connection_request_memory_bytes_max" in invented.details, "from the same address"
    other = begun([context("next", "ipv4:10.0.0.2:4711")])
    await asyncio.sleep(0.05)
    assert not other[0].done(), "another quota has room"
    free = context("free")
    await serve_call(served, PATH, free, large)
    assert free.status is None, "who is under no quota waits for nothing"
    follow(quotas)
    answers = await asyncio.gather(*waiting, *other)
    assert sum(answer is not None for answer in answers) == 3
    assert not calls._large_calls.used
    assert not calls._large_calls._used_by


async def test_who_keeps_the_broker_busy_waits_before_the_next_call_and_nobody_else_does() -> None:
    quotas = no_quotas()
    follow(quotas, percent(20))
    served = handlers(quotas)
    assert HelloResponse.FromString(await call(served, "busy")).broker_id == 7
    (state,) = quotas.states()
    assert state.bucket.kind is QuotaKind.REQUEST
    assert state.limit == 200_000
    assert state.delay_ms > WORK_MS
    await call(served, "other")
    assert len(quotas.states()) == 1
    began = time.monotonic()
    follow(quotas, percent(20))  # The same again: nothing is forgotten.
    quotas.throttle(QuotaKind.REQUEST, BUSY, lambda: None).charge_time(WORK_MS * 1_000_000)
    await call(served, "busy")
    assert time.monotonic() - began > 3 * WORK_MS / 1000


async def test_a_call_waits_for_a_second_at_the_most_and_less_when_the_quota_is_gone() -> None:
    quotas = no_quotas()
    follow(quotas, percent(1))
    served = handlers(quotas)
    await call(served, "busy")
    began = time.monotonic()
    await call(served, "busy")
    assert 0.9 < time.monotonic() - began < 1.9
    waiting = asyncio.create_task(call(served, "busy"))
    await until(lambda: quotas._delayed)
    follow(quotas)
    began = time.monotonic()
    await waiting
    assert time.monotonic() - began < 0.9


async def test_a_refused_call_costs_its_time_too() -> None:
    quotas = no_quotas()
    follow(quotas, percent(20))
    await call(handlers(quotas), "busy", HelloRequest(cluster_id="bad"))
    (state,) = quotas.states()
    assert state.bucket.client_id == "busy"


async def test_a_client_pays_for_time_that_another_task_takes_for_its_call() -> None:
    quotas = no_quotas()
    refusals = Refusals(BrokerMetrics(), AuditLog(lines_max=100))
    calls = Calls(Listener.CLIENTS, LimitsConfig(), refusals, Turns(), quotas=quotas)
    calls.charge(BUSY, WORK_MS * 1_000_000)
    assert not quotas.states()
    follow(quotas, percent(20))
    calls.charge(replace(CALLER, client_id="other"), WORK_MS * 1_000_000)
    calls.charge(BUSY, WORK_MS * 1_000_000)
    (state,) = quotas.states()
    assert state.delay_ms >= WORK_MS
