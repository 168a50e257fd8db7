"""Brokers know who calls: in the log lines of refusals, and of changes that they pass on."""

import json
import pkgutil
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.integration.conftest import StartBroker
from tests.integration.hostile_http2 import Http2Connection, call_headers, message_frame
from tests.integration.raw_client import FETCH, PRODUCE, RawClient, RawStream, batch_of
from tests.integration.running_broker import RunningBroker, wait_until
from tests.integration.running_cluster import RunningCluster

import millrace.proto.v1
from millrace.client import Position, SyncAdmin, SyncConsumer, SyncProducer
from millrace.core.errors import (
    BrokerIdNotRegisteredError,
    BrokerInUseError,
    InvalidConfigError,
    InvalidQuotaError,
    InvalidReplicaAssignmentError,
    InvalidTimestampError,
    TopicAlreadyExistsError,
    TransactionAbortedError,
    TransactionalIdNotFoundError,
    UnknownMemberIdError,
)
from millrace.core.ids import TopicPartition, WallMs
from millrace.proto.v1 import controller_pb2
from millrace.proto.v1.common_pb2 import HelloRequest

KEY = "millrace-client-id"
HELLO = "/millrace.proto.v1.Cluster/Hello"
SESSION = "/millrace.proto.v1.Controller/Session"


def lines(broker: RunningBroker, *events: str) -> list[dict[str, Any]]:
    """Return the lines of a broker's log about some events."""
    said = map(json.loads, broker.log_path.read_text().splitlines())
    return [line for line in said if line.get("event") in events]


def refusals(broker: RunningBroker) -> list[dict[str, Any]]:
    return lines(broker, "caller_refused")


def changes(*brokers: RunningBroker) -> list[dict[str, Any]]:
    names = ("administrative_request", "administrative_request_refused")
    return [line for broker in brokers for line in lines(broker, *names)]


def test_a_client_that_is_refused_is_named_as_it_calls_itself(start_broker: StartBroker) -> None:
    broker = start_broker()
    with SyncAdmin(broker.address, client_id="setup") as admin:
        admin.create_topic("strict", config={"message.timestamp.before.max.ms": "1000"})
    with (
        SyncProducer(broker.address, client_id="billing@7") as producer,
        pytest.raises(InvalidTimestampError),
    ):
        producer.send("strict", b"old", timestamp=WallMs(1)).result(10)
    (line,) = refusals(broker)
    assert (line["principal"], line["client_id"]) == ("anonymous", "billing@7")
    assert (line["listener"], line["method"]) == ("clients", "Produce")
    assert line["address"].startswith("127.0.0.1:")
    assert line["software"].startswith("millrace-python/")
    assert "timestamps" in line["error"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    running = RunningBroker(tmp_path_factory.mktemp("hostile"))
    yield running.start()
    running.abandon()


MALFORMED = {
    "too long": "x" * 256,
    "with a space": "two words",
    "empty": "",
}


@pytest.mark.parametrize("client_id", MALFORMED.values(), ids=MALFORMED.keys())
def test_calls_with_a_malformed_client_id_are_refused(
    broker: RunningBroker, client_id: str
) -> None:
    with RawClient(broker.address) as client:
        with pytest.raises(grpc.RpcError) as refused:
            client.cluster.Hello(HelloRequest(), timeout=10, metadata=[(KEY, client_id)])
        status: grpc.Call = refused.value  # type: ignore[assignment]
        assert status.code() is grpc.StatusCode.INVALID_ARGUMENT
        details = status.details()
        assert details is not None
        assert "it must be 1 to 255 visible ASCII characters" in details
        for method in (PRODUCE, FETCH):
            stream = RawStream(client.channel, method, metadata=[(KEY, client_id)])
            assert stream.ended_with() is grpc.StatusCode.INVALID_ARGUMENT
        assert client.cluster.Hello(HelloRequest(), timeout=10).cluster_id


def test_two_client_ids_are_refused_and_none_is_served(broker: RunningBroker) -> None:
    with RawClient(broker.address) as client:
        with pytest.raises(grpc.RpcError, match="2 client ids"):
            client.cluster.Hello(HelloRequest(), timeout=10, metadata=[(KEY, "a"), (KEY, "b")])
        partition = TopicPartition(client.create_topic("nameless"), 0)
        assert client.produce_batch(partition, batch_of(partition)).base_offset == 0


@pytest.mark.parametrize("client_id", [b"\x1b[2J", b"a\r\nb", b"\x00", b"\xff\xfe", b"x" * 3000])
def test_bytes_that_no_library_sends_reach_no_log_and_harm_nobody(
    broker: RunningBroker, client_id: bytes
) -> None:
    with Http2Connection(broker.address) as connection:
        connection.greet()
        headers = call_headers(HELLO, 1, {KEY: client_id})
        connection.send(headers + message_frame(b"", stream=1))
        connection.is_closed_within(0.5)
    assert b"\x1b" not in broker.log_path.read_bytes()
    assert all(line["client_id"].isprintable() for line in refusals(broker))
    with RawClient(broker.address) as client:
        assert client.cluster.Hello(HelloRequest(), timeout=10).cluster_id


@pytest.fixture
def steady(tmp_path: Path) -> Iterator[RunningCluster]:
    """Three brokers whose controller stays one, although the machine pauses for a while."""
    lease = {
        "coordination.lease_duration_ms": 20_000,
        "coordination.lease_renew_deadline_ms": 15_000,
        "cluster.broker_session_timeout_ms": 20_000,
    }
    with RunningCluster(tmp_path, lease) as running:
        yield running


def test_who_changes_topics_is_in_the_log_of_the_controller(steady: RunningCluster) -> None:
    brokers = steady.brokers
    for number, broker in enumerate(brokers):  # One of them is the controller, two pass on.
        with SyncAdmin(broker.address, client_id=f"deploy-{number}") as admin:
            admin.create_topic(f"t{number}", replication_factor=3)
            with pytest.raises(TopicAlreadyExistsError):
                admin.create_topic(f"t{number}")
            admin.alter_topic(f"t{number}", set_config={"retention.ms": "1000"})
            with suppress(InvalidConfigError):
                admin.alter_topic(f"t{number}", set_config={"retention.ms": "no"})
            admin.delete_topic(f"t{number}")
    wait_until(lambda: len(changes(*brokers)) == 15, "all is logged")
    written = [broker for broker in brokers if changes(broker)]
    assert len(written) == 1, "only the controller writes them"
    for number in range(3):
        mine = [line for line in changes(*brokers) if line["client_id"] == f"deploy-{number}"]
        assert [(line["request"], line["entries"], line["refused"]) for line in mine] == [
            ("create_topics", f"t{number}", ""),
            ("create_topics", f"t{number}", f"t{number}: TOPIC_ALREADY_EXISTS"),
            ("alter_topics", f"t{number} (retention.ms)", ""),
            (
                "alter_topics",
                f"t{number} (retention.ms)",
                f"t{number} (retention.ms): INVALID_CONFIG",
            ),
            ("delete_topics", f"t{number}", ""),
        ]
        for line in mine:
            assert (line["principal"], line["listener"]) == ("anonymous", "clients")
            assert line["address"].startswith("127.0.0.1:")
            assert line["software"].startswith("millrace-python/")


AUDITED = {
    "Cluster.CreateTopics": "create_topics",
    "Cluster.AlterTopics": "alter_topics",
    "Cluster.DeleteTopics": "delete_topics",
    "Cluster.UndeleteTopics": "undelete_topics",
    "Cluster.PurgeTopics": "purge_topics",
    "Cluster.DeleteRecords": "delete_records",
    "Cluster.DrainBroker": "drain_broker",
    "Cluster.UnregisterBroker": "unregister_broker",
    "Cluster.ReassignPartitions": "reassign_partitions",
    "Cluster.ElectLeaders": "elect_leaders",
    "Cluster.SetQuotas": "set_quotas",
    "Cluster.DeleteQuotas": "delete_quotas",
    "Positions.CommitPositions": "commit_positions",
    "Positions.DeletePositions": "delete_positions",
    "Positions.ForgetTopics": "forget_topics",
    "SharedTransactions.ForgetVersion": "forget_version",
    "Transactions.AbortTransaction": "abort_transaction",
    "Transactions.AbortOpenTransaction": "abort_open_transaction",
}
"""Methods with administrative acts, and how the audit log calls them."""
NOT_AUDITED = {
    "Cluster.Hello": "reads",
    "Cluster.GetMetadata": "reads",
    "Cluster.ListDeletedTopics": "reads",
    "Cluster.DescribeLogs": "reads",
    "Cluster.DescribeBrokerConfig": "reads",
    "Cluster.DescribeQuotas": "reads",
    "Fetch.Fetch": "reads",
    "Fetch.ListOffsets": "reads",
    "Fetch.OffsetsForLeaderEpoch": "reads",
    "Fetch.DescribeLags": "reads",
    "Groups.DescribeGroup": "reads",
    "Positions.FetchPositions": "reads",
    "Positions.ListNames": "reads",
    "Produce.Produce": "writes records",
    "Produce.InitProducerId": "a producer begins",
    "Groups.GroupHeartbeat": "a member, for itself",
    "Groups.LeaveGroup": "a member, for itself",
    "Positions.ResolveInitial": "a reader begins, and changes nothing that is there",
    "Controller.Session": "a broker; the administrative acts in it are audited one by one",
    "Replica.Fetch": "a follower reads",
    "Replica.DescribeLags": "a broker reads",
    "Replica.JoinTransaction": "a broker, for a producer that writes",
    "Replica.FindTransaction": "a broker, for a person who ends what hangs",
    "Replica.WriteMarkers": "a broker, for a transaction that is decided",
    "SharedTransactions.OpenSharedTransaction": "an application begins to write",
    "SharedTransactions.JoinSharedTransaction": "a producer of an application begins",
    "SharedTransactions.RenewSharedTransaction": "an application is alive",
    "SharedTransactions.EndSharedTransaction": "an application ends what it has written",
    "Transactions.EndTransaction": "a producer ends what it has written",
    "Transactions.ListTransactions": "reads",
    "Transactions.DescribeTransaction": "reads",
    "Transactions.ListOpenTransactions": "reads",
}
"""All others, and what they are."""


def test_each_method_is_audited_or_it_is_said_why_not() -> None:
    modules = [
        import_module(f"millrace.proto.v1.{found.name}")
        for found in pkgutil.iter_modules(millrace.proto.v1.__path__)
        if found.name.endswith("_pb2")
    ]
    methods = {
        f"{service.name}.{method.name}"
        for module in modules
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert methods == {*AUDITED, *NOT_AUDITED}
    assert not AUDITED.keys() & NOT_AUDITED.keys()


def test_each_kind_of_administrative_act_is_in_the_audit_log(start_broker: StartBroker) -> None:
    broker = start_broker()
    with SyncAdmin(broker.address, client_id="ops") as admin:
        admin.create_topic("t", partitions=2)
        admin.set_quota("slow", client_id="batch", produce_bytes_per_second=10_000_000)
        with pytest.raises(InvalidQuotaError):
            admin.set_quota("same", client_id="batch", produce_bytes_per_second=20_000_000)
        admin.delete_quota("slow")
        moved, refused = admin.reassign_partitions({("t", 0): [0], ("t", 1): [99]}).values()
        assert moved is None
        assert isinstance(refused, InvalidReplicaAssignmentError)
        admin.elect_leaders()
        with SyncProducer(broker.address) as producer:
            producer.send("t", b"secret value", key=b"secret key", partition=0).result(10)
        admin.delete_records({("t", 0): 1})
        admin.commit_positions("readers", {("t", 0): Position(1)})
        admin.forget_topics("readers", ["t"])
        admin.delete_group("readers")
        with SyncConsumer(broker.address, client_id="member", group="billing") as consumer:
            consumer.subscribe(["t"])
            while not consumer.assignment():
                consumer.poll(100)
            with pytest.raises(UnknownMemberIdError):
                admin.commit_positions("billing", {("t", 0): Position(1)})
        admin.commit_positions("billing", {("t", 0): Position(1), ("t", 1): Position(0)})
        with SyncProducer(broker.address, transactional_id="sales/copy") as producer:
            producer.begin_transaction()
            producer.send("t", b"secret value", partition=1).result(10)
            with pytest.raises(TransactionalIdNotFoundError):
                admin.abort_open_transaction(("t", 1), 7, 0)
            with pytest.raises(TransactionalIdNotFoundError):
                admin.forget_version("sales/copy")
            admin.abort_transaction("sales/copy")
            with pytest.raises(TransactionAbortedError):
                producer.commit_transaction()
        admin.alter_topic("t", set_config={"retention.ms": "1d"})
        with pytest.raises(BrokerInUseError):
            admin.unregister_broker(0)
        with pytest.raises(BrokerIdNotRegisteredError):
            admin.drain_broker(7)
        admin.delete_topic("t")
        admin.undelete_topic("t")
        admin.delete_topic("t")
        admin.purge_topic("t")
    said = changes(broker)
    told = [(line["request"], line["entries"], line["outcome"], line["refused"]) for line in said]
    assert told == [
        ("create_topics", "t", "done", ""),
        ("set_quotas", "slow (client id batch, produce 10000000)", "done", ""),
        (
            "set_quotas",
            "same (client id batch, produce 20000000)",
            "refused",
            "same (client id batch, produce 20000000): INVALID_QUOTA",
        ),
        ("delete_quotas", "slow", "done", ""),
        (
            "reassign_partitions",
            "t-0 (to 0), t-1 (to 99)",
            "partly refused",
            "t-1 (to 99): INVALID_REPLICA_ASSIGNMENT",
        ),
        ("elect_leaders", "", "done", ""),
        ("delete_records", "t-0 before 1", "done", ""),
        ("forget_topics", "readers: t", "done", ""),
        ("delete_positions", "readers", "done", ""),
        (
            "commit_positions",
            "billing: t-0 to 1",
            "refused",
            "billing: t-0 to 1: UNKNOWN_MEMBER_ID",
        ),
        ("commit_positions", "billing: t-0 to 1, billing: t-1 to 0", "done", ""),
        (
            "abort_open_transaction",
            "t-1: producer 7",
            "refused",
            "t-1: producer 7: TRANSACTIONAL_ID_NOT_FOUND",
        ),
        (
            "forget_version",
            "sales/copy",
            "refused",
            "sales/copy: TRANSACTIONAL_ID_NOT_FOUND",
        ),
        ("abort_transaction", "sales/copy", "done", ""),
        ("alter_topics", "t (retention.ms)", "done", ""),
        ("unregister_broker", "broker 0", "refused", "broker 0: BROKER_IN_USE"),
        ("drain_broker", "broker 7", "refused", "broker 7: BROKER_ID_NOT_REGISTERED"),
        ("delete_topics", "t", "done", ""),
        ("undelete_topics", "t", "done", ""),
        ("purge_topics", "t", "done", ""),
    ]
    assert {request for request, *_ in told} == set(AUDITED.values()), "each is tried here"
    assert all(line["logger"] == "millrace.audit" and line["client_id"] == "ops" for line in said)
    assert not broker.log_has("secret")


def test_a_flood_of_refusals_leaves_two_lines_in_ten_seconds(start_broker: StartBroker) -> None:
    broker = start_broker()
    with SyncAdmin(broker.address, client_id="looping") as admin:
        admin.create_topic("t")
        began = time.monotonic()
        for _ in range(300):
            with pytest.raises(TopicAlreadyExistsError):
                admin.create_topic("t")
        tens = int(time.monotonic() - began) // 10
    broker.stop()  # It tells what it has summed up.
    assert len(changes(broker)) <= 1 + 2 + tens, "one, and one more for each ten seconds that ended"
    sums = lines(broker, "audit_repeated")
    assert sum(line["repeats"] for line in sums) + len(changes(broker)) - 1 == 300
    assert {(line["client_id"], line["method"]) for line in sums} == {("looping", "create_topics")}


@pytest.mark.parametrize(("audit", "acts", "refused"), [("refusals", 0, 1), ("none", 0, 0)])
def test_the_audit_log_can_be_switched_off(
    start_broker: StartBroker, audit: str, acts: int, refused: int
) -> None:
    broker = start_broker({"logging.audit": audit})
    with RawClient(broker.address) as client:
        client.create_topic("t")
        with pytest.raises(grpc.RpcError):
            client.cluster.Hello(HelloRequest(), timeout=10, metadata=[(KEY, "two words")])
    broker.stop()
    assert (len(changes(broker)), len(refusals(broker))) == (acts, refused)


def test_what_only_validates_is_no_change(start_broker: StartBroker) -> None:
    broker = start_broker()
    with SyncAdmin(broker.address, client_id="careful") as admin:
        admin.create_topic("t", validate_only=True)
        admin.create_topic("u")
    (line,) = changes(broker)
    assert line["entries"] == "u"


def test_a_client_cannot_speak_for_others(broker: RunningBroker) -> None:
    """Brokers say for whom they ask, on a listener of their own."""
    forged = controller_pb2.SessionRequest(
        request=controller_pb2.ControllerRequest(caller=controller_pb2.Caller(principal="root"))
    )
    with RawClient(broker.address) as client:
        stream = RawStream(client.channel, SESSION)
        stream.send(forged.SerializeToString())
        assert stream.ended_with() is grpc.StatusCode.UNIMPLEMENTED
