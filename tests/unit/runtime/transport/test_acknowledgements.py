"""Whether the other machine answers, by what the kernel says."""

import asyncio
import socket
import struct

import pytest

from millrace.runtime.transport.acknowledgements import Acknowledgements


class Kernel:
    """A socket of which the test says what the kernel knows."""

    def __init__(self) -> None:
        self.probes = self.unacknowledged = self.acknowledged = 0

    def getsockopt(self, level: int, optname: int, buflen: int) -> bytes:
        assert (level, optname) == (socket.IPPROTO_TCP, socket.TCP_INFO)
        info = bytearray(buflen)
        info[3] = self.probes
        struct.pack_into("=I", info, 24, self.unacknowledged)
        struct.pack_into("=Q", info, 120, self.acknowledged)
        return bytes(info)


def test_bytes_without_an_answer_end_in_death() -> None:
    kernel = Kernel()
    found = Acknowledgements(kernel, 1000)
    assert not found.is_dead(0)
    kernel.unacknowledged = 3
    assert [found.is_dead(now_ms) for now_ms in (0, 400, 800, 1200)] == [False, False, False, True]


def test_a_slow_machine_lives_while_it_acknowledges_something() -> None:
    kernel = Kernel()
    found = Acknowledgements(kernel, 1000)
    kernel.unacknowledged = 3
    for now_ms in range(0, 5000, 400):
        kernel.acknowledged += 1
        assert not found.is_dead(now_ms)


def test_a_machine_without_room_lives_while_it_answers_questions() -> None:
    kernel = Kernel()
    found = Acknowledgements(kernel, 1000)
    for now_ms in range(0, 5000, 400):
        kernel.probes = 1  # The next one may be answered.
        assert not found.is_dead(now_ms)
    kernel.probes = 4
    assert not found.is_dead(5000)
    assert found.is_dead(6300)


def test_a_socket_that_is_none_of_tcp_says_nothing() -> None:
    pair = socket.socketpair()
    found = Acknowledgements(pair[0], 1000)
    assert not found.is_dead(0)
    assert not found.is_dead(5000)
    for end in pair:
        end.close()


def test_a_connection_that_is_closing_says_nothing() -> None:
    """A loop of uvloop lets go of the socket before it says that the connection is lost."""
    uvloop = pytest.importorskip("uvloop")

    async def close() -> Acknowledgements:
        transport, _ = await asyncio.get_running_loop().create_connection(
            asyncio.Protocol, *server.getsockname()
        )
        found = Acknowledgements(transport.get_extra_info("socket"), 1000)
        transport.abort()
        await asyncio.sleep(0)
        return found

    with socket.create_server(("127.0.0.1", 0)) as server:
        loop = uvloop.new_event_loop()
        found = loop.run_until_complete(close())
        loop.close()
    assert not found.is_dead(0)


def test_the_kernel_of_this_machine_tells_what_is_acknowledged() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        calling = socket.create_connection(server.getsockname())
        answering, _ = server.accept()
        found = Acknowledgements(calling, 1)
        assert not found.is_dead(0)
        calling.sendall(b"four")
        assert answering.recv(4) == b"four"
        assert not found.is_dead(10)
        assert found._acknowledged >= 4
        calling.close()
        answering.close()


@pytest.mark.parametrize("after_ms", [5000, 10_000])
def test_a_closed_socket_is_no_news(after_ms: int) -> None:
    closed = socket.socket()
    closed.close()
    assert not Acknowledgements(closed, 1000).is_dead(after_ms)
