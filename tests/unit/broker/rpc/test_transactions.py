"""What a broker answers about transactional ids when it does not know where they are kept."""

from types import SimpleNamespace
from typing import Any

import pytest

from millrace.broker.rpc.name_partitions import TRANSACTIONS, NamePartitions
from millrace.broker.rpc.transactions import JoinAnswers, TransactionsService
from millrace.core.metadata.model import Listener
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
    transactions: Any = None
    return TransactionsService(
        transactions=transactions, names=names, partitions=partitions, calls=calls
    )


@pytest.mark.parametrize("image", [None, object()])
async def test_a_broker_that_has_not_heard_of_transactions_fences_nobody(image: object) -> None:
    """P55: who ends or joins one has an id, so the topic is there."""
    names: Any = Names()
    transactions: Any = None
    ended = await service(image)._end(pb.EndTransactionRequest(transactional_id="copy"), None)
    joins = JoinAnswers(transactions, names)
    joined = await joins.join(pb.JoinTransactionRequest(transactional_id="copy"))
    for answer in (ended, joined):
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
