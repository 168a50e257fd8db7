"""Groups as Kafka's tools see and delete them."""

from contextlib import suppress
from dataclasses import replace

from kafka.protocol.admin import DeleteGroupsRequest
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
