"""The produce stream to one broker: requests go out in order, answers come in any order.

With `acks=0` the broker answers only refusals. A request counts as acknowledged when the transport
has taken it, so that the queue here stays within the bounds of the sender machine.
"""

from collections.abc import Callable, Sequence
from typing import Final

from millrace.client._cluster import wire
from millrace.client._cluster.broker_streams import BrokerStream
from millrace.client._cluster.connection import Connection
from millrace.client._cluster.latencies import Latencies
from millrace.core.client.producer.batch import ProducerBatch
from millrace.core.client.producer.delivery import Acknowledged
from millrace.core.client.producer.effects import Answer, Refusal
from millrace.core.errors import MillraceError
from millrace.core.ids import BrokerId, LeaderEpoch, MonotonicMs, Offset, WallMs
from millrace.proto import codec
from millrace.proto.errors import error_from_wire
from millrace.proto.v1 import produce_pb2
from millrace.runtime import host
from millrace.runtime.transport.calls import ClientStream, Message

METHOD: Final = "/millrace.proto.v1.Produce/Produce"

OnAnswer = Callable[[BrokerId, int, Sequence[Answer], MonotonicMs], None]
OnMessage = Callable[[MonotonicMs], None]
OnThrottled = Callable[[BrokerId, int], None]
OnWritten = Callable[[BrokerId, int, int], None]
OnLateRefusal = Callable[[BrokerId, Sequence[MillraceError]], None]
OnBroken = Callable[[BrokerId, "ProduceStream", str], None]


class ProduceStream(BrokerStream):
    """One open stream.

    Args:
        broker_id: the broker.
        connection: the greeted connection.
        stream: that is open.
        acks: of every request.
        transactional_id: returns that of the open transaction; None: there are none.
        request_timeout_ms: how long the broker may wait for replicas.
        latencies: of requests that are answered.
        on_answer: broker, correlation id, answers in the order of the request, now.
        on_message: a message was taken, with all its answers: now.
        on_throttled: the broker delays this client, by its quota: broker, ms.
        on_written: with `acks=0` the transport has a request: broker, correlation id, batches.
        on_late_refusal: with `acks=0` the broker refused something of a request: broker, errors.
        on_broken: the stream ended, other than by `close()`.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        connection: Connection,
        stream: ClientStream,
        *,
        acks: int,
        transactional_id: Callable[[], str] | None,
        request_timeout_ms: int,
        latencies: Latencies,
        on_answer: OnAnswer,
        on_message: OnMessage,
        on_throttled: OnThrottled,
        on_written: OnWritten,
        on_late_refusal: OnLateRefusal,
        on_broken: OnBroken,
    ) -> None:
        super().__init__(
            broker_id,
            connection,
            "produce stream",
            stream,
            on_broken,
        )
        self._acks = acks
        self._transactional_id = transactional_id
        self._request_timeout_ms = request_timeout_ms
        self._latencies = latencies
        self._on_answer = on_answer
        self._on_message = on_message
        self._on_throttled = on_throttled
        self._on_written = on_written
        self._on_late_refusal = on_late_refusal
        self._sizes: dict[int, int] = {}
        self._sent_at_ns: dict[int, int] = {}

    def send(self, correlation_id: int, batches: list[tuple[ProducerBatch, LeaderEpoch]]) -> None:
        """Queue a request; the sender machine bounds how many there can be."""
        header = produce_pb2.ProduceHeader(
            correlation_id=correlation_id,
            acks=self._acks,
            request_timeout_ms=self._request_timeout_ms,
            transactional_id="" if self._transactional_id is None else self._transactional_id(),
        )
        is_transactional = self._transactional_id is not None
        parts: list[bytes | bytearray | memoryview] = []
        for batch, leader_epoch in batches:
            prepared = batch.prepared
            assert prepared is not None, "the machine sends encoded batches"
            parts += (
                prepared.finish(
                    batch.producer_id,
                    batch.producer_epoch,
                    batch.base_sequence,
                    is_transactional=is_transactional,
                ),
                prepared.body,
            )
            header.partitions.add(
                topic_id=batch.topic_partition.topic_id,
                partition=batch.topic_partition.partition,
                leader_epoch=leader_epoch,
                length=prepared.length,
                is_successor=batch.is_successor,
            )
        self._sizes[correlation_id] = len(batches)
        if self._acks != 0:
            self._sent_at_ns[correlation_id] = host.current.monotonic_ns()
        request = codec.produce_request(header, parts)
        self._queue(request, correlation_id, is_sent_later=self._acks == 0)

    async def drain(self) -> None:
        """Hand everything queued to the transport and wait until the broker has taken it.

        Not longer than for the answer to a request: a broker that is paused takes nothing.
        """
        self._is_ending = True
        self._has_message.set()
        await self._tasks.wait(self._request_timeout_ms / 1000)

    def _on_sent(self, number: int) -> None:
        if self._acks == 0:
            self._on_written(self.broker_id, number, self._sizes.pop(number))

    def _on_received(self, data: Message) -> None:
        message = produce_pb2.ProduceResponse.FromString(bytes(data))
        if message.throttle_time_ms:  # First: the answers let more be sent.
            self._on_throttled(self.broker_id, message.throttle_time_ms)
        now_ns = host.current.monotonic_ns()
        now = MonotonicMs(now_ns // 1_000_000)
        for answer in message.answers:
            self._answer(answer, now, now_ns)
        self._on_message(now)

    def _answer(self, response: produce_pb2.ProduceAnswer, now: MonotonicMs, now_ns: int) -> None:
        if self._acks == 0:
            refused = [response.error, *(result.error for result in response.results)]
            errors = [error_from_wire(error) for error in refused if error.code]
            self._on_late_refusal(self.broker_id, errors)
            return
        count = self._sizes.pop(response.correlation_id, 0)
        if (sent_at_ns := self._sent_at_ns.pop(response.correlation_id, None)) is not None:
            self._latencies.observe((now_ns - sent_at_ns) / 1e9)
        answers: list[Answer]
        if (error := wire.error_of(response)) is not None:
            answers = [Refusal(error, error.retriable)] * count
        else:
            answers = [_answer_of(result) for result in response.results]
        if len(answers) != count:
            self._break(f"not each of {count} batches has one result: {len(answers)} came")
            return
        self._on_answer(self.broker_id, response.correlation_id, answers, now)


def _answer_of(result: produce_pb2.ProduceResult) -> Answer:
    if (error := wire.error_of(result)) is not None:
        return Refusal(error, error.retriable or result.error.retriable)
    return Acknowledged(Offset(result.base_offset), WallMs(result.append_timestamp))
