"""Requests of members of groups: what their clients pay."""

from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.consumer import JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from tests.fakes.call_context import CALLER

from millrace.broker.kafka.coordinators.classic_groups import GroupRequests
from millrace.broker.kafka.names import Names
from millrace.broker.kafka.requests import ApiKey, KafkaConnectionState, Request
from millrace.core.coordinator.groups.classic_events import Refusal, Refused
from millrace.core.metadata.model import Listener

JOIN = JoinGroupRequest(
    version=5,
    group_id="g",
    session_timeout_ms=10_000,
    rebalance_timeout_ms=10_000,
    member_id="m",
    group_instance_id=None,
    protocol_type="consumer",
    protocols=[],
)
SYNC = SyncGroupRequest(version=3, group_id="g", generation_id=1, member_id="m", assignments=[])
LEAVE = LeaveGroupRequest(version=2, group_id="g", member_id="m")


class Members:
    """Every request takes a microsecond in another task, and is refused."""

    async def join(self, place: Any, request: Any, spent: Any) -> Refusal:
        spent(1000)
        return Refusal(Refused.UNKNOWN_MEMBER)

    sync = join

    async def leave(self, place: Any, name: str, leaving: Any, spent: Any) -> list[Refused]:
        spent(1000)
        return [Refused.UNKNOWN_MEMBER]


class Places:
    """Any partition is that of any group."""

    async def full(self, name: str, operation: Any, request: Any) -> str:
        return name

    async def place(self, full: str, request: Any) -> None:
        return None

    def known_place(self, full: str) -> None:
        return None


@pytest.mark.parametrize(
    ("key", "version", "message"),
    [(ApiKey.JOIN_GROUP, 5, JOIN), (ApiKey.SYNC_GROUP, 3, SYNC), (ApiKey.LEAVE_GROUP, 2, LEAVE)],
)
async def test_the_client_of_a_member_pays_for_what_other_tasks_do_for_it(
    key: ApiKey, version: int, message: Any
) -> None:
    paid: list[tuple[object, int]] = []
    calls = SimpleNamespace(
        listener=Listener.CLIENTS, charge=lambda caller, time: paid.append((caller, time))
    )
    groups = SimpleNamespace(classic=Members())
    broker = SimpleNamespace(groups=groups, partitions=None, channel=None)
    image = SimpleNamespace(cluster=SimpleNamespace(brokers={}))
    parts: Any = SimpleNamespace(broker=broker, calls=calls, names=Names("default"), image=image)
    requests = GroupRequests(parts)
    places: Any = Places()
    requests._names = places
    connection = KafkaConnectionState("127.0.0.1:7")
    request = Request(key, version, "me", message, CALLER, connection)
    await requests.served()[key].handler(request)
    assert paid == [(CALLER, 1000)]
