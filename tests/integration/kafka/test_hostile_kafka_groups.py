"""Requests about groups that no client sends: each is answered as Kafka's clients understand it."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from kafka.protocol.admin import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    DescribeTransactionsRequest,
    ListGroupsRequest,
)
from kafka.protocol.consumer import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from kafka.protocol.metadata import FindCoordinatorRequest
from tests.integration.kafka.by_hand import Hand, asked, wait_for_coordinators
from tests.integration.kafka.ends import KAFKA
from tests.integration.running_broker import RunningBroker, wait_until

from millrace.broker.kafka.requests import ApiKey
from millrace.broker.kafka.wire.consumer_group_messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)
from millrace.broker.kafka.wire.errors import Code
from millrace.client import SyncAdmin

HEARTBEAT: Any = ConsumerGroupHeartbeatRequest
DESCRIBE: Any = ConsumerGroupDescribeRequest
MANY: Final = [f"many-{number}" for number in range(1500)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    settings: dict[str, object] = {
        **KAFKA,
        "groups.classic_rebalance_delay_ms": 0,
        "groups.members_max": 3,
    }
    with RunningBroker(tmp_path_factory.mktemp("hostile_groups"), settings) as running:
        with Hand(running) as hand:
            wait_for_coordinators(hand)
        yield running


def joining(group: str, member_id: str = "", **more: Any) -> Any:
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    said = {
        "group_id": group,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [protocol],
        **more,
    }
    return JoinGroupRequest(**said)


def join(wire: Hand, group: str, version: int = 9, **more: Any) -> Any:
    """Let a member join with the id that it is given."""
    first = wire.ask(ApiKey.JOIN_GROUP, version, joining(group, **more))
    if first.error_code != Code.MEMBER_ID_REQUIRED:
        return first
    return wire.ask(ApiKey.JOIN_GROUP, version, joining(group, first.member_id, **more))


@pytest.mark.parametrize("version", range(10))
def test_every_version_of_joining_and_leaving_works(broker: RunningBroker, version: int) -> None:
    group = f"versions-{version}"
    with Hand(broker) as one:
        joined = join(one, group, version)
        assert (joined.error_code, joined.generation_id) == (0, 1)
        assert joined.leader == joined.member_id
        assert [member.member_id for member in joined.members] == [joined.member_id]
        assigned = SyncGroupRequest.SyncGroupRequestAssignment(
            member_id=joined.member_id, assignment=b"all"
        )
        synced = one.ask(
            ApiKey.SYNC_GROUP,
            min(version, 5),
            SyncGroupRequest(
                group_id=group,
                generation_id=1,
                member_id=joined.member_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=[assigned],
            ),
        )
        assert (synced.error_code, bytes(synced.assignment)) == (0, b"all")
        beat = HeartbeatRequest(group_id=group, generation_id=1, member_id=joined.member_id)
        assert one.ask(ApiKey.HEARTBEAT, min(version, 4), beat).error_code == 0
        identity = LeaveGroupRequest.MemberIdentity(member_id=joined.member_id)
        leaving = LeaveGroupRequest(group_id=group, member_id=joined.member_id, members=[identity])
        left = one.ask(ApiKey.LEAVE_GROUP, min(version, 5), leaving)
        assert left.error_code == 0
        assert all(member.error_code == 0 for member in left.members or ())
        asked = DescribeGroupsRequest(groups=[group], include_authorized_operations=True)
        (described,) = one.ask(ApiKey.DESCRIBE_GROUPS, min(version, 6), asked).groups
        assert (described.error_code, described.group_state) == (0, "Empty")
        assert described.protocol_type == "consumer"
        if version >= 3:
            assert described.authorized_operations == {3, 6, 8}
        assert one.ask(ApiKey.HEARTBEAT, min(version, 4), beat).error_code == (
            Code.UNKNOWN_MEMBER_ID
        )


@pytest.mark.parametrize("group", ["", "x" * 300, "line\nbreak", "\x00"])
def test_what_is_no_name_of_a_group_is_refused(broker: RunningBroker, group: str) -> None:
    with Hand(broker) as one:
        assert one.ask(ApiKey.JOIN_GROUP, 9, joining(group)).error_code == Code.INVALID_GROUP_ID
        beat = HeartbeatRequest(group_id=group, generation_id=1, member_id="m")
        assert one.ask(ApiKey.HEARTBEAT, 4, beat).error_code == Code.INVALID_GROUP_ID
        sync = SyncGroupRequest(
            group_id=group,
            generation_id=1,
            member_id="m",
            protocol_type="consumer",
            protocol_name="range",
            assignments=[],
        )
        assert one.ask(ApiKey.SYNC_GROUP, 5, sync).error_code == Code.INVALID_GROUP_ID
        leaving = LeaveGroupRequest(group_id=group, members=[])
        assert one.ask(ApiKey.LEAVE_GROUP, 5, leaving).error_code == Code.INVALID_GROUP_ID
        find = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
        (found,) = one.ask(ApiKey.FIND_COORDINATOR, 6, find).coordinators
        assert found.error_code == Code.INVALID_GROUP_ID
        (deleted,) = one.ask(
            ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(groups_names=[group])
        ).results
        assert deleted.error_code == Code.INVALID_GROUP_ID
        fetch = OffsetFetchRequest(
            groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)]
        )
        (fetched,) = one.ask(ApiKey.OFFSET_FETCH, 9, fetch).groups
        assert fetched.error_code == Code.INVALID_GROUP_ID
        modern = HEARTBEAT(group_id=group, member_id="m", member_epoch=0)
        answer = one.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, modern)
        assert answer.error_code == Code.INVALID_GROUP_ID


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"session_timeout_ms": 1}, Code.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 2**31 - 1}, Code.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": -1}, Code.INVALID_SESSION_TIMEOUT),
        ({"protocols": []}, Code.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, Code.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_instance_id": "x" * 300}, Code.INVALID_GROUP_ID),
        ({"group_instance_id": "a\tb"}, Code.INVALID_GROUP_ID),
        (
            {
                "protocols": [
                    JoinGroupRequest.JoinGroupRequestProtocol(
                        name="range", metadata=b"x" * (3 << 20)
                    )
                ]
            },
            Code.GROUP_MAX_SIZE_REACHED,
        ),
    ],
)
def test_a_member_that_says_what_cannot_be_is_refused(
    broker: RunningBroker, said: dict[str, Any], code: int
) -> None:
    with Hand(broker) as one:
        assert join(one, "strange", **said).error_code == code


def test_a_group_of_more_bytes_than_a_batch_of_clients_may_have_is_loaded_again(
    tmp_path: Path,
) -> None:
    settings: dict[str, object] = {
        **KAFKA,
        "groups.classic_rebalance_delay_ms": 0,
        "limits.batch_inflated_bytes_max": 64 << 10,
    }
    metadata = b"m" * (200 << 10)
    protocols = [JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=metadata)]
    with RunningBroker(tmp_path, settings) as broker:
        with Hand(broker) as one:
            answers: list[Any] = []

            def has_joined() -> bool:
                answers.append(join(one, "large", protocols=protocols, session_timeout_ms=60_000))
                return bool(answers[-1].error_code == 0)

            wait_until(has_joined, "it has a coordinator")
            joined = answers[-1]
            syncing = SyncGroupRequest(
                group_id="large",
                generation_id=joined.generation_id,
                member_id=joined.member_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=[],
            )
            assert one.ask(ApiKey.SYNC_GROUP, 5, syncing).error_code == 0
        broker.kill()
        broker.start()
        beat = HeartbeatRequest(group_id="large", generation_id=1, member_id=joined.member_id)
        loading = (Code.COORDINATOR_LOAD_IN_PROGRESS, Code.NOT_COORDINATOR)
        with Hand(broker) as one:
            wait_until(
                lambda: one.ask(ApiKey.HEARTBEAT, 4, beat).error_code not in loading, "it is loaded"
            )
            asking = DescribeGroupsRequest(groups=["large"])
            (described,) = one.ask(ApiKey.DESCRIBE_GROUPS, 6, asking).groups
        (member,) = described.members
        assert (described.group_state, bytes(member.member_metadata)) == ("Stable", metadata)


def test_a_group_is_full_of_those_that_never_come_back(broker: RunningBroker) -> None:
    with Hand(broker) as one:
        codes = [one.ask(ApiKey.JOIN_GROUP, 9, joining("full")).error_code for _ in range(4)]
    assert codes == [Code.MEMBER_ID_REQUIRED] * 3 + [Code.GROUP_MAX_SIZE_REACHED]


def test_clients_that_vanish_while_they_wait_leave_the_group_to_others(
    broker: RunningBroker,
) -> None:
    with Hand(broker) as one:
        joined = join(one, "vanish")
        with Hand(broker) as gone:
            given = gone.ask(ApiKey.JOIN_GROUP, 9, joining("vanish"))
            gone.send(ApiKey.JOIN_GROUP, 9, joining("vanish", given.member_id))
        again = one.ask(ApiKey.JOIN_GROUP, 9, joining("vanish", joined.member_id))
        assert again.error_code == 0
        listed = one.ask(
            ApiKey.LIST_GROUPS, 5, ListGroupsRequest(states_filter=[], types_filter=[])
        )
        assert "vanish" in {group.group_id for group in listed.groups}


def test_commits_that_cannot_be_are_refused_each_by_itself(
    broker: RunningBroker, topic_name: str
) -> None:
    with SyncAdmin(broker.address) as admin:
        admin.create_topic(topic_name, 2, 1)
    kind = OffsetCommitRequest.OffsetCommitRequestTopic

    def topic(name: str, *partitions: tuple[int, str]) -> Any:
        return kind(
            name=name,
            partitions=[
                kind.OffsetCommitRequestPartition(
                    partition_index=number, committed_offset=5, committed_metadata=metadata
                )
                for number, metadata in partitions
            ],
        )

    request = OffsetCommitRequest(
        group_id="commits",
        topics=[
            topic(topic_name, (0, "fine"), (1, "x" * 5000), (2, ""), (-1, "")),
            topic("not there", (0, "")),
            topic("no/name", (0, "")),
        ],
    )
    with Hand(broker) as one:
        answer = one.ask(ApiKey.OFFSET_COMMIT, 9, request)
        assert [
            (found.name, [partition.error_code for partition in found.partitions])
            for found in answer.topics
        ] == [
            (
                topic_name,
                [
                    0,
                    Code.OFFSET_METADATA_TOO_LARGE,
                    Code.UNKNOWN_TOPIC_OR_PARTITION,
                    Code.UNKNOWN_TOPIC_OR_PARTITION,
                ],
            ),
            ("not there", [Code.UNKNOWN_TOPIC_OR_PARTITION]),
            ("no/name", [Code.UNKNOWN_TOPIC_OR_PARTITION]),
        ]
        for version in range(2, 10):
            member = OffsetCommitRequest(
                group_id="commits",
                generation_id_or_member_epoch=7,
                member_id="m",
                topics=[topic(topic_name, (0, ""))],
            )
            (refused,) = one.ask(ApiKey.OFFSET_COMMIT, version, member).topics
            assert refused.partitions[0].error_code == Code.ILLEGAL_GENERATION
        fetch_kind = OffsetFetchRequest.OffsetFetchRequestTopic
        for version in range(1, 8):
            asked = fetch_kind(name=topic_name, partition_indexes=[0, 1])
            found = one.ask(
                ApiKey.OFFSET_FETCH,
                version,
                OffsetFetchRequest(group_id="commits", topics=[asked]),
            )
            offsets = [partition.committed_offset for partition in found.topics[0].partitions]
            assert offsets == [5, -1]
        for version in (8, 9):
            groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id="commits", topics=None)]
            (group,) = one.ask(
                ApiKey.OFFSET_FETCH, version, OffsetFetchRequest(groups=groups)
            ).groups
            assert [(found.name, len(found.partitions)) for found in group.topics] == [
                (topic_name, 1)
            ]
        forget_kind = OffsetDeleteRequest.OffsetDeleteRequestTopic
        forget = OffsetDeleteRequest(
            group_id="commits",
            topics=[
                forget_kind(
                    name=topic_name,
                    partitions=[forget_kind.OffsetDeleteRequestPartition(partition_index=0)],
                )
            ],
        )
        deleted = one.ask(ApiKey.OFFSET_DELETE, 0, forget)
        assert (deleted.error_code, deleted.topics[0].partitions[0].error_code) == (0, 0)
        assert one.ask(ApiKey.OFFSET_DELETE, 0, forget).error_code == Code.GROUP_ID_NOT_FOUND


def test_positions_are_stored_and_found_by_the_ids_of_topics(
    broker: RunningBroker, topic_name: str
) -> None:
    kind = OffsetCommitRequest.OffsetCommitRequestTopic
    nobodys = uuid.uuid4()
    with SyncAdmin(broker.address) as admin:
        names = [topic_name, f"team/{topic_name}"]
        for name in names:
            admin.create_topic(name, 1, 1)
        described = admin.describe_topics(names)
        here, elsewhere = (uuid.UUID(bytes=described[name].topic_id) for name in names)
    places = [here, elsewhere, nobodys]
    position = kind.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=5, committed_leader_epoch=0, committed_metadata="m"
    )
    commit = OffsetCommitRequest(
        group_id=topic_name,
        topics=[kind(topic_id=topic_id, partitions=[position]) for topic_id in places],
    )
    group_kind = OffsetFetchRequest.OffsetFetchRequestGroup
    fetches = [
        group_kind.OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0, 1])
        for topic_id in places
    ]
    with Hand(broker) as one:
        stored = one.ask(ApiKey.OFFSET_COMMIT, 10, commit)
        assert [(topic.topic_id, topic.partitions[0].error_code) for topic in stored.topics] == [
            (here, 0),
            (elsewhere, Code.UNKNOWN_TOPIC_ID),
            (nobodys, Code.UNKNOWN_TOPIC_ID),
        ]
        for asked in (fetches, None):
            groups = [group_kind(group_id=topic_name, topics=asked)]
            request = OffsetFetchRequest(groups=groups)
            (group,) = one.ask(ApiKey.OFFSET_FETCH, 10, request).groups
            found = {
                (topic.topic_id, each.partition_index): (each.committed_offset, each.error_code)
                for topic in group.topics
                for each in topic.partitions
            }
            assert found.pop((here, 0)) == (5, 0)
            if asked is not None:
                assert found.pop((here, 1)) == (-1, 0)
            assert set(found.values()) == ({(-1, Code.UNKNOWN_TOPIC_ID)} if asked else set())


@pytest.mark.parametrize("version", range(7))
def test_groups_that_are_not_there_are_dead_or_not_found(
    broker: RunningBroker, version: int
) -> None:
    with Hand(broker) as one:
        asked = DescribeGroupsRequest(groups=["nobody"], include_authorized_operations=True)
        (described,) = one.ask(ApiKey.DESCRIBE_GROUPS, version, asked).groups
        assert described.group_state == "Dead"
        assert described.error_code == (Code.GROUP_ID_NOT_FOUND if version >= 6 else 0)


@pytest.mark.parametrize("version", range(7))
def test_every_version_finds_coordinators_of_groups_and_transactions(
    broker: RunningBroker, version: int
) -> None:
    for kind in (0, 1) if version else (0,):
        with Hand(broker) as one:
            request = FindCoordinatorRequest(key="some", key_type=kind, coordinator_keys=["some"])
            answer = one.ask(ApiKey.FIND_COORDINATOR, version, request)
            found = answer.coordinators[0] if version >= 4 else answer
            assert found.error_code == 0
            assert f"{found.host}:{found.port}" == broker.kafka_address


def test_epochs_that_nobody_was_told_are_fenced(broker: RunningBroker) -> None:
    def beat(epoch: int, **more: Any) -> Any:
        return HEARTBEAT(group_id="modern", member_id="m", member_epoch=epoch, **more)

    with Hand(broker) as one:

        def code(request: Any) -> int:
            found: int = one.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request).error_code
            return found

        assert code(beat(5)) == Code.UNKNOWN_MEMBER_ID
        assert code(beat(-3)) == Code.INVALID_REQUEST
        assert code(beat(0, server_assignor="mine")) == Code.UNSUPPORTED_ASSIGNOR
        joins: dict[str, Any] = {"rebalance_timeout_ms": 10_000, "topic_partitions": []}
        assert code(beat(0, subscribed_topic_regex="(", **joins)) == Code.INVALID_GROUP_ID
        assert code(beat(0, subscribed_topic_names=["a/b/c"], **joins)) == Code.INVALID_GROUP_ID
        assert code(beat(0, subscribed_topic_names=["none"], **joins)) == 0
        assert code(beat(99)) == Code.FENCED_MEMBER_EPOCH
        owned = HEARTBEAT.TopicPartitions(topic_id=uuid.uuid4(), partitions=[1, 2, 3])
        assert code(beat(1, topic_partitions=[owned])) == 0
        assert code(beat(-1)) == 0
        asked = DESCRIBE(group_ids=["modern", "nobody"], include_authorized_operations=True)
        there, nobody = one.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, asked).groups
        assert (there.error_code, there.group_state) == (0, "Empty")
        assert there.authorized_operations == 1 << 3 | 1 << 6 | 1 << 8
        assert nobody.error_code == Code.GROUP_ID_NOT_FOUND
        joins["subscribed_topic_names"] = ["none"]
        assert code(beat(0, instance_id="only", **joins)) == 0
        second = HEARTBEAT(group_id="modern", member_id="o", member_epoch=1, instance_id="only")
        assert code(second) == Code.FENCED_INSTANCE_ID


def test_a_pattern_matches_topics_of_the_listeners_namespace_alone(
    broker: RunningBroker, topic_name: str
) -> None:
    with SyncAdmin(broker.address) as admin:
        for name in (topic_name, f"team/{topic_name}"):
            admin.create_topic(name, 1, 1)
        with Hand(broker) as one:
            joining = HEARTBEAT(
                group_id=topic_name,
                member_id="m",
                member_epoch=0,
                rebalance_timeout_ms=10_000,
                topic_partitions=[],
                subscribed_topic_regex=f".*{topic_name}",
            )
            told = one.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, joining)
            assert told.error_code == 0
            assert len(told.assignment.topic_partitions) == 1
            described = admin.describe_group(topic_name)
            assert described is not None
            asked = DESCRIBE(group_ids=[topic_name])
            (group,) = one.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, asked).groups
    assert [*described.owners] == [(topic_name, 0)]
    assert group.members[0].subscribed_topic_regex == f".*{topic_name}"


@pytest.mark.parametrize(
    ("key", "version", "message", "answers"),
    [
        (
            ApiKey.FIND_COORDINATOR,
            4,
            FindCoordinatorRequest(key_type=0, coordinator_keys=MANY),
            lambda told: [each.key for each in told.coordinators],
        ),
        (
            ApiKey.DESCRIBE_GROUPS,
            5,
            DescribeGroupsRequest(groups=MANY, include_authorized_operations=False),
            lambda told: [each.group_id for each in told.groups],
        ),
        (
            ApiKey.DELETE_GROUPS,
            2,
            DeleteGroupsRequest(groups_names=MANY),
            lambda told: [each.group_id for each in told.results],
        ),
        (
            ApiKey.DESCRIBE_TRANSACTIONS,
            0,
            DescribeTransactionsRequest(transactional_ids=MANY),
            lambda told: [each.transactional_id for each in told.transaction_states],
        ),
    ],
    ids=["FindCoordinator", "DescribeGroups", "DeleteGroups", "DescribeTransactions"],
)
def test_of_many_names_each_is_answered(
    broker: RunningBroker, key: int, version: int, message: Any, answers: Any
) -> None:
    """A client that names more than it hears of would wait for the rest."""
    assert answers(asked(broker, key, version, message)) == MANY
