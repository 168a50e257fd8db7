"""A broker in memory that speaks the real wire protocol, for tests of the client library.

It keeps the rules on which clients rely (sequences, offsets, sessions with handles and credit) and
nothing else: no files, and no metadata but its own. Knobs make it fail like real brokers.
"""

import asyncio
import itertools
import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
from tests.fakes.group_coordinator import FakeGroups
from tests.fakes.transaction_coordinator import FakeTransactions
from tests.fakes.transaction_log import TransactionLog

from millrace.core.errors import (
    BrokerIdNotRegisteredError,
    FencedLeaderEpochError,
    InvalidProducerEpochError,
    MillraceError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import LeaderEpoch, Offset, TopicId, TopicPartition
from millrace.core.records.batch import check, open_batch, walk
from millrace.core.records.batch_limits import BatchLimits
from millrace.core.records.header import SEQUENCE_MAX, stamp
from millrace.core.topics import parse_topic_name
from millrace.proto import codec
from millrace.proto.callers import client_id_from_metadata
from millrace.proto.errors import error_to_trailers
from millrace.proto.v1 import (
    cluster_pb2,
    cluster_pb2_grpc,
    common_pb2,
    fetch_pb2,
    produce_pb2,
    transactions_pb2,
)

Context = grpc.aio.ServicerContext[Any, Any]
LIMITS = BatchLimits(batch_bytes_max=1_048_588, inflated_bytes_max=16 * 1024 * 1024)


def wire_error(error: MillraceError) -> common_pb2.Error:
    return common_pb2.Error(
        code=common_pb2.ErrorCode.Name(error.code),
        message=error.message,
        appended=common_pb2.Appended.Name(error.appended.value),
        retriable=error.retriable,
    )


@dataclass
class FakeLog:
    """One partition."""

    topic_partition: TopicPartition
    batches: list[tuple[int, int, bytes]] = field(default_factory=list)
    start_offset: int = 0
    leader_epoch: int = 0
    producers: dict[int, tuple[int, deque[tuple[int, int, int]]]] = field(default_factory=dict)
    refusals: deque[MillraceError] = field(default_factory=deque)
    """Errors for the next produced batches, which are then not appended, and join nothing."""
    has_leader: bool = True
    """False: metadata says that the partition has no leader."""
    damage: MillraceError | None = None
    """The error of requests for offsets."""
    led_by: common_pb2.PartitionLeader | None = None
    """Another broker that metadata names as the leader."""
    written: TransactionLog | None = None
    """What was put here by `put`."""

    def put(self, written: TransactionLog) -> None:
        """Have the batches of a log with transactions."""
        self.written, self.batches = written, written.stored()

    @property
    def last_stable_offset(self) -> int:
        return self.end_offset if self.written is None else self.written.last_stable_offset

    @property
    def end_offset(self) -> int:
        return self.batches[-1][1] if self.batches else self.start_offset

    def refuse(self) -> None:
        """Refuse a batch, as the leader does before it asks whether its transaction is open."""
        if self.refusals:
            raise self.refusals.popleft()

    def append(self, batch: memoryview, *, is_successor: bool = False) -> int:
        ((header, _),) = walk(batch)
        if not header.is_transactional:
            header = check(self.topic_partition, batch, LIMITS)
        if header.producer_id >= 0:
            epoch, recent = self.producers.get(header.producer_id, (-1, deque(maxlen=5)))
            for first, last, base in recent:
                same = (first, last) == (header.base_sequence, header.last_sequence)
                if epoch == header.producer_epoch and same:
                    return base
            if header.producer_epoch < epoch:
                raise InvalidProducerEpochError("an older epoch")
            if is_successor and epoch < 0:
                raise OutOfOrderSequenceError("the batch before it is missing")
            if header.producer_epoch > epoch:
                recent = deque(maxlen=5)
                expected = header.base_sequence if epoch < 0 else 0
            else:
                expected = (recent[-1][1] + 1) & SEQUENCE_MAX
            if header.base_sequence != expected:
                raise OutOfOrderSequenceError(f"{header.base_sequence} instead of {expected}")
            recent.append((header.base_sequence, header.last_sequence, self.end_offset))
            self.producers[header.producer_id] = (header.producer_epoch, recent)
        base = self.end_offset
        stamped = stamp(
            batch[:96], base_offset=Offset(base), leader_epoch=LeaderEpoch(self.leader_epoch)
        )
        self.batches.append((base, base + header.record_count, stamped + bytes(batch[96:])))
        return base

    def read(self, offset: int, max_bytes: int, end_offset: int) -> bytes:
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRangeError(f"{offset} is not in the log")
        data = b""
        for _, next_offset, batch in self.batches:
            if next_offset <= offset:
                continue
            if next_offset > end_offset:
                break
            if data and len(data) + len(batch) > max_bytes:
                break
            data += batch
        return data

    def records(self) -> list[tuple[int, bytes | None, bytes | None]]:
        """Offset, key and value of every record in the log."""
        found: list[tuple[int, bytes | None, bytes | None]] = []
        for _, _, batch in self.batches:
            for header, data in walk(batch):
                opened = open_batch(self.topic_partition, header, data, 2**30)
                found += zip(
                    opened.column("offset").to_pylist(),
                    opened.column("key").to_pylist(),
                    opened.column("value").to_pylist(),
                    strict=True,
                )
        return found

    def truncate(self, offset: int) -> None:
        """Remove a tail, as an unclean election would; the next epoch begins there."""
        self.batches = [batch for batch in self.batches if batch[1] <= offset]
        self.leader_epoch += 1

    def values(self) -> list[bytes | None]:
        return [value for _, _, value in self.records()]


@dataclass
class FakeTopic:
    name: str
    topic_id: TopicId
    logs: list[FakeLog]
    config: dict[str, str]


class FakeBroker:
    """One broker, which is the whole cluster.

    async with FakeBroker(orders=2) as broker, Producer(broker.address) as producer:
        ...

    Args:
        topics: their partitions, by name.
    """

    def __init__(self, broker_id: int = 1, **topics: int) -> None:
        self.broker_id = broker_id
        self.topics: dict[str, FakeTopic] = {}
        self.deleted: dict[bytes, FakeTopic] = {}
        self.port = 0
        self.cluster_id = "fake"
        self.software: list[tuple[str, str]] = []
        """Client id and software name of every Hello."""
        self.message_bytes_max = 0
        """The message size limit that it announces to clients; 0: none."""
        self.requests = 0
        self.batches_per_request: list[int] = []
        self.dropped_answers = 0
        """Number of produce requests to append before their stream breaks, without an answer."""
        self.lost_requests = 0
        """Number of produce requests to drop; their stream breaks."""
        self.silent = False
        """Produce requests are neither appended nor answered."""
        self.gate = asyncio.Event()
        """While cleared, produce requests wait before they are appended."""
        self.gate.set()
        self.metadata_gate = asyncio.Event()
        """While cleared, look-ups of metadata wait before they are answered."""
        self.metadata_gate.set()
        self.metadata_failures = 0
        """Number of metadata requests that fail as on a broken connection."""
        self.metadata_refusal: MillraceError | None = None
        """The error that metadata requests get."""
        self.others: list[cluster_pb2.BrokerMetadata] = []
        """Other brokers that metadata names."""
        self.metadata_epoch = 0
        """Of the metadata."""
        self.is_busy = False
        """Whether it refuses to describe logs."""
        self.lost_changes = 0
        """Number of changes of topics whose answers get lost."""
        self.on_lost_change: Callable[[], object] = lambda: None
        """Called for each of them."""
        self.refusal: MillraceError | None = None
        """The error for requests that need the controller."""
        self.refused = 0
        """Number of such refusals."""
        self.controller_gate = asyncio.Event()
        """While cleared, requests that need the controller wait before they are done or refused."""
        self.controller_gate.set()
        self.look_ups = 0
        self.fetch_failures: deque[MillraceError] = deque()
        self.fetched_bytes_sent = 0
        self.credit_granted = 0
        self.transactions = FakeTransactions()
        self.groups = FakeGroups(self.transactions)
        """The one group; `coordinate` says what it reads."""
        self.transactions_gate = asyncio.Event()
        """While cleared, ends of transactions are decided and not answered."""
        self.transactions_gate.set()
        self._news = asyncio.Condition()
        self._producer_ids = itertools.count(1000)
        self._server: grpc.aio.Server | None = None
        for name, partitions in topics.items():
            self.create_topic(name, partitions)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def described(self) -> cluster_pb2.BrokerMetadata:
        """This broker's entry in metadata."""
        name = f"fake-{self.broker_id}"
        return cluster_pb2.BrokerMetadata(broker_id=self.broker_id, name=name, address=self.address)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: dict[str, str] | None = None,
        topic_id: bytes = b"",
    ) -> FakeTopic:
        name = str(parse_topic_name(name))
        topic_id = TopicId(topic_id or os.urandom(16))
        logs = [FakeLog(TopicPartition(topic_id, number)) for number in range(partitions)]
        topic = self.topics[name] = FakeTopic(name, topic_id, logs, config or {})
        return topic

    def grow(self, name: str, partitions: int) -> None:
        """Add partitions to a topic."""
        topic = self.topics[name]
        for number in range(len(topic.logs), partitions):
            topic.logs.append(FakeLog(TopicPartition(topic.topic_id, number)))

    def coordinate(self, name: str) -> None:
        """Let the group read a topic."""
        topic = self.topics[name]
        self.groups.topic = topic.name, topic.topic_id
        self.groups.partitions = len(topic.logs)

    def log(self, name: str, partition: int = 0) -> FakeLog:
        return self.topics[name].logs[partition]

    async def start(self) -> None:
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", -1),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
            ]
        )
        cluster_pb2_grpc.add_ClusterServicer_to_server(  # type: ignore[no-untyped-call]
            _Cluster(self), self._server
        )
        raw: dict[str, Any] = {
            "Produce": grpc.stream_stream_rpc_method_handler(self._produce),
            "InitProducerId": grpc.unary_unary_rpc_method_handler(
                self._init_producer_id,
                produce_pb2.InitProducerIdRequest.FromString,
                produce_pb2.InitProducerIdResponse.SerializeToString,
            ),
        }
        transactions: dict[str, Any] = {
            "EndTransaction": grpc.unary_unary_rpc_method_handler(
                self._end_transaction,
                transactions_pb2.EndTransactionRequest.FromString,
                transactions_pb2.EndTransactionResponse.SerializeToString,
            ),
            "DescribeTransaction": grpc.unary_unary_rpc_method_handler(
                self._describe_transaction,
                transactions_pb2.DescribeTransactionRequest.FromString,
                transactions_pb2.DescribeTransactionResponse.SerializeToString,
            ),
        }
        fetch: dict[str, Any] = {
            "Fetch": grpc.stream_stream_rpc_method_handler(
                self._fetch, fetch_pb2.FetchRequest.FromString
            ),
            "ListOffsets": grpc.unary_unary_rpc_method_handler(
                self._list_offsets,
                fetch_pb2.ListOffsetsRequest.FromString,
                fetch_pb2.ListOffsetsResponse.SerializeToString,
            ),
            "OffsetsForLeaderEpoch": grpc.unary_unary_rpc_method_handler(
                self._epoch_ends,
                fetch_pb2.OffsetsForLeaderEpochRequest.FromString,
                fetch_pb2.OffsetsForLeaderEpochResponse.SerializeToString,
            ),
        }
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler("millrace.proto.v1.Produce", raw),
                grpc.method_handlers_generic_handler("millrace.proto.v1.Fetch", fetch),
                grpc.method_handlers_generic_handler(
                    "millrace.proto.v1.Transactions", transactions
                ),
            )
        )
        for service, methods in self.groups.methods().items():
            handlers: dict[str, Any] = {
                name: grpc.unary_unary_rpc_method_handler(
                    method, kind.FromString, lambda answer: answer.SerializeToString()
                )
                for name, (method, kind) in methods.items()
            }
            handler = grpc.method_handlers_generic_handler(f"millrace.proto.v1.{service}", handlers)
            self._server.add_generic_rpc_handlers((handler,))
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        """Break all connections; the logs stay, and `start` serves them on the same port."""
        assert self._server is not None
        await self._server.stop(None)

    async def __aenter__(self) -> "FakeBroker":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def until(self, condition: Callable[[], bool], timeout_s: float = 10) -> None:
        """Wait until a condition about the broker holds."""
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110  # Any condition about anything.
                await asyncio.sleep(0.002)

    def metadata(self, topic: FakeTopic) -> cluster_pb2.TopicMetadata:
        return cluster_pb2.TopicMetadata(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                cluster_pb2.PartitionMetadata(
                    partition=number,
                    leader=log.led_by
                    or common_pb2.PartitionLeader(
                        broker_id=self.broker_id if log.has_leader else -1,
                        leader_epoch=log.leader_epoch,
                        address=self.address,
                    ),
                    replicas=[self.broker_id],
                    isr=[self.broker_id],
                )
                for number, log in enumerate(topic.logs)
            ],
            config=[
                cluster_pb2.ConfigEntry(
                    name=name, value=value, source=cluster_pb2.CONFIG_SOURCE_TOPIC
                )
                for name, value in topic.config.items()
            ],
        )

    def _find(self, topic_id: bytes, partition: int) -> FakeLog:
        for topic in self.topics.values():
            if topic.topic_id == topic_id and partition < len(topic.logs):
                return topic.logs[partition]
        raise UnknownTopicOrPartitionError(f"no topic {topic_id.hex()} here")

    async def _produce(
        self, requests: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[bytes]:
        async for message in requests:
            self.requests += 1
            await self.gate.wait()
            if self.silent:
                continue
            if self.lost_requests:
                self.lost_requests -= 1
                await context.abort(grpc.StatusCode.UNAVAILABLE, "lost")
            header, batches = codec.decode_produce_request(message)
            self.batches_per_request.append(len(batches))
            response = produce_pb2.ProduceResponse()
            answer = response.answers.add(correlation_id=header.correlation_id)
            for partition, batch in zip(header.partitions, batches, strict=True):
                result = answer.results.add(base_offset=-1, append_timestamp=-1)
                try:
                    log = self._find(partition.topic_id, partition.partition)
                    if partition.leader_epoch < log.leader_epoch:
                        raise FencedLeaderEpochError(f"the epoch is {log.leader_epoch} now")
                    log.refuse()
                    if header.transactional_id:
                        ((found, _),) = walk(batch)
                        written = (found.producer_id, found.producer_epoch)
                        self.transactions.join(header.transactional_id, written)
                    result.base_offset = log.append(batch, is_successor=partition.is_successor)
                except MillraceError as error:
                    result.error.CopyFrom(wire_error(error))
            async with self._news:
                self._news.notify_all()
            if self.dropped_answers:
                self.dropped_answers -= 1
                await context.abort(grpc.StatusCode.UNAVAILABLE, "answer dropped")
            if header.acks or any(result.HasField("error") for result in answer.results):
                yield response.SerializeToString()

    async def _init_producer_id(
        self, request: produce_pb2.InitProducerIdRequest, context: object
    ) -> produce_pb2.InitProducerIdResponse:
        await self.controller_gate.wait()
        if self.refusal is not None:
            self.refused += 1
            return produce_pb2.InitProducerIdResponse(error=wire_error(self.refusal))
        if request.transactional_id:
            return self.transactions.init(request)
        return produce_pb2.InitProducerIdResponse(producer_id=next(self._producer_ids))

    async def _end_transaction(
        self, request: transactions_pb2.EndTransactionRequest, context: Context
    ) -> transactions_pb2.EndTransactionResponse:
        answer = self.transactions.end(request)
        await self.transactions_gate.wait()
        if answer is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the answer is lost")
        return answer

    async def _describe_transaction(
        self, request: transactions_pb2.DescribeTransactionRequest, context: object
    ) -> transactions_pb2.DescribeTransactionResponse:
        return self.transactions.describe(request.transactional_id)

    async def _fetch(
        self, requests: AsyncIterator[fetch_pb2.FetchRequest], context: Context
    ) -> AsyncIterator[bytes]:
        session: dict[int, tuple[FakeLog | None, int, int]] = {}
        told: dict[int, int] = {}
        credit = 0
        is_committed = False

        async def read_requests() -> None:
            nonlocal credit, is_committed
            async for request in requests:
                if request.HasField("settings"):
                    level = request.settings.isolation_level
                    is_committed = level == fetch_pb2.ISOLATION_LEVEL_READ_COMMITTED
                credit += request.credit_bytes
                self.credit_granted += request.credit_bytes
                for handle in request.remove:
                    session.pop(handle, None)
                for wanted in request.partitions:
                    try:
                        log = self._find(wanted.topic_id, wanted.partition)
                    except UnknownTopicOrPartitionError:
                        log = None
                    session[wanted.handle] = (log, wanted.fetch_offset, wanted.max_bytes)
                async with self._news:
                    self._news.notify_all()

        reader = asyncio.create_task(read_requests())
        try:
            while True:
                header = fetch_pb2.FetchHeader()
                parts: list[bytes] = []
                for handle, (log, offset, max_bytes) in list(session.items()):
                    fetched = fetch_pb2.FetchedPartition(handle=handle, fetch_offset=offset)
                    try:
                        if self.fetch_failures:
                            raise self.fetch_failures.popleft()
                        if log is None:
                            raise UnknownTopicOrPartitionError("no such topic")
                        fetched.high_watermark = log.end_offset
                        fetched.last_stable_offset = log.last_stable_offset
                        fetched.log_start_offset = log.start_offset
                        end = log.last_stable_offset if is_committed else log.end_offset
                        data = log.read(offset, min(max_bytes, credit), end)
                    except MillraceError as error:
                        fetched.error.CopyFrom(wire_error(error))
                        del session[handle]
                        header.partitions.append(fetched)
                        continue
                    assert log is not None
                    if len(data) > credit:
                        continue
                    if not data and told.get(handle) == log.end_offset:
                        continue
                    told[handle] = log.end_offset
                    credit -= len(data)
                    fetched.length = len(data)
                    parts.append(data)
                    next_offset = offset
                    for batch_header, _ in walk(data):
                        next_offset = batch_header.next_offset
                    if is_committed and log.written is not None:
                        for aborted in log.written.aborted(offset, next_offset):
                            fetched.aborted_transactions.add(**aborted._asdict())
                    header.partitions.append(fetched)
                    session[handle] = (log, next_offset, max_bytes)
                if header.partitions:
                    self.fetched_bytes_sent += sum(map(len, parts))
                    yield b"".join(codec.fetch_response(header, parts))
                    continue
                async with self._news:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._news.wait(), 0.05)
        finally:
            reader.cancel()

    async def _list_offsets(
        self, request: fetch_pb2.ListOffsetsRequest, context: object
    ) -> fetch_pb2.ListOffsetsResponse:
        response = fetch_pb2.ListOffsetsResponse()
        for query in request.partitions:
            listed = response.offsets.add(offset=-1, timestamp=-1)
            place = query.topic_partition
            try:
                log = self._find(place.topic_id, place.partition)
                if log.damage is not None:
                    raise log.damage
            except MillraceError as error:
                listed.error.CopyFrom(wire_error(error))
                continue
            kind = query.WhichOneof("position")
            if kind == "earliest":
                listed.offset = log.start_offset
            elif kind == "latest":
                level = request.isolation_level
                is_committed = level == fetch_pb2.ISOLATION_LEVEL_READ_COMMITTED
                listed.offset = log.last_stable_offset if is_committed else log.end_offset
            elif kind == "timestamp":
                for _, _, batch in log.batches:
                    for header, data in walk(batch):
                        opened = open_batch(log.topic_partition, header, data, 2**30)
                        for offset, timestamp in zip(
                            opened.column("offset").to_pylist(),
                            opened.column("timestamp").to_pylist(),
                            strict=True,
                        ):
                            if timestamp >= query.timestamp and listed.offset < 0:
                                listed.offset, listed.timestamp = offset, timestamp
        return response

    async def _epoch_ends(
        self, request: fetch_pb2.OffsetsForLeaderEpochRequest, context: object
    ) -> fetch_pb2.OffsetsForLeaderEpochResponse:
        response = fetch_pb2.OffsetsForLeaderEpochResponse()
        for query in request.partitions:
            place = query.topic_partition
            log = self._find(place.topic_id, place.partition)
            result = response.results.add()
            ends = [
                header.next_offset
                for _, _, batch in log.batches
                for header, _ in walk(batch)
                if header.leader_epoch <= query.leader_epoch
            ]
            result.end.leader_epoch = query.leader_epoch
            result.end.end_offset = max(ends, default=log.start_offset)
        return response


class _Cluster(cluster_pb2_grpc.ClusterServicer):
    """The cluster service of a `FakeBroker`."""

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker

    async def Hello(
        self, request: common_pb2.HelloRequest, context: Context
    ) -> common_pb2.HelloResponse:
        metadata = context.invocation_metadata() or ()
        software = str(dict(metadata)["user-agent"]).partition("/")[0]
        self._broker.software.append((client_id_from_metadata(metadata), software))
        return common_pb2.HelloResponse(
            cluster_id=self._broker.cluster_id,
            broker_id=self._broker.broker_id,
            broker_name=self._broker.described.name,
            message_bytes_max=self._broker.message_bytes_max,
        )

    async def GetMetadata(
        self, request: cluster_pb2.GetMetadataRequest, context: Context
    ) -> cluster_pb2.GetMetadataResponse:
        broker = self._broker
        broker.look_ups += 1
        await broker.metadata_gate.wait()
        if broker.metadata_failures:
            broker.metadata_failures -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "going away")
        if (error := broker.metadata_refusal) is not None:
            await context.abort(grpc.StatusCode.UNKNOWN, error.message, error_to_trailers(error))
        response = cluster_pb2.GetMetadataResponse(
            cluster_id=broker.cluster_id,
            controller_id=1,
            metadata_epoch=broker.metadata_epoch,
            brokers=[broker.described, *broker.others],
        )
        if request.brokers_only:
            return response
        for name in list(request.topics) or list(broker.topics):
            topic = broker.topics.get(name)
            if topic is None:
                unknown = UnknownTopicOrPartitionError(f"there is no topic {name!r}")
                response.topics.add(name=name, error=wire_error(unknown))
            else:
                response.topics.append(broker.metadata(topic))
        return response

    async def CreateTopics(
        self, request: cluster_pb2.CreateTopicsRequest, context: Context
    ) -> cluster_pb2.CreateTopicsResponse:
        await self._ask_controller(context)
        response = cluster_pb2.CreateTopicsResponse(metadata_epoch=self._broker.metadata_epoch)
        for wanted in request.topics:
            result = response.results.add()
            topic = self._broker.topics.get(wanted.name)
            if topic is None:
                topic = self._broker.create_topic(
                    wanted.name, wanted.partitions or 1, dict(wanted.config), wanted.topic_id
                )
            elif topic.topic_id != wanted.topic_id:
                error = TopicAlreadyExistsError(f"topic {wanted.name!r} exists")
                result.error.CopyFrom(wire_error(error))
                continue
            result.topic.CopyFrom(self._broker.metadata(topic))
        await self._lose_answer(context)
        return response

    async def DeleteTopics(
        self, request: cluster_pb2.DeleteTopicsRequest, context: Context
    ) -> cluster_pb2.DeleteTopicsResponse:
        response = cluster_pb2.DeleteTopicsResponse()
        for named in request.topics:
            result = response.results.add()
            for topic in list(self._broker.topics.values()):
                is_named = named.name in ("", topic.name)
                if is_named and named.topic_id in (b"", topic.topic_id):
                    result.topic.CopyFrom(self._broker.metadata(topic))
                    if not request.validate_only:
                        self._broker.deleted[topic.topic_id] = self._broker.topics.pop(topic.name)
                    break
            else:
                error = UnknownTopicOrPartitionError("there is no such topic")
                result.error.CopyFrom(wire_error(error))
        if not request.validate_only:
            await self._lose_answer(context)
        return response

    async def ListDeletedTopics(
        self, request: cluster_pb2.ListDeletedTopicsRequest, context: Context
    ) -> cluster_pb2.ListDeletedTopicsResponse:
        broker = self._broker
        return cluster_pb2.ListDeletedTopicsResponse(
            topics=[
                cluster_pb2.DeletedTopic(name=topic.name, topic_id=topic.topic_id)
                for topic in broker.deleted.values()
            ],
            metadata_epoch=broker.metadata_epoch,
        )

    async def UndeleteTopics(
        self, request: cluster_pb2.UndeleteTopicsRequest, context: Context
    ) -> cluster_pb2.UndeleteTopicsResponse:
        response = cluster_pb2.UndeleteTopicsResponse()
        for named in request.topics:
            result = response.results.add()
            topic = self._broker.deleted.pop(named.topic_id, None)
            if topic is not None:
                self._broker.topics[topic.name] = topic
            there = self._broker.topics.get(named.name)
            if there is not None and there.topic_id == named.topic_id:
                result.topic.CopyFrom(self._broker.metadata(there))
            else:
                error = UnknownTopicOrPartitionError("there is no such deleted topic")
                result.error.CopyFrom(wire_error(error))
        await self._lose_answer(context)
        return response

    async def PurgeTopics(
        self, request: cluster_pb2.PurgeTopicsRequest, context: Context
    ) -> cluster_pb2.PurgeTopicsResponse:
        response = cluster_pb2.PurgeTopicsResponse()
        for named in request.topics:
            result = response.results.add()
            if self._broker.deleted.pop(named.topic_id, None) is None:
                error = UnknownTopicOrPartitionError("there is no such deleted topic")
                result.error.CopyFrom(wire_error(error))
        await self._lose_answer(context)
        return response

    async def DescribeLogs(
        self, request: cluster_pb2.DescribeLogsRequest, context: Context
    ) -> cluster_pb2.DescribeLogsResponse:
        if self._broker.is_busy:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy")
        return cluster_pb2.DescribeLogsResponse()

    async def UnregisterBroker(
        self, request: cluster_pb2.UnregisterBrokerRequest, context: Context
    ) -> cluster_pb2.UnregisterBrokerResponse:
        response = cluster_pb2.UnregisterBrokerResponse()
        left = [other for other in self._broker.others if other.broker_id != request.broker_id]
        if left == self._broker.others:
            error = BrokerIdNotRegisteredError("there is no such broker")
            response.error.CopyFrom(wire_error(error))
        self._broker.others = left
        await self._lose_answer(context)
        return response

    async def _ask_controller(self, context: Context) -> None:
        await self._broker.controller_gate.wait()
        error = self._broker.refusal
        if error is not None:
            self._broker.refused += 1
            code = grpc.StatusCode.UNAVAILABLE
            await context.abort(code, error.message, error_to_trailers(error))

    async def _lose_answer(self, context: Context) -> None:
        if self._broker.lost_changes:
            self._broker.lost_changes -= 1
            self._broker.on_lost_change()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the answer is lost")
