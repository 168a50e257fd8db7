"""Servers that only move bytes, each a process that lives for a block, and their clients' commands.

They are the ceilings: raw gRPC (`bench.peers.grpc_stream`), and bare DRPC frames
(`bench.peers.drpc_frames`), on request with TLS 1.3 on both sides.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.peers.drpc_frames import PLAIN
from bench.processes import LoadFailedError, start, stop

START_TIMEOUT_S = 20


@dataclass(frozen=True, kw_only=True)
class RawServer:
    """A running server.

    Attributes:
        client: the command of its client; direction, address, bytes of a message and seconds
            follow.
    """

    address: str
    pid: int
    client: Sequence[str]


@contextmanager
def running_grpc_server(directory: Path, kind: str, options: str) -> Iterator[RawServer]:
    """Start a sync or aio gRPC server, and stop it at the end of the block.

    Args:
        directory: for its log.
        kind: `sync` or `aio`.
        options: name of its channel options in `bench.peers.grpc_stream`; clients take the same.

    Raises:
        LoadFailedError: it did not start.
    """
    with _running(directory / f"grpc-{kind}.log", "grpc_stream", kind, options) as server:
        yield server


@contextmanager
def running_frames_server(directory: Path, *, with_tls: bool = False) -> Iterator[RawServer]:
    """Start a server of bare DRPC frames, and stop it at the end of the block.

    Args:
        directory: for its log and its certificate.
        with_tls: makes a certificate for server and clients.

    Raises:
        LoadFailedError: it did not start.
    """
    certificate = str(make_certificate(directory / "frames.pem")) if with_tls else PLAIN
    log = directory / f"frames-{'tls' if with_tls else PLAIN}.log"
    with _running(log, "drpc_frames", certificate) as server:
        yield server


def make_certificate(path: Path) -> Path:
    """Write a key and a certificate of 127.0.0.1 for a day; return the path.

    Raises:
        LoadFailedError: openssl is missing or failed.
    """
    key = path.with_suffix(".key")
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
        "-nodes", "-days", "1", "-subj", "/CN=bench", "-addext", "subjectAltName=IP:127.0.0.1",
        "-keyout", str(key), "-out", str(path),
    ]  # fmt: skip
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise LoadFailedError("openssl is missing, which makes a certificate") from error
    except subprocess.CalledProcessError as error:
        raise LoadFailedError(f"openssl made no certificate:\n{error.stderr}") from error
    path.write_text(path.read_text() + key.read_text())
    return path


@contextmanager
def _running(log: Path, module: str, *options: str) -> Iterator[RawServer]:
    log.unlink(missing_ok=True)
    program = [sys.executable, "-m", f"bench.peers.{module}"]
    process = start([*program, "server", *options], log)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (printed := log.read_text(errors="replace")).endswith("\n"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise LoadFailedError(f"{log.stem} did not start:\n{printed}")
            time.sleep(0.02)
        port = int(printed.splitlines()[-1])
        yield RawServer(
            address=f"127.0.0.1:{port}", pid=process.pid, client=[*program, "client", *options]
        )
    finally:
        stop(process)
