"""Strangers send data, ends and markers that belong to no transaction, and nothing changes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import grpc
import pytest
from tests.integration.drpc_by_hand import listening_ports
from tests.integration.raw_client import RawClient, batch_of, named, resealed
from tests.integration.running_broker import RunningBroker, wait_until

from millrace.client import SyncAdmin, SyncConsumer, SyncProducer
from millrace.core.ids import TopicId, TopicPartition
from millrace.core.records.header import Attributes
from millrace.proto.v1 import common_pb2 as E
from millrace.proto.v1 import (
    positions_pb2,
    positions_pb2_grpc,
    replica_pb2_grpc,
    transactions_pb2_grpc,
)
from millrace.proto.v1 import transactions_pb2 as pb

ID_BYTES = 1_000_000
VALUE = b"open"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    folder: Path = tmp_path_factory.mktemp("broker")
    with RunningBroker(folder, {"cluster.transactions_partitions": 1}) as running:
        yield running


@dataclass
class Scene:
    """A producer within a transaction that has one record in partition 0 of a topic of two."""

    broker: RunningBroker
    name: str
    place: TopicPartition
    producer_id: int
    epoch: int

    @property
    def elsewhere(self) -> TopicPartition:
        """A partition that the transaction does not have."""
        return self.place._replace(partition=1)

    def batch(self, place: TopicPartition, *, attributes: int, **identity: Any) -> bytes:
        """Return a batch of this producer, unless its identity says otherwise."""
        numbers = {"producer_id": self.producer_id, "epoch": self.epoch, "sequence": 0, **identity}
        whole = batch_of(place, [b"forged"], **numbers)
        kept = int.from_bytes(whole[20:22], "little")
        return resealed(place, whole, attributes=kept | attributes)


@pytest.fixture
def scene(broker: RunningBroker, topic_name: str) -> Iterator[Scene]:
    """Nothing that a test does may change what the transaction commits at its end."""
    with (
        SyncAdmin(broker.address) as admin,
        SyncProducer(broker.address, transactional_id=topic_name) as producer,
    ):
        admin.create_topic(topic_name, partitions=2)
        topic_id = TopicId(admin.describe_topic(topic_name).topic_id)
        producer.begin_transaction()
        producer.send(topic_name, VALUE, partition=0).result()
        described = admin.describe_transaction(topic_name)
        assert described is not None
        yield Scene(
            broker,
            topic_name,
            TopicPartition(topic_id, 0),
            described.producer_id,
            described.producer_epoch,
        )
        producer.commit_transaction()
        with producer.transaction() as t:
            t.send(topic_name, b"next", partition=0)
            t.send(topic_name, b"next", partition=1)
        assert committed(broker, topic_name, 3) == [b"next", b"next", VALUE]
        ended = admin.describe_transaction(topic_name)
        assert ended is not None
        assert ended.producer_epoch == described.producer_epoch + 2


def committed(broker: RunningBroker, topic: str, count: int) -> list[bytes]:
    """Return what is committed, sorted, once nothing is open in any partition."""
    found: list[bytes] = []
    with SyncConsumer(broker.address) as consumer, SyncAdmin(broker.address) as admin:
        consumer.assign([topic], start="beginning")

        def is_all() -> bool:
            found.extend(record.value for record in consumer.poll(100))
            ends = admin.list_offsets(topic, isolation="read_uncommitted")
            return len(found) >= count and all(
                consumer.position(place) >= end.offset for place, end in ends.items()
            )

        wait_until(is_all, "all is read")
    return sorted(found)


TRANSACTIONAL, CONTROL = Attributes.TRANSACTIONAL, Attributes.CONTROL


class Forged(NamedTuple):
    """A batch, and why it is refused.

    Attributes:
        code: of the error.
        attributes: of the batch, beside those of its records.
        identity: what is other than in an honest batch of the producer.
        sender: the transactional id of the request.
        is_elsewhere: it goes to the partition that the transaction does not have.
    """

    code: int
    attributes: int = TRANSACTIONAL
    identity: Mapping[str, int] = {}
    sender: Literal["own", "nobody", ""] = "own"
    is_elsewhere: bool = True


FORGED = {
    "transactional, in a request without an id": Forged(
        E.ERROR_CODE_INVALID_TRANSACTION_STATE, sender=""
    ),
    "plain, in a request with an id": Forged(E.ERROR_CODE_INVALID_TRANSACTION_STATE, 0),
    "plain, within the transaction": Forged(
        E.ERROR_CODE_INVALID_TRANSACTION_STATE, 0, {"sequence": 1}, "", is_elsewhere=False
    ),
    "plain and of the next epoch, within the transaction": Forged(
        E.ERROR_CODE_INVALID_TRANSACTION_STATE, 0, {"epoch": 1}, "", is_elsewhere=False
    ),
    "of an id that nobody has": Forged(E.ERROR_CODE_PRODUCER_FENCED, sender="nobody"),
    "of another producer": Forged(E.ERROR_CODE_PRODUCER_FENCED, identity={"producer_id": 0}),
    "of an epoch to come": Forged(E.ERROR_CODE_PRODUCER_FENCED, identity={"epoch": 5}),
    "without sequences": Forged(E.ERROR_CODE_CORRUPT_BATCH, identity={"sequence": -1}),
    "a marker": Forged(E.ERROR_CODE_INVALID_RECORD, CONTROL, sender=""),
    "a marker within the transaction": Forged(
        E.ERROR_CODE_INVALID_RECORD, CONTROL | TRANSACTIONAL, {"sequence": 1}, is_elsewhere=False
    ),
}


@pytest.mark.parametrize("forged", [pytest.param(one, id=name) for name, one in FORGED.items()])
def test_data_that_belongs_to_no_transaction_is_refused(scene: Scene, forged: Forged) -> None:
    """P49, P51, T5."""
    place = scene.elsewhere if forged.is_elsewhere else scene.place
    batch = scene.batch(place, attributes=forged.attributes, **forged.identity)
    sender = scene.name if forged.sender == "own" else forged.sender
    with RawClient(scene.broker.address) as client:
        error = client.produce_batch(place, batch, transactional_id=sender).error
        said = error.code, error.appended
        assert said == (forged.code, E.APPENDED_NO), error.message
        assert client.end_offset(place) == (0 if forged.is_elsewhere else 1)


def replicas_of(broker: RunningBroker) -> str:
    """Return the address of the gRPC listener for other brokers."""
    addresses = (broker.address, broker.drpc_address, broker.metrics_address)
    known = {int(address.rpartition(":")[2]) for address in addresses}
    ports = set(listening_ports(broker.pid)) - known
    for seconds in (2, 20):  # The other one never is ready, and a busy broker takes its time.
        for port in ports:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                try:
                    grpc.channel_ready_future(channel).result(seconds)
                except grpc.FutureTimeoutError:
                    continue
                return f"127.0.0.1:{port}"
    raise AssertionError("brokers are not served")


def test_forged_markers_end_nothing(scene: Scene) -> None:
    """T1, P50: markers are no clients' business, and those of brokers are held against the log."""
    marker = pb.Marker(
        producer_id=scene.producer_id,
        producer_epoch=scene.epoch,
        committed=False,
        coordinator_epoch=0,
        version=2,
        partitions=[named(scene.place)],
    )
    request = pb.WriteMarkersRequest(markers=[marker])
    with grpc.insecure_channel(scene.broker.address) as channel:
        stub = replica_pb2_grpc.ReplicaStub(channel)  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.RpcError) as refused:
            stub.WriteMarkers(request, timeout=10)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    with grpc.insecure_channel(replicas_of(scene.broker)) as channel:
        stub = replica_pb2_grpc.ReplicaStub(channel)  # type: ignore[no-untyped-call]
        (result,) = stub.WriteMarkers(request, timeout=10).results
        assert result.error.code == E.ERROR_CODE_INVALID_PRODUCER_EPOCH, result.error.message
        for version, producer_id in ((0, 1), (3, 1), (2, -1)):
            marker.version, marker.producer_id = version, producer_id
            with pytest.raises(grpc.RpcError) as refused:
                stub.WriteMarkers(pb.WriteMarkersRequest(markers=[marker]), timeout=10)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        marker.version, marker.producer_id = 2, scene.producer_id
        marker.partitions.extend([named(scene.place)] * 10_000)
        with pytest.raises(grpc.RpcError) as refused:
            stub.WriteMarkers(pb.WriteMarkersRequest(markers=[marker]), timeout=10)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with SyncAdmin(scene.broker.address) as admin:
            internal = admin.describe_topic("__transactions").topic_id
        del marker.partitions[:]
        marker.partitions.append(named(TopicPartition(TopicId(internal), 0)))
        (result,) = stub.WriteMarkers(pb.WriteMarkersRequest(markers=[marker]), timeout=10).results
        assert result.error.code == E.ERROR_CODE_MALFORMED_REQUEST, result.error.message


def test_ids_of_a_megabyte_are_refused_in_every_request_in_few_words(scene: Scene) -> None:
    """T15."""
    name = "x" * ID_BYTES
    batch = scene.batch(scene.elsewhere, attributes=TRANSACTIONAL)
    position = positions_pb2.Position(topic_partition=named(scene.place), offset=1)
    with (
        RawClient(scene.broker.address) as client,
        grpc.insecure_channel(replicas_of(scene.broker)) as of_brokers,
    ):
        transactions = transactions_pb2_grpc.TransactionsStub(client.channel)  # type: ignore[no-untyped-call]
        groups = positions_pb2_grpc.PositionsStub(client.channel)  # type: ignore[no-untyped-call]
        replicas = replica_pb2_grpc.ReplicaStub(of_brokers)  # type: ignore[no-untyped-call]
        asked: dict[str, Callable[[], Any]] = {
            "end": lambda: transactions.EndTransaction(
                pb.EndTransactionRequest(transactional_id=name, committed=True), timeout=10
            ),
            "describe": lambda: transactions.DescribeTransaction(
                pb.DescribeTransactionRequest(transactional_id=name), timeout=10
            ),
            "abort": lambda: transactions.AbortTransaction(
                pb.AbortTransactionRequest(transactional_id=name), timeout=10
            ),
            "join": lambda: replicas.JoinTransaction(
                pb.JoinTransactionRequest(
                    transactional_id=name, partitions=[named(scene.elsewhere)]
                ),
                timeout=10,
            ),
            "commit": lambda: groups.CommitPositions(
                positions_pb2.CommitPositionsRequest(
                    name=scene.name, positions=[position], transactional_id=name
                ),
                timeout=10,
            ),
            "produce": lambda: client.produce_batch(scene.elsewhere, batch, transactional_id=name),
        }
        for what, ask in asked.items():
            error = ask().error
            assert error.code == E.ERROR_CODE_INVALID_TRANSACTIONAL_ID, (what, error.code)
            assert len(error.message) < 1000, what
