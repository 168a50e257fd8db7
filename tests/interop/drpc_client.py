"""A client by DRPC from sockets, what is generated from the .proto files, and docs/protocol.md."""

import socket
import time

from tests.interop.batch_by_hand import seal, value_of

from millrace.proto.v1 import common_pb2, drpc_pb2, fetch_pb2, produce_pb2

INVOKE, MESSAGE, ERROR, CLOSE_SEND, METADATA = 1, 2, 3, 6, 7
CALLER = drpc_pb2.CallMetadata(entries={"millrace-client-id": "by-hand"}).SerializeToString()


class Connection:
    """Carries one call at a time: the next one ends the one before."""

    def __init__(self, to: socket.socket) -> None:
        self.socket, self.stream, self.message = to, 0, 0

    def begin(self, method: str, request: bytes) -> None:
        self.stream, self.message = self.stream + 1, 0
        self.send(METADATA, CALLER)
        self.send(INVOKE, f"/millrace.proto.v1.{method}".encode())
        self.send(MESSAGE, request)

    def send(self, kind: int, body: bytes = b"") -> None:
        self.message += 1
        ids = varint(self.stream) + varint(self.message) + varint(len(body))
        self.socket.sendall(bytes([kind << 1 | 1]) + ids + body)

    def receive(self) -> bytes:
        body = b""
        while True:
            control, stream, _, size = self.read(1)[0], self.number(), self.number(), self.number()
            body += self.read(size)
            if control & 1:  # The last frame of a packet. Other kinds and streams are ignored.
                kind, packet, body = control >> 1 & 63, body, b""
                if stream == self.stream and kind == MESSAGE:
                    return packet
                if stream == self.stream and kind == ERROR:
                    raise RuntimeError(f"status {packet[7]}: {packet[8:].decode()}")

    def call(self, method: str, request: bytes = b"") -> bytes:
        self.begin(method, request)
        self.send(CLOSE_SEND)
        return self.receive()

    def number(self) -> int:
        byte = self.read(1)[0]
        return byte if byte < 128 else byte - 128 + (self.number() << 7)

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionError("the broker closed the connection")
            data += part
        return data


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def hello(connection: Connection) -> common_pb2.HelloResponse:
    return common_pb2.HelloResponse.FromString(connection.call("Cluster/Hello"))


def write(connection: Connection, topic_id: bytes, value: bytes) -> int:
    """Append a record to partition 0; return its offset."""
    batch = seal(topic_id, value, time.time_ns() // 1_000_000)
    about = {"topic_id": topic_id, "leader_epoch": -1, "length": len(batch)}
    header = {"acks": -1, "correlation_id": 1, "request_timeout_ms": 10_000, "partitions": [about]}
    request = produce_pb2.ProduceRequest(header=header, batches=batch)
    connection.begin("Produce/Produce", request.SerializeToString())
    (answer,) = produce_pb2.ProduceResponse.FromString(connection.receive()).answers
    return answer.results[0].base_offset


def read(connection: Connection, topic_id: bytes, offset: int) -> bytes:
    """Return the value of a record, the only one of its batch."""
    about = {"topic_id": topic_id, "fetch_offset": offset, "current_leader_epoch": -1}
    settings = {"min_bytes": 1, "max_wait_ms": 500}
    request = fetch_pb2.FetchRequest(
        partitions=[about | {"last_fetched_epoch": -1}], settings=settings, credit_bytes=1 << 20
    )
    connection.begin("Fetch/Fetch", request.SerializeToString())
    return value_of(fetch_pb2.FetchResponse.FromString(connection.receive()).batches)
