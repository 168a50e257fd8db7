"""Pages, parts and pauses: whatever a broker says, a client neither asks for ever nor at once."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from google.protobuf.message import Message
from tests.fakes.virtual_loop import in_virtual_time

from millrace.client import Admin, SharedTransaction
from millrace.client._cluster.connection import Connection
from millrace.core.errors import UnknownServerError
from millrace.proto.v1 import (
    cluster_pb2,
    groups_pb2,
    positions_pb2,
    shared_transactions_pb2,
    transactions_pb2,
)
from millrace.proto.v1.common_pb2 import HelloResponse

ASKED_MAX = 20
NAMES = positions_pb2.ListNamesResponse(
    names=["a", "b"],
    kinds=[positions_pb2.NAME_KIND_CONSUMER] * 2,
    members=[0, 0],
    has_more=True,
    partitions=1,
)
MEMBERS = groups_pb2.DescribeGroupResponse(
    epoch=1, members=[groups_pb2.DescribedMember(member_id="m")], has_more=True
)
IDS = transactions_pb2.ListTransactionsResponse(
    transactions=[transactions_pb2.ListedTransaction(transactional_id="x")],
    has_more=True,
    partitions=1,
)
POSITIONS = positions_pb2.FetchPositionsResponse(
    positions=[
        positions_pb2.Position(topic_partition={"topic_id": bytes(16), "partition": 1}, offset=1)
    ],
    has_more=True,
)
LISTINGS: dict[str, tuple[Message, Callable[[Admin], Awaitable[object]]]] = {
    "ListNames": (NAMES, lambda admin: admin.list_groups()),
    "DescribeGroup": (MEMBERS, lambda admin: admin.describe_group("g")),
    "ListTransactions": (IDS, lambda admin: admin.list_transactions()),
    "FetchPositions": (POSITIONS, lambda admin: admin.fetch_positions("g")),
}


class Repeating:
    """The channel to a broker that gives the same answer to each request of a method."""

    def __init__(self, **answers: Message) -> None:
        self._answers = answers
        self.asked = 0

    def unary_unary(self, method: str, *_: Any, **__: Any) -> Any:
        async def calling(request: object) -> Message:
            del request
            self.asked += 1
            assert self.asked <= ASKED_MAX, "it is asked for ever"
            return self._answers.get(method.rsplit("/", 1)[1], cluster_pb2.GetMetadataResponse())

        return calling

    def stream_stream(self, *_: Any, **__: Any) -> None:
        """Nothing here opens a stream."""

    async def close(self) -> None:
        """End."""


async def asked(channel: Any, call: Callable[[Admin], Awaitable[object]]) -> object:
    admin = Admin("h:1", request_timeout_ms=300, metadata_timeout_ms=100)

    async def connect(address: str) -> Connection:
        return Connection(address, channel, HelloResponse(broker_id=1))

    cluster: Any = admin._cluster
    cluster._connect = connect
    try:
        return await call(admin)
    finally:
        await admin.close()


@pytest.mark.parametrize("method", LISTINGS)
@in_virtual_time
async def test_a_broker_that_repeats_a_page_is_asked_no_more(method: str) -> None:
    page, call = LISTINGS[method]
    channel = Repeating(**{method: page})
    with pytest.raises(UnknownServerError, match="says that there is more, and gives the same"):
        await asked(channel, call)


@pytest.mark.parametrize("method", ["ListNames", "ListTransactions"])
@in_virtual_time
async def test_a_broker_that_speaks_of_too_many_parts_is_asked_no_more(method: str) -> None:
    page, call = LISTINGS[method]
    first = type(page)(partitions=4_000_000_000)
    with pytest.raises(UnknownServerError, match="4000000000 parts"):
        await asked(Repeating(**{method: first}), call)


@pytest.mark.parametrize(
    ("said", "taken"), [(0, 100), (333, 333), (1_200_000, 1_200_000), (2**32 - 1, 3_600_000)]
)
@in_virtual_time
async def test_a_lease_is_renewed_with_pauses(said: int, taken: int) -> None:
    """T23: participants of a job would else ask in a loop, or never."""
    answer = shared_transactions_pb2.OpenSharedTransactionResponse(number=1, renew_ms=said)
    channel = Repeating(OpenSharedTransaction=answer)
    shared = await asked(channel, lambda admin: admin.open_shared_transaction("x", "run"))
    assert isinstance(shared, SharedTransaction)
    assert shared.renew_ms == taken
