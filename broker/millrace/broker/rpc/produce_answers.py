"""The answers of a produce stream on their way to the client.

Ready answers share a write while more will come: a write costs as much as reading a request. With
little to do, a request is answered at once: the only one under way in the very turn of the loop.

A response also says how long the client waits by its quota. The delay is told without an answer to
a request where the client gets no answers, has sent nothing yet, or waits for a delay that has
become shorter.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from millrace.broker.quotas import Throttle
from millrace.broker.rpc.memory import ConnectionMemory
from millrace.broker.telemetry.loop_metrics import Durations
from millrace.core.errors import (
    Appended,
    CoordinatorLoadInProgressError,
    MillraceError,
    NotLeaderError,
)
from millrace.core.ids import TopicPartition
from millrace.proto.v1 import produce_pb2 as pb
from millrace.runtime import host
from millrace.runtime.clock import monotonic_now
from millrace.runtime.transport.calls import ServerCall

_ANSWER_OVERHEAD: Final = 8
"""Bytes that a response adds to each answer."""
_GATHER_SECONDS: Final = 0.001
"""How long an answer may wait for others while many requests are under way."""
_GATHER_BYTES: Final = 256 << 10
"""Bytes of many requests. Below that latency matters, above the rate."""
_GATHER_ANSWERS: Final = 4
"""Answers that are sent without waiting for more."""
_TELL_AGAIN_MS: Final = 100
"""How much longer than it has to a client may wait without being told."""


class Answers:
    """The ready answers of one stream, and what writes them.

    Args:
        memory: what the connection holds says whether more answers will come soon.
        message_bytes_max: of a response.
        sent: the histogram of the time from ready to sent.
        on_sent: called when answers are with the client.

    Attributes:
        ready_bytes: of the answers that wait.
    """

    def __init__(
        self,
        call: ServerCall,
        throttle: Throttle,
        memory: ConnectionMemory,
        *,
        message_bytes_max: int,
        sent: Durations,
        on_sent: Callable[[], None],
    ) -> None:
        self.ready_bytes = 0
        self._call = call
        self._throttle = throttle
        self._memory = memory
        self._message_bytes_max = message_bytes_max
        self._sent = sent
        self._on_sent = on_sent
        self._ready: list[pb.ProduceAnswer] = []
        self._in_write: list[pb.ProduceAnswer] = []
        self._ready_since = 0.0  # When the first of them was ready, in seconds.
        self._must_tell_delay = False
        self._told_until = 0  # The end of the delay that the client was told.
        self._has_ready = asyncio.Event()
        self._gathering: asyncio.TimerHandle | None = None

    @property
    def count(self) -> int:
        """How many are not with the client yet."""
        return len(self._ready) + len(self._in_write)

    def send(self, answer: pb.ProduceAnswer) -> None:
        """Send an answer, soon."""
        if self._is_alone and self._call.try_write(self._message_of([answer])):
            self._sent.observe(0)
            self._on_sent()
            return
        if not self._ready:
            self._ready_since = host.monotonic_s()
        self._ready.append(answer)
        self.ready_bytes += answer.ByteSize()
        if len(self._ready) >= _GATHER_ANSWERS or self._memory.used < _GATHER_BYTES:
            self._has_ready.set()
        elif self._gathering is None:
            loop = asyncio.get_running_loop()
            self._gathering = loop.call_later(_GATHER_SECONDS, self._has_ready.set)

    def tell_delay(self) -> None:
        """Tell the client how long it waits, with an answer or without one."""
        self._must_tell_delay = True
        self._has_ready.set()

    def on_quotas(self) -> None:
        """The quotas have changed: the client may wait for longer than it has to."""
        if self._is_delayed_for_nothing:
            self.tell_delay()

    async def write(self) -> None:
        """Write answers for as long as the stream lasts."""
        while True:
            await self._has_ready.wait()
            self._has_ready.clear()
            if self._gathering is not None:
                self._gathering.cancel()
                self._gathering = None
            while self._ready or self._must_tell_delay:
                self._must_tell_delay = False
                since = self._ready_since
                self._take_ready()
                await self._call.write(self._message_of(self._in_write))
                if self._in_write:
                    self._sent.observe(host.monotonic_s() - since)
                self._in_write = []
                self._on_sent()

    @property
    def _is_alone(self) -> bool:
        """Whether an answer has nothing to share a message with, now or soon."""
        return not (self._ready or self._in_write or self._must_tell_delay or self._memory.used)

    def _message_of(self, answers: Sequence[pb.ProduceAnswer]) -> bytes:
        response = pb.ProduceResponse(answers=answers, throttle_time_ms=self._delay_to_tell())
        return response.SerializeToString()

    @property
    def _is_delayed_for_nothing(self) -> bool:
        waits_ms = self._told_until - monotonic_now()
        return waits_ms > self._throttle.delay_ms() + _TELL_AGAIN_MS

    def _delay_to_tell(self) -> int:
        """Return the client's delay; 1 ms ends one that it was told before, 0 tells nothing."""
        delay_ms = self._throttle.delay_ms()
        if not (delay_ms or self._told_until):
            return 0
        delay_ms = delay_ms or int(self._is_delayed_for_nothing)
        if delay_ms:
            self._told_until = monotonic_now() + delay_ms
        return delay_ms

    def _take_ready(self) -> None:
        """Move ready answers to `_in_write`, as many as fit into one message."""
        total = count = 0
        for answer in self._ready:
            total += answer.ByteSize() + _ANSWER_OVERHEAD
            if count and total > self._message_bytes_max:
                break
            count += 1
        self._in_write = self._ready[:count]
        del self._ready[:count]
        self.ready_bytes -= sum(answer.ByteSize() for answer in self._in_write)


def given_up(transactional_id: str, topic_partition: TopicPartition) -> MillraceError:
    """Return the error of a batch that has waited for too long."""
    if transactional_id:
        return CoordinatorLoadInProgressError(
            f"the coordinator of the transactional id {transactional_id!r} did not take "
            "the partition into the transaction within the producer's request_timeout_ms: try "
            "again",
            appended=Appended.NO,
            topic_partition=topic_partition,
        )
    return NotLeaderError(
        "this broker did not lead it within the producer's request_timeout_ms: refresh the "
        "metadata",
        appended=Appended.NO,
        topic_partition=topic_partition,
    )
