"""Forwards connections from a port of this machine's loopback into a network namespace.

    python -m e2e.cluster.relay NAMESPACE PORT PORT_FILE

forwards them to PORT of the namespace's own loopback. It writes its own port to PORT_FILE, and
reuses the port that is in the file, if it is free.
"""

import asyncio
import contextlib
import ctypes
import os
import socket
import sys
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_CHUNK_BYTES = 1 << 16


def _listen(wanted: int) -> socket.socket:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with contextlib.suppress(OSError):
        listening.bind(("127.0.0.1", wanted))
    listening.listen(128)  # Binds it to a free port, if it is not bound.
    return listening


def _enter(namespace: str) -> None:
    """Create all later sockets in a network namespace; existing ones stay."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/run/netns", namespace).open() as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()


async def _serve(listening: socket.socket, port: int) -> None:
    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.closing(to_writer):
                await asyncio.gather(_pass(reader, to_writer), _pass(to_reader, writer))

    server = await asyncio.start_server(relay, sock=listening)
    await server.serve_forever()


def main() -> None:
    """Serve until killed."""
    namespace, port, port_file = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    listening = _listen(int(port_file.read_text()) if port_file.exists() else 0)
    _enter(namespace)
    port_file.write_text(str(listening.getsockname()[1]))
    asyncio.run(_serve(listening, port))


if __name__ == "__main__":
    main()
