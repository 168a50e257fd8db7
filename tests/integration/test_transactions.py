"""Transactions whose coordinators and leaders are three brokers, of which some die."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.arch.repository import ROOT
from tests.integration.running_broker import RunningBroker, wait_until
from tests.integration.running_cluster import RunningCluster, read_all
from tests.releases.last import unpacked

from millrace.client import (
    InvalidTransactionStateError,
    MillraceError,
    Position,
    ProducerFencedError,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
    TransactionAbortedError,
    UnsupportedFeatureError,
)
from millrace.proto.v1 import common_pb2 as E
from millrace.proto.v1 import produce_pb2, produce_pb2_grpc, transactions_pb2_grpc
from millrace.proto.v1 import transactions_pb2 as pb

TOPIC = "__transactions"
ID = "copy"
FEW_EPOCHS = ROOT / "tests" / "fakes" / "few_epochs"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    # All ids fall to one partition, so that the tests know who coordinates them.
    settings = {"cluster.transactions_partitions": 1, "cluster.positions_partitions": 1}
    with RunningCluster(tmp_path, settings) as running:
        yield running


def coordinator(admin: SyncAdmin) -> int:
    return admin.describe_topic(TOPIC).partitions[0].leader


class Asking:
    """Asks the coordinator by hand, whichever broker that is now."""

    def __init__(self, cluster: RunningCluster, admin: SyncAdmin) -> None:
        self._cluster = cluster
        self._admin = admin

    def ask_leader(self, topic: str, method: str, request: Any) -> Any:
        """Ask the leader of a topic's only partition, naming the partition."""
        described = self._admin.describe_topic(topic)
        request.topic_partition.topic_id = described.topic_id
        return self._ask(described.partitions[0].leader, method, request)

    def ask(self, method: str, request: Any) -> Any:
        return self._ask(coordinator(self._admin), method, request)

    def _ask(self, broker: int, method: str, request: Any) -> Any:
        address = self._cluster[broker].address
        with grpc.insecure_channel(address) as channel:
            stub = transactions_pb2_grpc.TransactionsStub(channel)  # type: ignore[no-untyped-call]
            return getattr(stub, method)(request, timeout=20)

    def describe(self, name: str = ID) -> pb.DescribeTransactionResponse:
        response: pb.DescribeTransactionResponse = self.ask(
            "DescribeTransaction", pb.DescribeTransactionRequest(transactional_id=name)
        )
        return response

    def until(self, state: int, name: str = ID) -> pb.DescribeTransactionResponse:
        described: list[pb.DescribeTransactionResponse] = []

        def is_there() -> bool:
            described.append(self.describe(name))
            return described[-1].state == state

        wait_until(is_there, f"the transaction of {name} to come to state {state}")
        return described[-1]


def committed(cluster: RunningCluster, topic: str, partitions: int) -> list[bytes]:
    """Return the values of all records that are committed, up to a last one in each partition."""
    last = b"~"
    with (
        SyncProducer(cluster.bootstrap, transactional_id="the last one") as producer,
        producer.transaction() as t,
    ):
        for partition in range(partitions):
            t.send(topic, last, partition=partition)
    found: list[bytes] = []
    with SyncConsumer(cluster.bootstrap) as consumer:
        consumer.assign([topic])
        until = time.monotonic() + 30
        while found.count(last) < partitions:
            assert time.monotonic() < until, "the consumer does not come to the end"
            found += [record.value for record in consumer.poll(100)]
    return sorted(value for value in found if value != last)


def test_what_is_committed_is_read_and_what_is_aborted_is_not(cluster: RunningCluster) -> None:
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topic("t", partitions=6, replication_factor=3)
        asking = Asking(cluster, admin)
        with SyncProducer(cluster.bootstrap, transactional_id=ID) as producer:
            for number in range(5):
                with producer.transaction() as t:
                    for partition in range(6):
                        t.send("t", b"c%d-%d" % (number, partition), partition=partition)
                producer.begin_transaction()
                for partition in range(6):
                    producer.send("t", b"a%d-%d" % (number, partition), partition=partition)
                producer.flush()
                producer.abort_transaction()
        described = asking.until(pb.TRANSACTION_STATE_COMPLETE_ABORT)
        assert described.ending == pb.TRANSACTION_ENDING_PRODUCER
        assert not described.partitions
        assert committed(cluster, "t", 6) == sorted(
            b"c%d-%d" % (number, partition) for number in range(5) for partition in range(6)
        )
        assert TOPIC not in admin.list_topics()


def test_transactions_go_on_whoever_dies(cluster: RunningCluster) -> None:
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topic("t", partitions=3, replication_factor=3)
        expected = []
        with SyncProducer(cluster.bootstrap, transactional_id=ID) as producer:
            producer.init_transactions()
            for number in range(6):
                with producer.transaction() as t:
                    for partition in range(3):
                        t.send("t", b"%d-%d" % (number, partition), partition=partition)
                        expected.append(b"%d-%d" % (number, partition))
                    producer.flush()
                    killed = cluster[coordinator(admin)]
                    killed.kill()
                killed.start()
        assert committed(cluster, "t", 3) == sorted(expected)


def test_a_second_producer_fences_the_first_and_ends_what_it_left(
    cluster: RunningCluster,
) -> None:
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topic("t", partitions=1, replication_factor=3)
        first = SyncProducer(cluster.bootstrap, transactional_id=ID)
        first.begin_transaction()
        first.send("t", b"first")
        first.flush()
        with SyncProducer(cluster.bootstrap, transactional_id=ID) as second:
            with second.transaction() as t:
                t.send("t", b"second")
            with pytest.raises(ProducerFencedError):
                first.commit_transaction()
            assert committed(cluster, "t", 1) == [b"second"]
        first.close()


def test_what_is_open_for_too_long_is_aborted_and_its_producer_begins_again(
    cluster: RunningCluster,
) -> None:
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topic("t", partitions=1, replication_factor=3)
        asking = Asking(cluster, admin)
        with SyncProducer(
            # It must not be over before it was seen, also when the machine pauses.
            cluster.bootstrap,
            transactional_id=ID,
            transaction_timeout_ms=6000,
        ) as producer:
            producer.begin_transaction()
            producer.send("t", b"slow")
            producer.flush()
            assert asking.describe().state == pb.TRANSACTION_STATE_ONGOING
            described = asking.until(pb.TRANSACTION_STATE_COMPLETE_ABORT)
            assert described.ending == pb.TRANSACTION_ENDING_TIMEOUT
            with pytest.raises(TransactionAbortedError):
                producer.commit_transaction()
            with producer.transaction() as t:
                t.send("t", b"again")
            assert committed(cluster, "t", 1) == [b"again"]
        broker = cluster[coordinator(admin)]
        assert broker.log_has("transaction_timed_out")
        metrics = broker.metrics()
        assert metrics['millrace_transactions_aborted_total{reason="timeout"}'] == 1
        assert (
            metrics["millrace_transactions_committed_total"] == 2
        )  # The last one is the reader's.


def test_a_person_lists_and_aborts_transactions(cluster: RunningCluster) -> None:
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topic("t", partitions=2, replication_factor=3)
        asking = Asking(cluster, admin)
        with SyncProducer(cluster.bootstrap, transactional_id="sales/x") as producer:
            producer.begin_transaction()
            producer.send("t", b"open", partition=1)
            producer.flush()
            listed = asking.ask("ListTransactions", pb.ListTransactionsRequest())
            (found,) = listed.transactions
            assert (found.transactional_id, found.state) == (
                "sales/x",
                pb.TRANSACTION_STATE_ONGOING,
            )
            assert listed.partitions == 1
            described = asking.describe("sales/x")
            assert [(p.topic, p.topic_partition.partition) for p in described.partitions] == [
                ("t", 1)
            ]
            response = asking.ask(
                "AbortTransaction", pb.AbortTransactionRequest(transactional_id="sales/x")
            )
            assert not response.HasField("error")
            asking.until(pb.TRANSACTION_STATE_COMPLETE_ABORT, "sales/x")
            with pytest.raises(TransactionAbortedError):
                producer.commit_transaction()
        response = asking.describe("nobody")
        assert response.error.code == E.ERROR_CODE_TRANSACTIONAL_ID_NOT_FOUND


def test_an_open_transaction_of_one_partition_is_listed_and_not_ended_by_hand_before_its_id(
    cluster: RunningCluster,
) -> None:
    """P54, T8: a coordinator ends what it knows, in all partitions alike."""
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topic("t", partitions=1, replication_factor=3)
        asking = Asking(cluster, admin)
        with SyncProducer(cluster.bootstrap, transactional_id=ID) as producer:
            producer.begin_transaction()
            producer.send("t", b"open")
            producer.flush()
            listed = asking.ask_leader(
                "t", "ListOpenTransactions", pb.ListOpenTransactionsRequest()
            )
            (found,) = listed.transactions
            assert (found.first_offset, listed.last_stable_offset) == (0, 0)
            assert found.producer_id == asking.describe().producer_id
            another = pb.AbortOpenTransactionRequest(producer_id=found.producer_id, first_offset=7)
            refused = asking.ask_leader("t", "AbortOpenTransaction", another)
            assert refused.error.code == E.ERROR_CODE_TRANSACTIONAL_ID_NOT_FOUND
            with pytest.raises(InvalidTransactionStateError, match=f"transaction abort {ID}"):
                admin.abort_open_transaction(("t", 0), found.producer_id, 0)
            producer.commit_transaction()
        assert committed(cluster, "t", 1) == [b"open"]


def test_a_producer_goes_on_with_another_id_when_its_epochs_have_run_out(tmp_path: Path) -> None:
    """P47: and each transaction counts, whichever id it had."""
    wrapper = ["env", f"PYTHONPATH={FEW_EPOCHS}"]
    with (
        RunningBroker(tmp_path, wrapper=wrapper) as broker,
        SyncAdmin(broker.address) as admin,
        SyncProducer(broker.address, transactional_id=ID) as producer,
    ):
        admin.create_topic("t", 1)
        identities = []
        for number in range(7):
            producer.begin_transaction()
            producer.send("t", b"%d" % number)
            producer.flush()
            found = admin.list_open_transactions([("t", 0)])["t", 0]
            assert not isinstance(found, MillraceError)
            (opened,) = found
            identities.append((opened.producer_id, opened.producer_epoch))
            if number % 3:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
        assert {epoch for _, epoch in identities} == {0, 1}, "the largest one only fences"
        assert len({producer_id for producer_id, _ in identities}) == 4
        assert len(set(identities)) == 7
        expected = [b"%d" % number for number in range(7) if number % 3]
        assert read_all(broker.address, "t", len(expected)) == expected


def test_positions_count_with_the_transaction_and_wait_for_it(cluster: RunningCluster) -> None:
    """P56: a member copies, and another one begins where the last committed copy ended."""
    with SyncAdmin(cluster.bootstrap) as admin, SyncProducer(cluster.bootstrap) as plain:
        for topic in ("in", "out"):
            admin.create_topic(topic, partitions=1, replication_factor=3)
        for number in range(10):
            plain.send("in", b"%d" % number)
        plain.flush()
        settings: Any = {"group": "copier", "enable_auto_commit": False}
        with (
            SyncProducer(cluster.bootstrap, transactional_id=ID) as producer,
            SyncConsumer(cluster.bootstrap, auto_offset_reset="earliest", **settings) as consumer,
        ):
            consumer.subscribe(["in"])
            copied = 0
            while copied < 10:
                records = consumer.poll(1000)
                if records:
                    with producer.transaction(consumer) as t:
                        for record in records:
                            t.send("out", record.value)
                        t.commit_positions(consumer)
                    copied += len(records)
            wait_until(
                lambda: admin.fetch_positions("copier").get(("in", 0), Position(0)).offset == 10,
                "the positions to count",
            )
        assert committed(cluster, "out", 1) == [b"%d" % number for number in range(10)]


def test_members_that_poll_only_within_transactions_share_a_topic(cluster: RunningCluster) -> None:
    """The first one has all partitions when the second one joins, and gives two of four up."""
    admin = SyncAdmin(cluster.bootstrap)
    ends = threading.Event()
    assigned: dict[str, int] = {}

    def copy(name: str) -> None:
        with (
            SyncProducer(cluster.bootstrap, transactional_id=name) as producer,
            SyncConsumer(
                cluster.bootstrap,
                group="copier",
                enable_auto_commit=False,
                auto_offset_reset="earliest",
            ) as consumer,
        ):
            consumer.subscribe(["in"])
            while not ends.is_set():
                with producer.transaction(consumer) as t:
                    for record in consumer.poll(100):
                        t.send("out", record.value)
                    t.commit_positions(consumer)
                assigned[name] = len(consumer.assignment())

    with admin, SyncProducer(cluster.bootstrap) as plain, ThreadPoolExecutor() as threads:
        admin.create_topic("in", partitions=4, replication_factor=3)
        admin.create_topic("out", partitions=1, replication_factor=3)
        try:
            members = [threads.submit(copy, "first")]
            wait_until(lambda: assigned.get("first") == 4, "the first member to have all", 40)
            members.append(threads.submit(copy, "second"))
            sent = 0

            def is_shared() -> bool:
                nonlocal sent
                plain.send("in", b"%d" % sent, partition=sent % 4)
                sent += 1
                return assigned == {"first": 2, "second": 2}

            wait_until(is_shared, "both members to have two partitions", 40)
            plain.flush()
            wait_until(
                lambda: (
                    sum(found.offset for found in admin.fetch_positions("copier").values()) >= sent
                ),
                "all to be copied",
            )
        finally:
            ends.set()
        for member in members:
            member.result(60)
        copied = sorted(committed(cluster, "out", 1), key=int)
        assert copied == [b"%d" % number for number in range(sent)]


def test_transactions_begin_when_the_last_broker_is_upgraded_and_none_goes_back(
    tmp_path: Path,
) -> None:
    """T16: with brokers of the last release, which know nothing of transactions."""
    release = unpacked(tmp_path / "release")
    cluster = RunningCluster(tmp_path)
    earlier = cluster[2]
    earlier.release = release
    with cluster, SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topic("t", partitions=3, replication_factor=3)
        at_first = ",".join(broker.address for broker in cluster.brokers[:2])
        settings: Any = {"transactional_id": ID, "request_timeout_ms": 5000}
        with (
            SyncProducer(at_first, **settings) as producer,
            pytest.raises(UnsupportedFeatureError, match="broker-2"),
        ):
            producer.init_transactions()
        assert TOPIC not in admin.list_topics(internal=True)
        assert earlier.stop() == 0, earlier.log_end()
        earlier.release = None
        earlier.start()
        with SyncProducer(cluster.bootstrap, transactional_id=ID) as producer:
            wait_until(lambda: can_begin(producer), "the upgraded broker to count")
            with producer.transaction() as t:
                for partition in range(3):
                    t.send("t", b"%d" % partition, partition=partition)
        earlier.stop()
        earlier.release = release
        with pytest.raises(RuntimeError, match="'__transactions': upgrade it"):
            earlier.start()
        earlier.release = None
        earlier.start()
        assert committed(cluster, "t", 3) == [b"0", b"1", b"2"]


def can_begin(producer: SyncProducer) -> bool:
    """Whether the brokers begin transactions by now."""
    try:
        producer.init_transactions()
    except UnsupportedFeatureError:
        return False
    return True


def test_bad_requests_are_told_what_is_wrong_and_others_whom_to_ask(
    cluster: RunningCluster,
) -> None:
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topic("t", partitions=1, replication_factor=3)
        asking = Asking(cluster, admin)

        def init(broker: int, **fields: Any) -> produce_pb2.InitProducerIdResponse:
            request = produce_pb2.InitProducerIdRequest(**fields)
            with grpc.insecure_channel(cluster[broker].address) as channel:
                stub = produce_pb2_grpc.ProduceStub(channel)  # type: ignore[no-untyped-call]
                response: produce_pb2.InitProducerIdResponse = stub.InitProducerId(
                    request, timeout=20
                )
                return response

        for name in ("x" * 1_000_000, "a\nb", "Sales/x", "sales/"):
            error = init(0, transactional_id=name, transaction_timeout_ms=1000).error
            assert error.code == E.ERROR_CODE_INVALID_TRANSACTIONAL_ID
            assert len(error.message) < 1000
        assert TOPIC not in admin.list_topics(internal=True)
        with SyncProducer(cluster.bootstrap, transactional_id=ID) as producer:
            producer.init_transactions()
        leader = coordinator(admin)
        for timeout_ms in (0, 900_001, 2**32 - 1):
            error = init(leader, transactional_id=ID, transaction_timeout_ms=timeout_ms).error
            assert error.code == E.ERROR_CODE_INVALID_TRANSACTION_TIMEOUT
        other = (leader + 1) % 3
        error = init(other, transactional_id=ID, transaction_timeout_ms=1000).error
        assert error.code == E.ERROR_CODE_NOT_LEADER
        assert error.leader.address == cluster[leader].address
        for name in ("nobody", ID):
            error = asking.ask(
                "EndTransaction",
                pb.EndTransactionRequest(transactional_id=name, producer_id=10**9),
            ).error
            assert error.code == E.ERROR_CODE_PRODUCER_FENCED
        error = asking.ask("ListTransactions", pb.ListTransactionsRequest(partition=9)).error
        assert error.code == E.ERROR_CODE_MALFORMED_REQUEST
        described = asking.describe()
        end = pb.EndTransactionRequest(
            transactional_id=f"default/{ID}",
            producer_id=described.producer_id,
            producer_epoch=described.producer_epoch,
            committed=True,
        )
        error = asking.ask("EndTransaction", end).error
        assert error.code == E.ERROR_CODE_INVALID_TRANSACTION_STATE
        assert "nothing to commit" in error.message


def test_a_topic_that_was_deleted_gets_the_end_of_its_transactions_when_it_is_back(
    cluster: RunningCluster,
) -> None:
    """T8: and delays nobody meanwhile."""
    with SyncAdmin(cluster.bootstrap) as admin:
        for topic in ("t", "u"):
            admin.create_topic(topic, partitions=1, replication_factor=3)
        asking = Asking(cluster, admin)
        with SyncProducer(cluster.bootstrap, transactional_id=ID) as producer:
            producer.begin_transaction()
            producer.send("t", b"stays")
            producer.send("u", b"comes back")
            producer.flush()
            admin.delete_topic("u")
            producer.commit_transaction()
            asking.until(pb.TRANSACTION_STATE_COMPLETE_COMMIT)
            wrote = asking.describe()
            with producer.transaction() as t:
                t.send("t", b"goes on")
        assert committed(cluster, "t", 1) == [b"goes on", b"stays"]

        def owed() -> list[int]:
            request = pb.ListTransactionsRequest(producer_id=wrote.ended_producer_id)
            return list(asking.ask("ListTransactions", request).owed_epochs)

        assert owed() == [wrote.ended_producer_epoch]  # So nobody takes it for a hanging one.
        admin.undelete_topic("u")
        assert committed(cluster, "u", 1) == [b"comes back"]
        wait_until(lambda: not owed(), "its end is written")
