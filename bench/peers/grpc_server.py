"""The raw gRPC server as a process that lives for a block."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.processes import LoadFailedError, start, stop

START_TIMEOUT_S = 20


@dataclass(frozen=True, kw_only=True)
class GrpcServer:
    """A running server."""

    address: str
    pid: int
    options: str
    """Name of its channel options in `bench.peers.grpc_stream`; clients take the same."""


@contextmanager
def running_grpc_server(directory: Path, kind: str, options: str) -> Iterator[GrpcServer]:
    """Start a sync or aio server, and stop it at the end of the block.

    Raises:
        LoadFailedError: it did not start.
    """
    log = directory / f"grpc-{kind}.log"
    log.unlink(missing_ok=True)
    command = [sys.executable, "-m", "bench.peers.grpc_stream", "server", kind, options]
    process = start(command, log)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (printed := log.read_text(errors="replace")).endswith("\n"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise LoadFailedError(f"the gRPC server did not start:\n{printed}")
            time.sleep(0.02)
        port = int(printed.splitlines()[-1])
        yield GrpcServer(address=f"127.0.0.1:{port}", pid=process.pid, options=options)
    finally:
        stop(process)
