"""Go's DRPC library judges ours: its client calls our broker, its server answers our client."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.until import until
from tests.integration.running_broker import RunningBroker
from tests.interop.test_go_client import (
    HEADERS,
    MOMENT,
    PARTITIONS,
    Content,
    as_json,
    content_of,
    contents,
    error_of,
    read,
    run,
)

from millrace.client import SyncAdmin
from millrace.proto.v1 import common_pb2, fetch_pb2, produce_pb2
from millrace.runtime.transport.calls import CallError, ServerCall, Status
from millrace.runtime.transport.drpc import client
from millrace.runtime.transport.drpc.client import DrpcConnection
from millrace.runtime.transport.drpc.connector import Connector
from millrace.runtime.transport.drpc.server import DrpcServer
from millrace.runtime.transport.framed_connection import ConnectionLimits
from millrace.runtime.transport.served_connections import ServerLimits

MESSAGE_BYTES_MAX = 8 << 20
FIVE_MIB = 5 << 20
SECONDS_MAX = 30
SIGNS_OF_LIFE_MIN = 50

HELLO = "/millrace.proto.v1.Cluster/Hello"
PRODUCE = "/millrace.proto.v1.Produce/Produce"
FETCH = "/millrace.proto.v1.Fetch/Fetch"
LIST_OFFSETS = "/millrace.proto.v1.Fetch/ListOffsets"


def to(broker: RunningBroker, *more: str) -> tuple[str, ...]:
    """Return arguments of the client by which it calls a broker by DRPC."""
    return ("-drpc", "-bootstrap", broker.drpc_address, *more)


# --- Go's client, our broker ---------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_go_reads_by_drpc_what_it_wrote_by_drpc_and_python_reads_the_same(
    go_client: Path, shared_broker: RunningBroker, topic_name: str, codec: str
) -> None:
    about = to(shared_broker, "-topic", topic_name)
    run(go_client, *about, "-partitions", str(PARTITIONS), "create")
    written = contents()
    said = run(
        go_client, *about, "-codec", codec, "-batch", "70", "-times", "2", "write",
        data=as_json(written),
    )  # fmt: skip
    assert sum(batch["count"] for batch in said) == len(written)
    expected = read(shared_broker.address, topic_name, len(written))
    assert sorted(expected.values(), key=repr) == sorted(written, key=repr)
    # Credit for a few batches: most of them come because it was granted again.
    lines = run(go_client, *about, "-credit", "20000", "read")
    assert {(line["partition"], line["offset"]): content_of(line) for line in lines} == expected


def test_requests_of_gos_stream_are_appended_in_the_order_in_which_they_were_sent(
    go_client: Path, shared_broker: RunningBroker, topic_name: str
) -> None:
    about = to(shared_broker, "-topic", topic_name)
    run(go_client, *about, "create")
    written: list[Content] = [(MOMENT, b"%d" % row, b"v", HEADERS[0]) for row in range(200)]
    answers = run(go_client, *about, "pipeline", data=as_json(written))
    assert sorted((answer["request"], answer["base_offset"]) for answer in answers) == [
        (row + 1, row) for row in range(len(written))
    ]
    found = read(shared_broker.address, topic_name, len(written))
    assert [found[0, row] for row in range(len(written))] == written


def test_a_message_of_five_mib_comes_from_go_in_many_frames_and_goes_back_in_one(
    go_client: Path, shared_broker: RunningBroker, topic_name: str
) -> None:
    with SyncAdmin(shared_broker.address) as admin:
        admin.create_topic(topic_name, config={"max.message.bytes": str(6 << 20)})
    about = to(shared_broker, "-topic", topic_name)
    large: Content = (MOMENT, None, bytes(range(256)) * (FIVE_MIB // 256), [])
    run(go_client, *about, "write", data=as_json([large]))
    lines = run(go_client, *about, "-credit", str(FIVE_MIB + 1000), "read")
    assert [content_of(line) for line in lines] == [large]


def test_refusals_of_a_topic_come_in_the_answers_as_over_grpc(
    go_client: Path, shared_broker: RunningBroker, topic_name: str
) -> None:
    about = to(shared_broker, "-topic", topic_name)
    unknown = error_of(run(go_client, *about, "read"))
    assert unknown["code"] == "ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION"
    run(go_client, *about, "create")
    too_large: Content = (MOMENT, None, b"x" * 2_000_000, [])
    refused = error_of(run(go_client, *about, "write", data=as_json([too_large])))
    assert refused["code"] == "ERROR_CODE_MESSAGE_TOO_LARGE"
    assert refused["appended"] == "APPENDED_NO"


def test_gos_calls_follow_one_another_on_a_connection_also_those_that_fail(
    go_client: Path, shared_broker: RunningBroker
) -> None:
    steps = run(go_client, "-bootstrap", shared_broker.drpc_address, "calls")
    assert [(step["call"], step["status"]) for step in steps] == [
        ("hello", "OK"),
        ("a refused call", "InvalidArgument"),
        ("a refused stream", "InvalidArgument"),
        ("a method of brokers", "Unimplemented"),
        ("a stream without a message", "OK"),
        ("a stream that is closed", "OK"),
        ("hello again", "OK"),
    ]
    assert not any(step["is_closed"] for step in steps)
    assert "visible ASCII characters, without spaces" in steps[1]["message"]
    assert "unknown rpc" in steps[3]["message"]


def test_a_stream_that_go_gives_up_softly_leaves_its_connection(
    go_client: Path, shared_broker: RunningBroker
) -> None:
    given_up, hello = run(go_client, "-bootstrap", shared_broker.drpc_address, "-soft", "give-up")
    assert given_up["status"] == "Canceled"
    assert (hello["status"], hello["is_closed"]) == ("OK", False)


def test_a_stream_that_go_gives_up_hard_takes_its_connection_with_it(
    go_client: Path, shared_broker: RunningBroker
) -> None:
    given_up, hello = run(go_client, "-bootstrap", shared_broker.drpc_address, "give-up")
    assert (given_up["status"], given_up["is_closed"]) == ("Canceled", True)
    assert hello["status"] != "OK"
    assert run(go_client, *to(shared_broker), "hello")


def test_the_broker_knows_who_calls_by_drpc(go_client: Path, shared_broker: RunningBroker) -> None:
    name = "of-go-by-drpc"
    run(go_client, *to(shared_broker, "-topic", name, "-client-id", name), "create")
    said = map(json.loads, shared_broker.log_path.read_text().splitlines())
    (line,) = (entry for entry in said if entry.get("entries") == name)
    assert (line["request"], line["client_id"]) == ("create_topics", name)
    assert line["software"] == "millrace-go-test"


# --- Keep-alive and drain, which are Millrace's own -----------------------------------------------


async def offsets(call: ServerCall) -> None:
    """Answer as the server in Go does: after the time that the request allows."""
    request = fetch_pb2.ListOffsetsRequest.FromString(bytes(await call.read() or b""))
    await asyncio.sleep(request.max_wait_ms / 1000)
    answer = fetch_pb2.ListOffsetsResponse(offsets=[{"offset": request.max_wait_ms}])
    await call.write(answer.SerializeToString())


@asynccontextmanager
async def serving(keepalive_ms: int) -> AsyncIterator[tuple[DrpcServer, str]]:
    """A server of ours that answers `offsets`, and its address."""
    server = DrpcServer(
        ServerLimits(
            connection=limits(keepalive_ms),
            connections_max=10,
            connections_per_host_max=10,
            received_bytes_max=4 << 20,
            silence_ms_max=10_000,
            idle_ms_max=-1,
            age_ms_max=-1,
            message_ms_max=10_000,
        ),
        status_of=lambda _: Status.UNAVAILABLE,
        on_failure=_fail,
        on_ended=lambda _, reason: pytest.fail(reason),
    )
    server.methods[LIST_OFFSETS] = offsets
    address = f"127.0.0.1:{server.bind('127.0.0.1:0')}"
    await server.serve()
    watching = asyncio.create_task(server.watch())
    try:
        yield server, address
    finally:
        watching.cancel()
        await server.stop(0)


def _fail(error: BaseException) -> None:
    raise error


def limits(keepalive_ms: int) -> ConnectionLimits:
    return ConnectionLimits(
        message_bytes_max=MESSAGE_BYTES_MAX, keepalive_ms=keepalive_ms, dead_after_ms=5000
    )


async def run_async(go_client: Path, *arguments: str) -> list[Any]:
    """Run the client beside the server of this process; return what it said."""
    return await asyncio.to_thread(run, go_client, *arguments)


async def test_keep_alive_packets_disturb_neither_a_call_of_go_nor_the_time_between_two(
    go_client: Path,
) -> None:
    async with serving(keepalive_ms=5) as (server, address):
        about = ("-bootstrap", address, "-wait", "200ms", "-times", "3")
        running = asyncio.create_task(run_async(go_client, *about, "wait"))
        await until(lambda: server.connections)
        (connection,) = server.connections
        said = await running
        assert connection._sent_packets > SIGNS_OF_LIFE_MIN
    assert said == [{"offset": 200}, {"offset": 200}, {"offset": 200}, {"is_closed": False}]


async def test_go_gets_its_answer_from_a_connection_that_is_drained(go_client: Path) -> None:
    async with serving(keepalive_ms=0) as (server, address):
        about = ("-bootstrap", address, "-wait", "500ms", "-times", "1")
        running = asyncio.create_task(run_async(go_client, *about, "wait"))
        await until(lambda: any(connection.call for connection in server.connections))
        server.stop_accepting()
        assert await running == [{"offset": 500}, {"is_closed": True}]


async def test_keep_alive_packets_of_our_client_do_not_disturb_gos_server(go_server: str) -> None:
    connection = await connect(go_server, keepalive_ms=5)
    request = fetch_pb2.ListOffsetsRequest(max_wait_ms=200).SerializeToString()
    for _ in range(3):
        answer = await client.call(connection, LIST_OFFSETS, request, {})
        assert fetch_pb2.ListOffsetsResponse.FromString(answer).offsets[0].offset == 200
        await asyncio.sleep(0.1)
    assert connection._sent_packets > SIGNS_OF_LIFE_MIN
    connection.close()


# --- Go's server, our client ---------------------------------------------------------------------


def connector(keepalive_ms: int = 0) -> Connector:
    return Connector(limits(keepalive_ms), received_bytes_max=16 << 20, client_id="of-python")


async def hello(connection: DrpcConnection, metadata: Any) -> None:
    """Greet a server; it has to be the one in Go."""
    answer = await client.call(connection, HELLO, b"", metadata)
    assert common_pb2.HelloResponse.FromString(answer).cluster_id == "go"


async def connect(address: str, keepalive_ms: int = 0) -> DrpcConnection:
    connection = await connector(keepalive_ms).connect(address, hello)
    assert connection is not None
    return connection


def produce(number: int, size: int = 0, timeout_ms: int = 0) -> bytes:
    request = produce_pb2.ProduceRequest(
        header={"correlation_id": number, "request_timeout_ms": timeout_ms}, batches=bytes(size)
    )
    return request.SerializeToString()


async def test_gos_server_knows_who_calls(go_server: str) -> None:
    connecting = connector()
    connection = await connecting.connect(go_server)
    assert connection is not None
    answer = await client.call(connection, HELLO, b"", connecting.metadata_for(""))
    said = common_pb2.HelloResponse.FromString(answer)
    assert said.broker_name == "of-python"
    assert said.software_version.startswith("millrace-python/")
    connection.close()


async def test_an_error_of_gos_server_has_its_code_and_leaves_the_connection(
    go_server: str,
) -> None:
    connection = await connect(go_server)
    other = common_pb2.HelloRequest(cluster_id="another").SerializeToString()
    for _ in range(2):
        with pytest.raises(CallError, match="this is go, not another") as failed:
            await client.call(connection, HELLO, other, {})
        assert failed.value.status is Status.FAILED_PRECONDITION
        assert failed.value.refusal is None
    with pytest.raises(CallError, match="unknown rpc"):
        await client.call(connection, "/millrace.proto.v1.Cluster/Unknown", b"", {})
    await hello(connection, {})
    connection.close()


async def test_a_stream_goes_both_ways_with_several_requests_under_way(go_server: str) -> None:
    connection = await connect(go_server)
    stream = connection.stream(PRODUCE, {})
    sizes = [0, 1, 64 << 10, (64 << 10) + 1, FIVE_MIB]
    for number, size in enumerate(sizes):
        await stream.write(produce(number, size))
    await stream.end_writing()
    answers = []
    while (message := await stream.read()) is not None:
        (answer,) = produce_pb2.ProduceResponse.FromString(bytes(message)).answers
        answers.append((answer.correlation_id, answer.results[0].base_offset))
    assert answers == list(enumerate(sizes))
    await hello(connection, {})
    connection.close()


async def test_a_message_of_gos_frames_of_64_kib_is_put_together(go_server: str) -> None:
    connection = await connect(go_server)
    stream = connection.stream(FETCH, {})
    for size in (FIVE_MIB, 100, 0, 64 << 10):
        request = fetch_pb2.FetchRequest(credit_bytes=size)
        await stream.write(request.SerializeToString())
        message = bytes(await stream.read() or b"")
        batches = fetch_pb2.FetchResponse.FromString(message).batches
        assert batches == (bytes(range(251)) * (size // 251 + 1))[:size]
    await stream.end_writing()
    assert await stream.read() is None
    connection.close()


@pytest.mark.parametrize("timeout_ms", [1, 2], ids=["in order", "with an error"])
async def test_a_stream_that_gos_server_ends_early_takes_no_more_and_leaves_the_connection(
    go_server: str, timeout_ms: int
) -> None:
    connection = await connect(go_server)
    stream = connection.stream(PRODUCE, {})
    await stream.write(produce(1))
    assert await stream.read() is not None
    await stream.write(produce(2, timeout_ms=timeout_ms))
    if timeout_ms == 1:
        assert await stream.read() is None
    else:
        with pytest.raises(CallError, match="there is no room") as failed:
            await stream.read()
        assert failed.value.status is Status.RESOURCE_EXHAUSTED
    with pytest.raises(CallError):
        await stream.write(produce(3))
    await hello(connection, {})
    connection.close()


async def test_a_call_that_is_given_up_ends_at_gos_server_and_the_next_connection_serves(
    go_server: str,
) -> None:
    connection = await connect(go_server)
    request = fetch_pb2.ListOffsetsRequest(max_wait_ms=1000 * SECONDS_MAX).SerializeToString()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await client.call(connection, LIST_OFFSETS, request, {})
    assert connection.is_closed
    again = await connect(go_server)
    again.close()
