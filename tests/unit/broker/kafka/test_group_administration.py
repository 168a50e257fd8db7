"""Groups as Kafka's tools see and delete them."""

from contextlib import suppress
from dataclasses import replace

import pytest
from kafka.protocol.admin import DeleteGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import JoinGroupRequest
from tests.fakes.kafka_coordinator import KafkaCoordinator
from tests.fakes.positions_stage import LIMITS, stage

from millrace.broker.kafka.requests import ApiKey
from millrace.broker.kafka.wire.errors import Code
from millrace.core.errors import RequestTimedOutError


async def test_a_client_that_deletes_a_group_while_commits_stall_looks_for_the_coordinator() -> (
    None
):
    async with stage(limits=replace(LIMITS, commit_seconds=0.01)) as the:
        the.lead()
        await the.loaded()
        with suppress(RequestTimedOutError):
            await the.resolve(5, "g")
        await the.written(1)
        the.replicate()
        message = DeleteGroupsRequest(groups_names=["g"])
        answer = await KafkaCoordinator(the).ask(ApiKey.DELETE_GROUPS, 2, message)
        assert answer.results[0].error_code == Code.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("namespace", ["default", "pay"])
async def test_a_group_with_a_slash_in_its_name_is_listed(namespace: str) -> None:
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    joining = JoinGroupRequest(
        group_id="a/b",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[protocol],
    )
    listing = ListGroupsRequest(states_filter=[], types_filter=[])
    async with stage() as the:
        the.lead()
        await the.loaded()
        broker = KafkaCoordinator(the, namespace)
        joined = await broker.ask(ApiKey.JOIN_GROUP, 9, joining)
        assert joined.error_code == Code.MEMBER_ID_REQUIRED
        listed = await broker.ask(ApiKey.LIST_GROUPS, 5, listing)
        assert [group.group_id for group in listed.groups] == ["a/b"]
        elsewhere = KafkaCoordinator(the, "elsewhere")
        assert (await elsewhere.ask(ApiKey.LIST_GROUPS, 5, listing)).groups == []
