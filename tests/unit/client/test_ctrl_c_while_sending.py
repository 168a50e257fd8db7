"""Ctrl-C in the middle of `send()`, at every place where Python looks for it."""

import asyncio
import dis
import gc
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import FrameType
from typing import Any, SupportsIndex

import pytest

import millrace.client
from millrace.client._cluster.cluster import Cluster
from millrace.client._producer.pipeline import Pipeline
from millrace.client._producer.record_sink import RecordSink
from millrace.client._producer.settings import ProducerConfig
from millrace.core.client.producer.partitioners import Keyed
from millrace.core.errors import BufferExhaustedError
from millrace.core.records.compression import Compressor

CLIENT = millrace.client.__path__[0]
BUFFER_MEMORY = 1_000_000


class BusyAtFirst(list[None]):
    """A token that another thread has when it is first asked for."""

    asked = 0

    def __delitem__(self, index: SupportsIndex | slice) -> None:
        self.asked += 1
        if self.asked == 1:
            raise IndexError
        super().__delitem__(index)


class CtrlC:
    """Interrupts the client's code at the n-th place where the interpreter looks for signals."""

    def __init__(self, places: int) -> None:
        self._left = places
        self._opcodes: dict[FrameType, str] = {}
        self.has_struck = False

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(CLIENT) or self.has_struck:
            return None
        frame.f_trace_opcodes = True
        if event == "call":
            self._look()
        elif event == "opcode":
            before = self._opcodes.get(frame, "")
            self._opcodes[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if before.startswith("CALL") or before == "JUMP_BACKWARD":
                self._look()
        return self._trace

    def _look(self) -> None:
        self._left -= 1
        if self._left < 0:
            self.has_struck = True
            raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def nothing_is_collected() -> Iterator[None]:
    """Keep the collector away: what it finalizes, of other tests, is the client's code as well."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def sink() -> Iterator[RecordSink]:
    loop = asyncio.new_event_loop()
    config = ProducerConfig(
        acks=-1,
        linger_ms=5,
        batch_size=1000,
        buffer_memory=BUFFER_MEMORY,
        max_block_ms=0,
        topic_wait_ms=0,
        delivery_timeout_ms=1000,
        request_timeout_ms=1000,
        retry_backoff_ms=1,
        retry_backoff_max_ms=1,
        metadata_max_age_ms=1000,
        leader_silence_ms=1000,
    )
    cluster = Cluster("localhost:1", client_id="test")
    pipeline = Pipeline(cluster, config, Compressor("none", None), Keyed(), loop)
    pipeline.lock.token = BusyAtFirst([None])
    yield RecordSink(pipeline, None, None)
    pipeline.is_closed = True  # Else it tells of its records when it is collected, maybe in a test.
    loop.close()


def fill(sink: RecordSink) -> None:
    """Send until nothing more fits."""
    with suppress(BufferExhaustedError):
        while True:
            sink.send("t", bytes(100))


SENDS: dict[str, Callable[[RecordSink], object]] = {
    "plain": lambda sink: sink.send("t", b"v"),
    "with key": lambda sink: sink.send("t", b"v", b"k"),
    "with headers": lambda sink: sink.send("t", b"v", headers={"a": b"b"}),
    "columns": lambda sink: sink.send_batch("t", [b"a", b"b"]),
}


@pytest.mark.parametrize("is_busy", [False, True], ids=["free", "busy"])
@pytest.mark.parametrize("is_full", [False, True], ids=["room", "full"])
@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
def test_ctrl_c_never_leaves_the_producer_locked(
    sink: RecordSink, send: Callable[[RecordSink], object], is_full: bool, is_busy: bool
) -> None:
    token = sink._token
    assert isinstance(token, BusyAtFirst)
    sink.send("t", b"the intake is open")
    if is_full:
        fill(sink)
    struck = 0

    def interrupt(ctrl_c: CtrlC) -> None:
        try:
            with ctrl_c:
                send(sink)
        except (KeyboardInterrupt, BufferExhaustedError):
            pass

    # In a thread of its own: what is raised while an exception is handled leaves that one behind
    # as the thread's current, and every later error of the thread would seem to come from it.
    thread = ThreadPoolExecutor(1)
    while True:
        token.asked = 0 if is_busy else 1
        ctrl_c = CtrlC(struck)
        thread.submit(interrupt, ctrl_c).result()
        assert token == [None]
        if not ctrl_c.has_struck:
            break
        struck += 1
    thread.shutdown()
    assert struck > (1 if send in (SENDS["plain"], SENDS["with key"]) else 3)


def test_a_key_whose_send_was_interrupted_shifts_no_other(sink: RecordSink) -> None:
    sink.send("t", b"first", b"1")
    intake = sink._plain["t"]
    intake.keys.append(b"of a record that has no value")
    sink.send("t", b"second", b"2")
    sink.send("t", b"without key")
    assert (intake.values, intake.keys) == (
        [b"first", b"second", b"without key"],
        [b"1", b"2", None],
    )


def test_the_first_key_comes_after_records_without_one(sink: RecordSink) -> None:
    for key in (None, None, b"key"):
        handle = sink.send("t", b"value", key)
    assert handle.intake.keys == [None, None, b"key"]
    assert handle.index == 2
