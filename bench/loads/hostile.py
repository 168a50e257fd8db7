"""Clients that send a broker what it refuses or has to wait for, by DRPC, without pause.

Ways:
    half_messages: connections that each send half a message of 1 MB, and keep silent.
    slow_bytes: connections that each send a byte of a message a second.
    empty_frames: a packet of empty frames that does not end, again and again.
    invokes: a new call every millisecond, while the one before is under way.
    garbage: connections that begin with random bytes.

`settings`: `drpc`, the broker's address for DRPC. A connection that the broker ends is made again.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import uvloop
from bench.loads.spec import Load, Moved, run_from_command_line

from millrace.core.addresses import split_address
from millrace.runtime.transport.drpc import wire
from millrace.runtime.transport.drpc.wire import Kind

WAYS = ("half_messages", "slow_bytes", "empty_frames", "invokes", "garbage")
CONNECTIONS = 200
MESSAGE_BYTES = 1_000_000
PAUSE_S = 0.01
"""Between two connections of the ways that the broker ends at once."""
_METHOD = b"/millrace.proto.v1.Fetch/Fetch"
_INVOKE = wire.frame_header(Kind.INVOKE, 1, 1, len(_METHOD)) + _METHOD
_EMPTY = bytes((Kind.MESSAGE << 1, 1, 2, 0)) * 10_000

Attack = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def _half_messages(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    header = wire.frame_header(Kind.MESSAGE, 1, 2, MESSAGE_BYTES)
    writer.write(_INVOKE + header + bytes(MESSAGE_BYTES // 2))
    await reader.read()


async def _slow_bytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(_INVOKE + wire.frame_header(Kind.MESSAGE, 1, 2, MESSAGE_BYTES))
    while not reader.at_eof():
        writer.write(b"x")
        await asyncio.sleep(1)


async def _empty_frames(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(_INVOKE + _EMPTY)
    await reader.read()


async def _invokes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    stream = 0
    while not reader.at_eof():
        stream += 1
        writer.write(wire.frame_header(Kind.INVOKE, stream, 1, len(_METHOD)) + _METHOD)
        await writer.drain()
        await asyncio.sleep(0.001)


async def _garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(random.randbytes(1000))
    await reader.read()


_ATTACKS: dict[str, tuple[Attack, int]] = {
    "half_messages": (_half_messages, CONNECTIONS),
    "slow_bytes": (_slow_bytes, CONNECTIONS),
    "empty_frames": (_empty_frames, 1),
    "invokes": (_invokes, 1),
    "garbage": (_garbage, 20),
}


def run(load: Load) -> Moved:
    """Attack for the load's time; the records are the connections that were made."""
    attack, connections = _ATTACKS[load.way]
    made = uvloop.run(_attack(load, attack, connections))
    return Moved(records=made, bytes=0, seconds=load.seconds)


async def _attack(load: Load, attack: Attack, connections: int) -> int:
    made = 0
    until = time.monotonic() + load.seconds
    connect = partial(asyncio.open_connection, *split_address(load.settings["drpc"]))

    async def go_on() -> None:
        nonlocal made
        while time.monotonic() < until:
            with suppress(OSError):
                reader, writer = await connect()
                made += 1
                try:
                    await attack(reader, writer)
                finally:
                    writer.transport.abort()
            await asyncio.sleep(PAUSE_S)

    tasks = [asyncio.create_task(go_on()) for _ in range(connections)]
    await asyncio.wait(tasks, timeout=load.seconds)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return made


if __name__ == "__main__":
    run_from_command_line(run)
