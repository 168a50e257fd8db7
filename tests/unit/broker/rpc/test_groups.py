"""What a member of a group is told about topics, where Kubernetes decides what it may see."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.authority import FakeAuthority
from tests.fakes.virtual_loop import in_virtual_time

from millrace.broker.guard.access_reviews import NAMES_MAX, AccessReviews
from millrace.broker.guard.callers import Access, GuardedCaller
from millrace.broker.guard.kubernetes_guard import KubernetesGuard
from millrace.broker.guard.service_accounts import ServiceAccountTokens
from millrace.broker.rpc.groups import GroupsService
from millrace.core.coordinator.groups.group import Current
from millrace.core.guard.decisions import AWAY_MS
from millrace.core.guard.identity import Identity
from millrace.core.ids import TopicId, TopicPartition
from millrace.core.metadata.model import Listener
from millrace.proto.errors import error_to_wire
from millrace.proto.v1 import groups_pb2 as pb
from millrace.proto.v1.common_pb2 import ErrorCode

READER = "system:serviceaccount:shop:reader"
TOPIC = TopicId(b"t" * 16)


class Group:
    """A group with one member.

    Args:
        authority: says what the member may see.
        topics: that it is assigned, by id.
    """

    def __init__(self, authority: FakeAuthority, topics: dict[TopicId, str]) -> None:
        guard = KubernetesGuard(
            ServiceAccountTokens(authority, ""), AccessReviews(authority, "shop", "logs")
        )
        self._caller = GuardedCaller(
            principal=READER,
            client_id="",
            address="",
            listener=Listener.CLIENTS,
            software="",
            access=Access(guard, Identity(READER), None),
        )
        member = SimpleNamespace(topics=tuple(topics.values()))
        group = SimpleNamespace(members={"m": member})
        current = Current(1, frozenset(TopicPartition(topic_id, 0) for topic_id in topics))
        machine = SimpleNamespace(membership=SimpleNamespace(groups={"shop/readers": group}))

        async def heartbeat(*_: object) -> Any:
            epochs = SimpleNamespace(first_later=lambda _: None)
            return SimpleNamespace(current=current, epochs=epochs, waited_seconds=0)

        async def find_or_make(*_: object) -> None:
            return None

        async def ask(_: object, handle: Any) -> Any:
            return handle(machine, 0).response

        groups: Any = SimpleNamespace(
            config=SimpleNamespace(heartbeat_interval_ms=5_000, session_timeout_ms=45_000),
            heartbeat=heartbeat,
            topic_name=topics.__getitem__,
            runtime=SimpleNamespace(ask=ask),
        )
        names: Any = SimpleNamespace(
            find_or_make=find_or_make, error=lambda _, error: error_to_wire(error)
        )
        calls: Any = None
        self._service = GroupsService(groups=groups, names=names, calls=calls)

    async def assigned(self) -> list[str]:
        """Return the topics that a heartbeat tells the member, or the error instead of them."""
        request = pb.GroupHeartbeatRequest(group="shop/readers", member_id="m")
        answer = await self._service._heartbeat(request, self._caller)
        if answer.HasField("error"):
            return [ErrorCode.Name(answer.error.code).removeprefix("ERROR_CODE_")]
        return sorted(topic.topic for topic in answer.assigned)


@pytest.fixture
def authority() -> FakeAuthority:
    return FakeAuthority()


@in_virtual_time
async def test_a_member_keeps_its_partitions_when_a_decision_is_old(
    authority: FakeAuthority,
) -> None:
    """Its other calls may be to other brokers: nobody but the heartbeat asks here."""
    authority.allowed.add(("consume", "topics", "shop", ""))
    group = Group(authority, {TOPIC: "shop/orders"})
    for _ in range(10):
        assert await group.assigned() == ["shop/orders"]
        await asyncio.sleep(5)
    authority.allowed.clear()
    await asyncio.sleep(10)
    assert await group.assigned() == ["TOPIC_AUTHORIZATION_FAILED"]


@in_virtual_time
async def test_a_member_keeps_its_partitions_while_the_api_server_is_away(
    authority: FakeAuthority,
) -> None:
    """G8."""
    authority.allowed.add(("describe", "topics", "shop", "orders"))
    group = Group(authority, {TOPIC: "shop/orders"})
    assert await group.assigned() == ["shop/orders"]
    authority.is_away = True
    for _ in range(AWAY_MS // 5_000 - 1):
        await asyncio.sleep(5)
        assert await group.assigned() == ["shop/orders"]


@in_virtual_time
async def test_a_member_keeps_many_topics_that_it_names(authority: FakeAuthority) -> None:
    topics = {TopicId(number.to_bytes(16)): f"shop/t{number}" for number in range(NAMES_MAX + 6)}
    group = Group(authority, topics)
    for name in topics.values():
        authority.allowed.add(("describe", "topics", "shop", name.removeprefix("shop/")))
    for _ in range(2):  # Not all can be asked about at once: its client tries again.
        assert await group.assigned() == ["ACCESS_UNDECIDED"]
        await asyncio.sleep(1)
    for _ in range(10):
        await asyncio.sleep(5)
        assert await group.assigned() == sorted(topics.values())
