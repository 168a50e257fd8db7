"""Raw gRPC streaming in Python: the ceiling for a broker in Python over this wire.

`python -m bench.peers.grpc_stream server KIND OPTIONS` first prints its port, and serves until it
is ended; `... client KIND OPTIONS DIRECTION ADDRESS SIZE SECONDS` moves messages of SIZE bytes in
one direction for SECONDS and prints one JSON line. KIND is sync or aio, DIRECTION produce (client
to server, one answer at the end) or fetch. Messages are random bytes that neither side reads: no
protobuf, no checksum, no file.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent import futures
from typing import Any

import grpc

SERVICE = "bench.Stream"
SYNC_THREADS = 4
BASE_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
]
MIB = 1 << 20
OPTIONS: dict[str, list[tuple[str, Any]]] = {
    "default": [],
    "frames": [("grpc.http2.max_frame_size", 4 * MIB)],
    "lookahead": [
        ("grpc.http2.max_frame_size", 4 * MIB),
        ("grpc.http2.lookahead_bytes", 8 * MIB),
    ],
    "reads": [
        ("grpc.http2.max_frame_size", 4 * MIB),
        ("grpc.http2.lookahead_bytes", 8 * MIB),
        ("grpc.experimental.tcp_min_read_chunk_size", MIB // 4),
        ("grpc.experimental.tcp_read_chunk_size", MIB),
        ("grpc.experimental.tcp_max_read_chunk_size", 4 * MIB),
    ],
    "reads_no_probe": [
        ("grpc.http2.max_frame_size", 4 * MIB),
        ("grpc.http2.lookahead_bytes", 8 * MIB),
        ("grpc.experimental.tcp_min_read_chunk_size", MIB // 4),
        ("grpc.experimental.tcp_read_chunk_size", MIB),
        ("grpc.experimental.tcp_max_read_chunk_size", 4 * MIB),
        ("grpc.http2.bdp_probe", 0),
    ],
    "throughput": [
        ("grpc.optimization_target", "throughput"),
        ("grpc.http2.max_frame_size", MIB),
        ("grpc.http2.lookahead_bytes", 4 * MIB),
    ],
}


def main(arguments: list[str]) -> None:
    """Run the role that the command line names."""
    role, kind, options, *rest = arguments
    chosen = BASE_OPTIONS + OPTIONS[options]
    if role == "server":
        _serve_aio(chosen) if kind == "aio" else _serve_sync(chosen)
        return
    direction, address, size, seconds = rest
    moved, elapsed = (
        asyncio.run(_move_aio(chosen, direction, address, int(size), float(seconds)))
        if kind == "aio"
        else _move_sync(chosen, direction, address, int(size), float(seconds))
    )
    print(json.dumps({"bytes": moved, "records": moved // int(size), "seconds": elapsed}))


def _serve_sync(options: list[tuple[str, Any]]) -> None:
    def produce(messages: Iterator[bytes], _: grpc.ServicerContext) -> Iterator[bytes]:
        yield str(sum(len(message) for message in messages)).encode()

    def fetch(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        message = os.urandom(int(next(requests)))
        while context.is_active():
            yield message

    server = grpc.server(futures.ThreadPoolExecutor(SYNC_THREADS), options=options)
    server.add_generic_rpc_handlers((_handlers(produce, fetch),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    server.wait_for_termination()


def _serve_aio(options: list[tuple[str, Any]]) -> None:
    async def produce(messages: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        moved = 0
        async for message in messages:
            moved += len(message)
        yield str(moved).encode()

    async def fetch(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        message = os.urandom(int(await anext(requests)))
        while True:
            yield message

    async def serve() -> None:
        server = grpc.aio.server(options=options)
        server.add_generic_rpc_handlers((_handlers(produce, fetch),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        print(port, flush=True)
        await server.wait_for_termination()

    asyncio.run(serve())


def _handlers(produce: Callable[..., Any], fetch: Callable[..., Any]) -> grpc.GenericRpcHandler:
    methods = {"produce": produce, "fetch": fetch}
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {name: grpc.stream_stream_rpc_method_handler(method) for name, method in methods.items()},
    )


def _move_sync(
    options: list[tuple[str, Any]], direction: str, address: str, size: int, seconds: float
) -> tuple[int, float]:
    with grpc.insecure_channel(address, options=options) as channel:
        call: Callable[..., Any] = channel.stream_stream(f"/{SERVICE}/{direction}")
        message = os.urandom(size)
        started = time.perf_counter()

        def messages() -> Iterator[bytes]:
            while time.perf_counter() - started < seconds:
                yield message

        if direction == "produce":
            moved = int(next(call(messages())))
        else:
            moved = 0
            stream = call(iter([str(size).encode()]))
            for received in stream:
                moved += len(received)
                if time.perf_counter() - started >= seconds:
                    break
            stream.cancel()
        return moved, time.perf_counter() - started


async def _move_aio(
    options: list[tuple[str, Any]], direction: str, address: str, size: int, seconds: float
) -> tuple[int, float]:
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        call: Any = channel.stream_stream(f"/{SERVICE}/{direction}")()
        message = os.urandom(size)
        started = time.perf_counter()
        if direction == "produce":
            while time.perf_counter() - started < seconds:
                await call.write(message)
            await call.done_writing()
            moved = int(await call.read())
        else:
            moved = 0
            await call.write(str(size).encode())
            while time.perf_counter() - started < seconds:
                moved += len(await call.read())
            call.cancel()
        return moved, time.perf_counter() - started


if __name__ == "__main__":
    main(sys.argv[1:])
