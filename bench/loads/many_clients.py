"""Many clients in one process, each with connections of its own, sending single records at a rate.

Every client sends a record when it is due, waits for its acknowledgement, and then for the next due
time; the clients start at different moments. A latency runs from the due time to the
acknowledgement, so it includes the wait for the client's previous record. At the end the process
counts its connections. Ways: `millrace`, and `frames`, an echo over one bare DRPC stream for each
client (`bench.peers.drpc_frames`): the cost of the wire itself.

`settings`: `clients`, how many; the load's `rate` is that of each client.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from bench.loads.paced import WARM_UP_S
from bench.loads.spec import Load, Moved, run_from_command_line
from bench.peers.drpc_frames import SERVICE, FrameError, Kind, open_call
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


async def _frames(load: Load, stack: AsyncExitStack) -> Send:
    answers: asyncio.Queue[Kind] = asyncio.Queue()
    connection = await open_call(
        load.address,
        f"/{SERVICE}/echo",
        received=lambda _, kind, body: answers.put_nowait(kind),
        lost=lambda: answers.put_nowait(Kind.CLOSE),
    )
    stack.callback(connection.transport.abort)

    async def send() -> None:
        connection.send(RECORD)
        if await answers.get() is not Kind.MESSAGE:
            raise FrameError("the server has ended the call")

    return send


WAYS = {"millrace": _millrace, "frames": _frames}

if __name__ == "__main__":
    run_from_command_line(run)
