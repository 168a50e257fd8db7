"""Records the bytes that docs/protocol.md explains, from a real broker.

    python -m tests.interop.drpc_capture

replaces those of the page. Three calls on one connection: Hello, a record that is written, and a
call that is refused.
"""

import socket
import tempfile
from contextlib import suppress
from pathlib import Path

from docs.generate import PROTOCOL
from docs.protocol_page import Chunk, with_bytes
from tests.integration.running_broker import RunningBroker
from tests.interop import drpc_client
from tests.interop.drpc_client import CLOSE_SEND, INVOKE, MESSAGE, METADATA, Connection

from millrace.proto.v1.drpc_pb2 import CallMetadata

SECONDS_MAX = 20
_CLOSE_SEND_BYTES = 4


class Recording(socket.socket):
    """A socket that remembers what goes over it."""

    def __init__(self, to: socket.socket) -> None:
        super().__init__(fileno=to.detach())
        self.settimeout(SECONDS_MAX)
        self.chunks: list[Chunk] = []

    def sendall(self, data: bytes, flags: int = 0, /) -> None:  # type: ignore[override]
        super().sendall(data, flags)
        self.chunks.append((">", data))

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        data = super().recv(size, flags)
        self.chunks.append(("<", data))
        return data


def capture(broker: RunningBroker, topic_id: bytes) -> list[Chunk]:
    """Return the bytes of a connection to a broker, in the order in which they came."""
    host, _, port = broker.drpc_address.rpartition(":")
    with Recording(socket.create_connection((host, int(port)), timeout=SECONDS_MAX)) as to:
        connection = Connection(to)
        drpc_client.hello(connection)
        connection.read(_CLOSE_SEND_BYTES)
        drpc_client.write(connection, topic_id, b"hello")
        connection.send(CLOSE_SEND)
        connection.read(_CLOSE_SEND_BYTES)
        connection.stream, connection.message = connection.stream + 1, 0
        stranger = CallMetadata(entries={"millrace-client-id": "two words"})
        connection.send(METADATA, stranger.SerializeToString())
        connection.send(INVOKE, b"/millrace.proto.v1.Cluster/Hello")
        connection.send(MESSAGE)
        connection.send(CLOSE_SEND)
        with suppress(RuntimeError):
            connection.receive()
        return to.chunks


def main() -> None:
    """Replace the bytes of the page."""
    with tempfile.TemporaryDirectory() as folder, RunningBroker(Path(folder)) as broker:
        chunks = capture(broker, broker.create_topic("flights").topic_id)
    PROTOCOL.write_text(with_bytes(PROTOCOL.read_text(), chunks))


if __name__ == "__main__":
    main()
