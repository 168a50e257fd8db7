"""What a broker answers about transactional ids when it does not know where they are kept."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.authority import FakeAuthority
from tests.fakes.call_context import CALLER
from tests.fakes.virtual_loop import in_virtual_time

from millrace.broker.guard.access_reviews import AccessReviews
from millrace.broker.guard.callers import Access
from millrace.broker.guard.kubernetes_guard import KubernetesGuard
from millrace.broker.guard.service_accounts import ServiceAccountTokens
from millrace.broker.rpc import transactions as served
from millrace.broker.rpc.name_partitions import TRANSACTIONS, NamePartitions
from millrace.broker.rpc.transactions import JoinAnswers, TransactionsService
from millrace.core.coordinator.transactions.transaction import Producer, State
from millrace.core.errors import InvalidTransactionStateError
from millrace.core.guard.identity import Identity
from millrace.core.ids import ProducerEpoch, ProducerId, TopicId, TopicPartition
from millrace.core.metadata.model import Listener
from millrace.core.topics import TopicName
from millrace.proto.errors import error_to_wire
from millrace.proto.v1 import common_pb2 as E
from millrace.proto.v1 import transactions_pb2 as pb


class Names(NamePartitions):
    """The broker has not heard of `__transactions`."""

    def __init__(self) -> None:
        self._kept = TRANSACTIONS

    def topic(self) -> None:
        return None

    def find(self, _: str) -> None:
        return None

    def error(self, _: str, error: Any) -> E.Error:
        return error_to_wire(error, is_write=True)


def service(image: object) -> Any:
    names: Any = Names()
    partitions: Any = SimpleNamespace(image=image)
    calls: Any = SimpleNamespace(listener=Listener.CLIENTS)
    nobody: Any = None
    return TransactionsService(
        transactions=nobody, names=names, partitions=partitions, finder=nobody, calls=calls
    )


@pytest.mark.parametrize("image", [None, object()])
async def test_a_broker_that_has_not_heard_of_transactions_fences_nobody(image: object) -> None:
    """P55: who ends or joins one has an id, so the topic is there."""
    names: Any = Names()
    transactions: Any = None
    ended = await service(image)._end(pb.EndTransactionRequest(transactional_id="copy"), None)
    joins = JoinAnswers(transactions, names)
    joined = await joins.join(pb.JoinTransactionRequest(transactional_id="copy"))
    place = E.TopicPartition(topic_id=bytes(16))
    found = await joins.find(pb.FindTransactionRequest(topic_partition=place))
    for answer in (ended, joined, found):
        assert answer.error.code == E.ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS


@pytest.mark.parametrize(
    ("image", "code"),
    [
        (None, E.ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS),
        (object(), E.ERROR_CODE_TRANSACTIONAL_ID_NOT_FOUND),
    ],
)
async def test_an_id_is_unknown_where_the_metadata_say_that_there_are_none(
    image: object, code: int
) -> None:
    request = pb.DescribeTransactionRequest(transactional_id="copy")
    assert (await service(image)._describe(request, None)).error.code == code


@in_virtual_time
async def test_what_the_caller_may_not_describe_is_hidden_and_not_gone() -> None:
    """Of rights that nobody has asked for yet."""
    authority = FakeAuthority()
    authority.allowed.add(("describe", "topics", "shop", ""))
    authority.allowed.add(("describe", "groups", "shop", "readers"))
    tokens = ServiceAccountTokens(authority, "logs.shop.millrace.dev")
    guard = KubernetesGuard(tokens, AccessReviews(authority, "shop", "logs"))
    reader = "system:serviceaccount:shop:reader"
    access = Access(guard, Identity(reader, frozenset()), None)
    caller = replace(CALLER, principal=reader, access=access)
    orders, secret, gone = (TopicId(letter * 16) for letter in (b"o", b"s", b"g"))
    topics = {
        orders: SimpleNamespace(name=TopicName("shop", "orders")),
        secret: SimpleNamespace(name=TopicName("other", "secret")),
    }
    transaction = SimpleNamespace(
        state=State.EMPTY,
        producer=Producer(ProducerId(7), ProducerEpoch(2)),
        timeout_ms=60_000,
        ended=None,
        shared=None,
    )
    described: Any = SimpleNamespace(
        record=SimpleNamespace(transaction=transaction),
        partitions={
            TopicPartition(orders, 0): None,
            TopicPartition(secret, 1): "other/secret-1 has no leader",
            TopicPartition(gone, 2): None,
        },
        groups={"shop/readers": None, "other/secret": "other/secret is away"},
        now=0,
        participants=(),
    )
    response = await service(SimpleNamespace(topics_by_id=topics))._described(described, caller)
    assert [(found.topic, found.is_hidden, found.is_owed) for found in response.partitions] == [
        ("shop/orders", False, False),
        ("", True, True),
        ("", False, False),
    ]
    assert [(found.group, found.is_hidden) for found in response.groups] == [
        ("shop/readers", False),
        ("", True),
    ]
    assert b"secret" not in response.SerializeToString()


class Leader:
    """Of a partition in which producer 7 has a transaction open, in epoch 2."""

    def open_epoch(self, producer_id: int, first_offset: int) -> int:
        assert (producer_id, first_offset) == (7, 40)
        return 2

    def abort_marker(self, *_: int) -> str:
        return "the marker"


@pytest.mark.parametrize("hangs", [True, False])
async def test_a_transaction_is_ended_by_hand_only_if_no_coordinator_knows_it(
    monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    """T8: else its records might count in another partition, and not here."""
    written: list[object] = []
    asked: list[object] = []

    async def write(_: object, markers: list[object]) -> list[None]:
        written.extend(markers)
        return [None]

    async def check_hanging(_: object, writer: object) -> None:
        asked.append(writer)
        if not hangs:
            raise InvalidTransactionStateError("it is known")

    monkeypatch.setattr(served, "write_markers", write)
    ending = service(None)
    partition = SimpleNamespace(leader=Leader())
    ending._partitions = SimpleNamespace(image=None, get=lambda _: partition, named=str)
    ending._finder = SimpleNamespace(check_hanging=check_hanging)
    audit = SimpleNamespace(on_act=lambda *_: None)
    ending._calls = SimpleNamespace(audit=audit)
    request = pb.AbortOpenTransactionRequest(
        topic_partition=E.TopicPartition(topic_id=bytes(16)), producer_id=7, first_offset=40
    )
    answer = await ending._abort_open(request, None)
    assert asked == [(7, 2)]
    assert written == (["the marker"] if hangs else [])
    assert answer.HasField("error") is not hangs
