"""Packets in any order that DRPC's rules allow, whole, in parts or dropped, from either end.

As storj.io/drpc's own tests of its manager do it. Whatever came before, the next call on the
connection is answered, the caller learns that its call has ended, and no memory stays charged.
"""

import asyncio
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.until import until
from tests.unit.runtime.transport.test_drpc import CONNECTION, DEADLINE_S, METHODS, serving

from millrace.runtime.transport.calls import CallError
from millrace.runtime.transport.drpc import client, wire
from millrace.runtime.transport.drpc.wire import Kind
from millrace.runtime.transport.frames import ReadAhead
from millrace.runtime.transport.receive_memory import ReceiveMemory

ENDS = (Kind.CLOSE_SEND, Kind.CLOSE, Kind.ERROR, Kind.CANCEL)
OWN = (Kind.ERROR_DETAILS, Kind.KEEP_ALIVE, Kind.DRAIN)
UNKNOWN = 40


class Step(NamedTuple):
    """A frame.

    Attributes:
        kind: of it; INVOKE begins another call.
        method: that is invoked.
        size: of its body.
        is_done: whether its packet ends with it; else the next packet drops it.
        is_part: whether an unfinished frame of the same packet comes before it.
    """

    kind: int
    method: str
    size: int
    is_done: bool
    is_part: bool


def steps(*kinds: int) -> st.SearchStrategy[list[Step]]:
    return st.lists(
        st.builds(
            Step,
            st.sampled_from(kinds),
            st.sampled_from([*METHODS, "/t.T/Unknown", "", "\0\0"]),
            st.sampled_from([0, 1, 8, 15, 300, 20_000, 70_000]),
            st.booleans(),
            st.booleans(),
        ),
        max_size=30,
    )


class Writer:
    """Makes the bytes of frames; ids only rise."""

    def __init__(self) -> None:
        self.stream = 1
        self.message = 0

    def packet(
        self, kind: int, body: bytes, *, is_done: bool = True, is_part: bool = False
    ) -> bytes:
        self.message += 1
        first, second = (body[: len(body) // 2], body[len(body) // 2 :]) if is_part else (b"", body)
        frames = self._frame(kind, first, is_done=False) if is_part else b""
        return frames + self._frame(kind, second, is_done=is_done)

    def _frame(self, kind: int, body: bytes, *, is_done: bool) -> bytes:
        is_own = kind in OWN or kind == UNKNOWN
        header = bytearray(
            wire.frame_header(kind, self.stream, self.message, len(body), is_ignorable=is_own)
        )
        header[0] = header[0] & ~1 | is_done
        return bytes(header) + body

    def run(self, step: Step) -> bytes:
        """Return the bytes of a step."""
        how = {"is_done": step.is_done, "is_part": step.is_part}
        if step.kind != Kind.INVOKE:
            return self.packet(step.kind, b"1" * step.size, **how)
        self.begin()
        data = b"".join(
            self.packet(Kind.METADATA, wire.encode_metadata({"a": "b"}), **how)
            for _ in range(step.size % 3)
        )
        data += self.packet(Kind.INVOKE, step.method.encode(), **how)
        if not step.is_done:  # Nothing may come for a call that was not invoked.
            data += self.packet(Kind.INVOKE, step.method.encode())
        return data

    def begin(self) -> None:
        self.stream, self.message = self.stream + 1, 0


@given(steps(Kind.INVOKE, *[Kind.MESSAGE] * 5, *ENDS, *OWN, UNKNOWN))
@settings(max_examples=60, deadline=None)
def test_a_server_answers_the_next_call_whatever_came_for_those_before(program: list[Step]) -> None:
    asyncio.run(_call_after(program))


async def _call_after(program: list[Step]) -> None:
    writer = Writer()
    async with serving() as the:
        peer = await the.by_hand()
        peer.send(writer.packet(Kind.INVOKE, b"/t.T/Echo"), *map(writer.run, program))
        writer.begin()
        last = writer.stream
        peer.send(
            writer.packet(Kind.METADATA, wire.encode_metadata({})),
            writer.packet(Kind.INVOKE, b"/t.T/Echo"),
            writer.packet(Kind.MESSAGE, b"alive"),
            writer.packet(Kind.CLOSE_SEND, b""),
        )
        while (packet := await peer.packet())[1] < last:
            pass
        assert packet == (Kind.MESSAGE, last, b"alive")
        assert await peer.packet() == (Kind.CLOSE_SEND, last, b"")
        assert not the.ended
        assert not the.server.memory.used, "nothing is charged while the connection is open"
        peer.close()
        await until(lambda: not the.server.connections)


@given(steps(*[Kind.MESSAGE] * 5, *OWN, UNKNOWN), st.sampled_from(ENDS), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_client_reads_what_was_whole_and_learns_of_the_end(
    program: list[Step], end: Kind, has_end: bool
) -> None:
    asyncio.run(_read_all(program, end if has_end else None))


async def _read_all(program: list[Step], end: Kind | None) -> None:
    expected = [step.size for step in program if step.kind == Kind.MESSAGE and step.is_done]
    writer = Writer()
    data = b"".join(map(writer.run, program))
    is_over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        to.write(data if end is None else data + writer.packet(end, bytes(8)))
        if end is not None:
            await reader.read()
        to.close()
        await to.wait_closed()
        is_over.set()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    memory = ReceiveMemory(8 << 20)
    connection = await client.connect(
        f"127.0.0.1:{port}", CONNECTION, ahead=ReadAhead(), memory=memory
    )
    stream = connection.stream("/t.T/Any", {})
    found = []
    is_well = False
    try:
        async with asyncio.timeout(DEADLINE_S):
            while (message := await stream.read()) is not None:
                found.append(len(message))
        is_well = True
    except CallError:
        pass
    assert is_well == (end in (Kind.CLOSE_SEND, Kind.CLOSE))
    assert found == expected
    assert not memory.used
    connection.close()
    await is_over.wait()
    await until(lambda: connection.is_closed)
    listening.close()
