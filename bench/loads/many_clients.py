"""Many clients in one process, each with a connection of its own, sending single records at a rate.

Every client sends a record when it is due, waits for its acknowledgement, and then for the next due
time; the clients start at different moments. A latency runs from the due time to the
acknowledgement, so it includes the wait for the client's previous record. At the end the process
counts its connections. Ways: `millrace`, and
`grpc`, an empty echo over one gRPC stream for each client (`bench.peers.grpc_stream`): the cost of
the wire itself.

`settings`: `clients`, how many; the load's `rate` is that of each client.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import grpc
from bench.loads.paced import WARM_UP_S
from bench.loads.spec import Load, Moved, run_from_command_line
from bench.peers.grpc_stream import BASE_OPTIONS, SERVICE
from bench.processes import connections

from millrace.client import Producer

RECORD = b"x" * 100
CONNECT_AT_ONCE = 20

Send = Callable[[], Awaitable[object]]


def run(load: Load) -> Moved:
    """Let all clients send for the load's time."""
    return asyncio.run(_run(load))


async def _run(load: Load) -> Moved:
    count = load.settings["clients"]
    connect = WAYS[load.way]
    interval = 1 / load.rate
    latencies: list[float] = []
    async with AsyncExitStack() as stack:
        few = asyncio.Semaphore(CONNECT_AT_ONCE)

        async def connected() -> Send:
            async with few:
                send = await connect(load, stack)
                await send()
                return send

        senders = await asyncio.gather(*(connected() for _ in range(count)))
        started = time.monotonic() + 0.1
        measured_from = started + WARM_UP_S
        ends = measured_from + load.seconds

        async def client(number: int, send: Send) -> None:
            due = started + interval * number / count
            while due < ends:
                await asyncio.sleep(due - time.monotonic())
                await send()
                if due >= measured_from:
                    latencies.append((time.monotonic() - due) * 1000)
                due += interval

        await asyncio.gather(*(client(number, send) for number, send in enumerate(senders)))
        held = connections(os.getpid())
    return Moved(
        records=len(latencies),
        bytes=len(latencies) * len(RECORD),
        seconds=load.seconds,
        detail={
            "latencies_ms": [round(latency, 3) for latency in latencies],
            "connections": held,
        },
    )


async def _millrace(load: Load, stack: AsyncExitStack) -> Send:
    producer = await stack.enter_async_context(Producer(load.address, linger_ms=0))

    async def send() -> object:
        return await producer.send(load.topic, RECORD)

    return send


async def _grpc(load: Load, stack: AsyncExitStack) -> Send:
    channel = await stack.enter_async_context(
        grpc.aio.insecure_channel(load.address, options=BASE_OPTIONS)
    )
    call: Any = channel.stream_stream(f"/{SERVICE}/echo")()
    stack.callback(call.cancel)

    async def send() -> object:
        await call.write(RECORD)
        return await call.read()

    return send


WAYS = {"millrace": _millrace, "grpc": _grpc}

if __name__ == "__main__":
    run_from_command_line(run)
