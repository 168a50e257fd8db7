"""Positions of Kafka's clients: what they are told while their coordinator cannot answer."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from kafka.protocol.consumer import OffsetDeleteRequest, OffsetFetchRequest
from kafka.protocol.producer import TxnOffsetCommitRequest
from tests.fakes.call_context import CALLER
from tests.fakes.kafka_coordinator import KafkaCoordinator
from tests.fakes.positions_stage import LIMITS, stage
from tests.fakes.stamped_batches import TOPIC_PARTITION
from tests.fakes.topics_view import Topics
from tests.fakes.two_replicas import THERE

from millrace.broker.coordinator.coordinators import CoordinatorLimits
from millrace.broker.guard.callers import GuardedCaller
from millrace.broker.kafka.requests import ApiKey
from millrace.broker.kafka.wire.errors import Code
from millrace.core.coordinator.groups.group import JOINING, Member
from millrace.core.coordinator.groups.membership import Heartbeat
from millrace.core.errors import AccessUndecidedError, MillraceError
from millrace.core.guard.access import Operation, Resource, ResourceKind

STALLED = replace(LIMITS, commit_seconds=0.01)
FULL = replace(LIMITS, waiting_max=0)


class Undecided:
    """A caller of whom nobody knows now whether it may see topics."""

    def __getattr__(self, name: str) -> Any:
        return getattr(CALLER, name)

    async def learn(self, *_: object, **__: object) -> None:
        pass

    def refusal(self, _: Operation, resource: Resource) -> MillraceError | None:
        is_topic = resource.kind is ResourceKind.TOPICS
        return AccessUndecidedError("ask again") if is_topic else None


async def fetched_code(
    broker: KafkaCoordinator, version: int, caller: GuardedCaller = CALLER
) -> int:
    """Return the code of an answer to OffsetFetch, wherever the version has it."""
    topic: Any = OffsetFetchRequest.OffsetFetchRequestTopic
    group: Any = OffsetFetchRequest.OffsetFetchRequestGroup
    topics: Any = OffsetFetchRequest.OffsetFetchRequestGroup.OffsetFetchRequestTopics
    if version >= 8:
        asked = [group(group_id="g", topics=[topics(name="topic", partition_indexes=[0])])]
        message = OffsetFetchRequest(groups=asked)
        answer = await broker.ask(ApiKey.OFFSET_FETCH, version, message, caller)
        return int(answer.groups[0].error_code)
    message = OffsetFetchRequest(group_id="g", topics=[topic(name="topic", partition_indexes=[0])])
    answer = await broker.ask(ApiKey.OFFSET_FETCH, version, message, caller)
    return int(answer.error_code if version >= 2 else answer.topics[0].partitions[0].error_code)


@pytest.mark.parametrize("version", [1, 5, 8])
@pytest.mark.parametrize("limits", [STALLED, FULL])
async def test_a_client_that_fetches_positions_while_nothing_is_committed_tries_again(
    limits: CoordinatorLimits, version: int
) -> None:
    """KAFKA-17267: at COORDINATOR_NOT_AVAILABLE clients give up."""
    async with stage(limits=limits) as the:
        the.lead()
        await the.loaded()
        with suppress(MillraceError):
            await the.resolve(5)
        code = await fetched_code(KafkaCoordinator(the), version)
        assert code == Code.COORDINATOR_LOAD_IN_PROGRESS


@pytest.mark.parametrize("version", [1, 5, 8])
async def test_a_client_whose_rights_nobody_knows_now_fetches_positions_again(version: int) -> None:
    """At another code of a partition Java's consumers end."""
    undecided: Any = Undecided()
    async with stage() as the:
        the.lead()
        await the.loaded()
        code = await fetched_code(KafkaCoordinator(the), version, undecided)
        assert code == Code.COORDINATOR_LOAD_IN_PROGRESS


@pytest.mark.parametrize("version", [1, 5, 8])
async def test_a_client_that_fetches_positions_at_another_broker_looks_for_the_coordinator(
    version: int,
) -> None:
    async with stage() as the:
        the.lead(THERE)
        assert await fetched_code(KafkaCoordinator(the), version) == Code.NOT_COORDINATOR


async def test_a_member_of_kip_848_that_commits_what_it_does_not_own_fails_its_transaction() -> (
    None
):
    """At STALE_MEMBER_EPOCH Java's producer ends; it need only abort."""
    async with stage() as the:
        the.lead()
        await the.loaded()
        beat = Heartbeat("m", JOINING, Member(topics=("topic",)))
        joining = the.positions.runtime.ask(
            TOPIC_PARTITION,
            lambda machine, now: machine.handle_heartbeat("g", beat, Topics(), now),
        )
        joined = asyncio.create_task(joining)
        await the.written(1)
        the.replicate()
        kind: Any = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        position = kind.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=5, committed_metadata=""
        )
        message = TxnOffsetCommitRequest(
            transactional_id="t",
            group_id="g",
            producer_id=1,
            producer_epoch=0,
            generation_id=(await joined).epoch,
            member_id="m",
            group_instance_id=None,
            topics=[kind(name="topic", partitions=[position])],
        )
        answer = await KafkaCoordinator(the).ask(ApiKey.TXN_OFFSET_COMMIT, 3, message)
        assert answer.topics[0].partitions[0].error_code == Code.ILLEGAL_GENERATION


async def test_a_client_that_deletes_positions_at_another_broker_looks_for_the_coordinator() -> (
    None
):
    """Clients look for it by the code of the whole answer alone."""
    kind: Any = OffsetDeleteRequest.OffsetDeleteRequestTopic
    partition = kind.OffsetDeleteRequestPartition(partition_index=0)
    message = OffsetDeleteRequest(group_id="g", topics=[kind(name="topic", partitions=[partition])])
    async with stage() as the:
        the.lead(THERE)
        answer = await KafkaCoordinator(the).ask(ApiKey.OFFSET_DELETE, 0, message)
        assert (answer.error_code, answer.topics) == (Code.NOT_COORDINATOR, [])
