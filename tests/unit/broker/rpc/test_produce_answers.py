"""When the answers of a produce stream go out, and in how many messages."""

import asyncio
from typing import Any

from tests.fakes.call_context import CALLER
from tests.fakes.quotas import no_quotas

from millrace.broker.rpc.memory import ConnectionMemory
from millrace.broker.rpc.produce_answers import Answers
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.quotas.quota import QuotaKind
from millrace.core.records.header import Buffer
from millrace.proto.v1 import produce_pb2 as pb


class Transport:
    """The part of `ServerCall` that is used; `takes_at_once` says whether there is room."""

    def __init__(self) -> None:
        self.takes_at_once = True
        self.sent: list[list[int]] = []
        """The correlation ids of each message."""

    def on_known(self) -> None:
        """Nobody asks."""

    def try_write(self, *parts: Buffer) -> bool:
        if self.takes_at_once:
            self._send(parts)
        return self.takes_at_once

    async def write(self, *parts: Buffer) -> None:
        self._send(parts)

    def _send(self, parts: tuple[Buffer, ...]) -> None:
        response = pb.ProduceResponse.FromString(b"".join(parts))
        self.sent.append([answer.correlation_id for answer in response.answers])


class Stream:
    def __init__(self) -> None:
        self.transport = Transport()
        self.memory = ConnectionMemory()
        self.taken = 0
        call: Any = self.transport
        self.answers = Answers(
            call,
            no_quotas().throttle(QuotaKind.PRODUCE, CALLER, lambda: None),
            self.memory,
            message_bytes_max=1 << 20,
            sent=BrokerMetrics().requests.produce_send,
            on_sent=self.on_sent,
        )

    def on_sent(self) -> None:
        self.taken += 1

    def answer(self, *correlation_ids: int) -> None:
        for correlation_id in correlation_ids:
            self.answers.send(pb.ProduceAnswer(correlation_id=correlation_id))

    async def written(self) -> list[list[int]]:
        """Let the writer work as long as it has something to do; return what was sent."""
        writing = asyncio.create_task(self.answers.write())
        async with asyncio.timeout(10):
            while self.answers.count:  # noqa: ASYNC110
                await asyncio.sleep(0)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        return self.transport.sent


async def test_the_only_answer_under_way_goes_out_in_the_turn_in_which_it_arises() -> None:
    the = Stream()
    the.answer(1)
    assert the.transport.sent == [[1]]
    assert (the.answers.count, the.taken) == (0, 1)


async def test_answers_of_one_turn_share_a_message_while_others_are_under_way() -> None:
    the = Stream()
    the.memory.used = 100
    the.answer(1, 2)
    the.memory.used = 0
    the.answer(3)  # It does not overtake them.
    assert the.transport.sent == []
    assert await the.written() == [[1, 2, 3]]


async def test_an_answer_that_the_transport_does_not_take_at_once_waits_for_it() -> None:
    the = Stream()
    the.transport.takes_at_once = False
    the.answer(1)
    assert the.transport.sent == []
    assert await the.written() == [[1]]


async def test_a_delay_that_is_to_be_told_goes_with_the_next_answer() -> None:
    the = Stream()
    the.answers.tell_delay()
    the.answer(1)
    assert await the.written() == [[1]]
