"""Connections of Kafka's protocol over real sockets: order, bounds, and what is refused."""

import asyncio
import struct
import time
from itertools import pairwise
from typing import Any

import pytest
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataResponse,
)
from kafka.protocol.producer import ProduceResponse
from tests.fakes.kafka_ends import limits_with, request_frame, serving_kafka
from tests.fakes.until import until

from millrace.broker.kafka.requests import ApiKey, Encoded, Later, Request, Served
from millrace.broker.kafka.wire.errors import Code
from millrace.core.errors import NotLeaderError
from millrace.core.kafka_config import KafkaConfig
from millrace.runtime.clock import monotonic_now
from millrace.runtime.transport.served_connections import TOO_MANY_OF_HOST


async def answer(request: Request) -> Any:
    """Answer Metadata with the client's id."""
    return MetadataResponse(version=request.version, brokers=[], topics=[], cluster_id="c")


METADATA = {ApiKey.METADATA: Served(range(14), answer)}


class Slow:
    """Handlers whose answers come when the test says so."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.answers: list[asyncio.Future[Any]] = []

    async def later(self, request: Request) -> Later:
        self.begun.append(request.key)
        self.answers.append(asyncio.get_running_loop().create_future())
        return Later(self.answers[-1])

    async def wait(self, request: Request) -> Any:
        await (await self.later(request)).response
        return await answer(request)

    def served(self, **more: Any) -> dict[int, Served]:
        return {
            ApiKey.PRODUCE: Served(range(3, 12), self.later, is_raw=True, keeps_bytes=True, **more),
            ApiKey.METADATA: Served(range(14), self.wait),
        }


async def test_a_client_is_told_what_is_served_and_nothing_else() -> None:
    """K5."""
    served = {**METADATA, ApiKey.PRODUCE: Served(range(3, 12), answer, listed=range(12))}
    async with serving_kafka(served) as the:
        client = await the.connect()
        asked = ApiVersionsRequest(client_software_name="own", client_software_version="1.2")
        for version in range(5):
            found = await client.ask(ApiKey.API_VERSIONS, version, asked)
            assert found.error_code == 0
            assert [(key.api_key, key.min_version, key.max_version) for key in found.api_keys] == [
                (ApiKey.PRODUCE, 0, 11),
                (ApiKey.METADATA, 0, 13),
                (ApiKey.API_VERSIONS, 0, 4),
            ]


async def test_who_asks_for_a_later_version_of_api_versions_is_told_the_versions_of_it() -> None:
    async with serving_kafka(METADATA) as the:
        client = await the.connect()
        client.writer.write(request_frame(ApiKey.API_VERSIONS, 5, b"whatever", correlation_id=7))
        data = await client.frame()
        assert struct.unpack_from(">i", data) == (7,)
        found = ApiVersionsResponse.decode(data[4:], version=5)
        assert found.error_code == Code.UNSUPPORTED_VERSION
        assert [(key.api_key, key.max_version) for key in found.api_keys] == [(18, 4)]
        assert await client.ask(ApiKey.METADATA, 4)  # The connection goes on.


async def test_a_client_may_not_call_itself_whatever_it_likes() -> None:
    async with serving_kafka() as the:
        client = await the.connect()
        asked = ApiVersionsRequest(client_software_name="a\nb", client_software_version="1")
        found = await client.ask(ApiKey.API_VERSIONS, 3, asked)
        assert found.error_code == Code.INVALID_REQUEST


async def test_answers_come_in_the_order_of_requests() -> None:
    slow = Slow()
    async with serving_kafka(slow.served()) as the:
        client = await the.connect()
        numbers = [client.send(ApiKey.PRODUCE, 7, b"") for _ in range(3)]
        await until(lambda: len(slow.answers) == 3)
        for response in reversed(slow.answers):
            response.set_result(ProduceResponse(version=7, responses=[]))
        assert [(await client.answer())[0] for _ in numbers] == numbers


async def test_the_next_request_begins_when_the_one_before_is_answered() -> None:
    slow = Slow()
    async with serving_kafka(slow.served()) as the:
        client = await the.connect()
        client.send(ApiKey.METADATA, 4)
        client.send(ApiKey.PRODUCE, 7, b"")
        await until(lambda: slow.begun)
        await asyncio.sleep(0.02)
        assert slow.begun == [ApiKey.METADATA]
        slow.answers[0].set_result(None)
        await until(lambda: len(slow.begun) == 2)
        slow.answers[1].set_result(ProduceResponse(version=7, responses=[]))
        assert [(await client.answer())[0] for _ in range(2)] == [1, 2]


async def test_a_request_came_when_it_was_read_and_not_when_it_begins() -> None:
    async def note(request: Request) -> Any:
        waited_ms.append(monotonic_now() - request.arrived_ms)
        await asyncio.sleep(0.1)
        return await answer(request)

    waited_ms: list[int] = []
    async with serving_kafka({ApiKey.METADATA: Served(range(14), note)}) as the:
        client = await the.connect()
        client.writer.write(request_frame(ApiKey.METADATA, 4) * 2)
        for _ in range(2):
            await client.frame()
    assert waited_ms[1] >= 99


async def test_a_request_without_an_answer_does_not_hold_up_the_next_one() -> None:
    async def silent(_: Request) -> None:
        return None

    served = {**METADATA, ApiKey.PRODUCE: Served(range(3, 12), silent, is_raw=True)}
    async with serving_kafka(served) as the:
        client = await the.connect()
        client.send(ApiKey.PRODUCE, 7, b"")
        number = client.send(ApiKey.METADATA, 4)
        assert (await client.answer())[0] == number


async def test_of_a_million_pipelined_requests_few_are_taken_and_none_is_lost() -> None:
    slow = Slow()
    async with serving_kafka(slow.served(), kafka=KafkaConfig(requests_in_flight_max=5)) as the:
        client = await the.connect()
        frame = request_frame(ApiKey.METADATA, 4)
        client.writer.write(frame * 20_000)
        await until(lambda: slow.begun)
        connection: Any = next(iter(the.server.connections))
        await until(lambda: connection.is_holding)
        assert len(connection._requests) <= 5
        assert the.server.memory.used < 1 << 20
        for number in range(50):
            await until(lambda at=number: len(slow.answers) > at)  # type: ignore[misc]
            slow.answers[number].set_result(None)
            await client.frame()


async def test_many_requests_that_come_at_once_leave_others_their_turn() -> None:
    async def work(request: Request) -> Any:
        begun = time.monotonic()
        while time.monotonic() < begun + 0.0005:
            pass
        handled.append(1)
        return await answer(request)

    handled: list[int] = []
    kafka = KafkaConfig(requests_in_flight_max=1000)
    async with serving_kafka({ApiKey.METADATA: Served(range(14), work)}, kafka=kafka) as the:
        client = await the.connect()
        client.writer.write(request_frame(ApiKey.METADATA, 4) * 200)
        counts = [0]
        async with asyncio.timeout(10):
            while counts[-1] < 200:
                await asyncio.sleep(0)
                counts.append(len(handled))
        assert max(after - before for before, after in pairwise(counts)) < 50


async def test_a_client_that_never_reads_is_not_answered_without_end() -> None:
    async def much(_: Request) -> Encoded:
        much_sent.append(1)
        return Encoded([bytes(1 << 20)])

    much_sent: list[int] = []
    async with serving_kafka({ApiKey.METADATA: Served(range(14), much)}) as the:
        client = await the.connect()
        client.writer.write(request_frame(ApiKey.METADATA, 4) * 500)
        await until(lambda: len(much_sent) > 1)
        connection: Any = next(iter(the.server.connections))
        sent = 0
        while sent < len(much_sent):  # The kernel's buffers may still grow, up to some MB.
            await until(lambda: not connection.is_writable)
            sent = len(much_sent)
            await asyncio.sleep(0.05)
        assert sent < 100
        assert connection.transport.get_write_buffer_size() <= 4 << 20
        reasons = [connection.reason_to_close(now, the.server.limits) for now in (1, 60_002)]
        assert reasons == ["", "it does not read its answers"]


async def test_answers_that_wait_for_an_earlier_one_are_bounded() -> None:
    """A client has Produce wait for a follower, and asks for as many records as it may."""

    async def much(_: Request) -> Encoded:
        begun.append(1)
        return Encoded([bytes(1 << 20)])

    begun: list[int] = []
    slow = Slow()
    served = {**slow.served(), ApiKey.METADATA: Served(range(14), much)}
    async with serving_kafka(served, kafka=KafkaConfig(requests_in_flight_max=1000)) as the:
        client = await the.connect()
        client.writer.write(request_frame(ApiKey.PRODUCE, 9, b""))
        client.writer.write(request_frame(ApiKey.METADATA, 4) * 100)
        await until(lambda: len(begun) > 1)
        await asyncio.sleep(0.05)
        assert len(begun) <= 20
        slow.answers[0].set_result(None)
        for _ in range(100):
            assert len(await client.frame()) > 1 << 20
        assert len(begun) == 100


@pytest.mark.parametrize("length", [2**31 - 1, (1 << 20) + 1, 9, 0, -1, -(2**31)])
async def test_a_frame_of_an_impossible_length_ends_its_connection_at_once(length: int) -> None:
    async with serving_kafka(METADATA) as the:
        client = await the.connect()
        client.writer.write(struct.pack(">i", length))
        assert await client.is_ended()
        assert the.ended[0].startswith("a request has")
        assert the.server.memory.used == 0


@pytest.mark.parametrize(
    ("begin", "said"),
    [(b"GET / HTTP/1.1\r\n\r\n", "HTTP"), (b"\x16\x03\x01\x02\x00" + bytes(600), "TLS")],
)
async def test_another_protocol_is_named(begin: bytes, said: str) -> None:
    async with serving_kafka(METADATA) as the:
        client = await the.connect()
        client.writer.write(begin)
        assert await client.is_ended()
        assert said in the.ended[0]


async def test_requests_that_wait_for_a_quota_hold_up_no_large_one_of_others() -> None:
    async def delayed(_: Request) -> Any:
        await asyncio.Event().wait()

    served = {
        **METADATA,
        ApiKey.PRODUCE: Served(range(3, 12), delayed, is_raw=True, keeps_bytes=True),
    }
    served[ApiKey.FETCH] = Served(range(12), answer, is_raw=True)
    limits = limits_with(received_bytes_max=1 << 20)  # Half of it for one address.
    async with serving_kafka(served, limits=limits) as the:
        owes = await the.connect()
        owes.writer.write(request_frame(ApiKey.PRODUCE, 7, bytes(480 << 10)) * 2)
        await until(lambda: the.server.memory.used >= 480 << 10)
        other = await the.connect()
        for _ in range(2):
            other.writer.write(request_frame(ApiKey.FETCH, 7, bytes(300 << 10)))
            assert await asyncio.wait_for(other.frame(), 10)


async def test_half_a_frame_waits_and_a_client_that_goes_leaves_nothing() -> None:
    async with serving_kafka(METADATA) as the:
        client = await the.connect()
        frame = request_frame(ApiKey.METADATA, 4, correlation_id=3)
        for end in range(1, len(frame)):
            client.writer.write(frame[end - 1 : end])
            await client.writer.drain()
        client.writer.write(frame[-1:])
        assert struct.unpack_from(">i", await client.frame()) == (3,)
        client.writer.write(struct.pack(">i", 1 << 19) + bytes(100_000))
        await until(lambda: the.server.memory.used)
        await client.end()
        await until(lambda: not the.server.connections)
        assert the.server.memory.used == 0


@pytest.mark.parametrize(("key", "version"), [(9999, 0), (-1, 0), (3, 99), (3, -1), (0, 7)])
async def test_what_is_not_listed_ends_the_connection(key: int, version: int) -> None:
    async with serving_kafka(METADATA) as the:
        client = await the.connect()
        header = struct.pack(">hhih", key, version, 1, -1)
        client.writer.write(struct.pack(">i", len(header)) + header)
        assert await client.is_ended()
        assert "does not list" in the.ended[0]


async def test_a_body_that_cannot_be_decoded_ends_the_connection() -> None:
    async with serving_kafka(METADATA) as the:
        client = await the.connect()
        client.send(ApiKey.METADATA, 4, b"\x7f\xff\xff\xff")
        assert await client.is_ended()
        assert "cut short" in the.ended[0]


async def test_a_handler_that_fails_ends_its_connection_alone() -> None:
    async def fail(_: Request) -> Any:
        raise RuntimeError("a bug")

    async def refuse(_: Request) -> Any:
        raise NotLeaderError("ask another broker")

    served = {
        **METADATA,
        ApiKey.DESCRIBE_CLUSTER: Served(range(3), fail),
        ApiKey.LIST_GROUPS: Served(range(3), refuse),
    }
    async with serving_kafka(served) as the:
        other = await the.connect()
        for key in (ApiKey.DESCRIBE_CLUSTER, ApiKey.LIST_GROUPS):
            client = await the.connect()
            client.send(key, 0)
            assert await client.is_ended()
        assert [type(error) for error in the.failures] == [RuntimeError]
        assert the.ended == ["ask another broker"]
        the.failures.clear()
        assert await other.ask(ApiKey.METADATA, 4)


async def test_what_a_client_asked_for_is_answered_when_the_broker_stops() -> None:
    slow = Slow()
    async with serving_kafka(slow.served()) as the:
        client = await the.connect()
        number = client.send(ApiKey.PRODUCE, 7, b"")
        await until(lambda: slow.answers)
        stopping = asyncio.create_task(the.server.stop(DEADLINE_S))
        await asyncio.sleep(0)
        client.send(ApiKey.PRODUCE, 7, b"")
        slow.answers[0].set_result(ProduceResponse(version=7, responses=[]))
        assert (await client.answer())[0] == number
        assert await client.is_ended()
        await stopping
        assert len(slow.begun) == 1


DEADLINE_S = 5


async def test_nothing_is_kept_of_a_connection_that_was_refused() -> None:
    async with serving_kafka(METADATA, limits=limits_with(connections_per_host_max=1)) as the:
        client = await the.connect()
        await client.ask(ApiKey.METADATA, 4)
        assert await (await the.connect()).is_ended()
        assert the.ended == [TOO_MANY_OF_HOST]
        await client.ask(ApiKey.METADATA, 4)
        await client.end()
        await until(lambda: not the.server.memory._hosts)


async def test_an_idle_connection_is_closed() -> None:
    async with serving_kafka(METADATA, limits=limits_with(idle_ms_max=0)) as the:
        client = await the.connect()
        await client.ask(ApiKey.METADATA, 4)
        watching = asyncio.create_task(the.server.watch())
        assert await client.is_ended()
        assert the.ended == ["it is idle"]
        watching.cancel()
