"""Requests of administration and of log-in with each byte wrong in turn.

Each is answered, or its connection ends; no handler fails, and the broker goes on.
"""

import struct
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.admin import (
    AlterConfigsRequest,
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeAclsRequest,
    DescribeClientQuotasRequest,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    DescribeProducersRequest,
    DescribeTopicPartitionsRequest,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
    ListPartitionReassignmentsRequest,
)
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.fakes.kafka_ends import request_frame
from tests.integration.guarded import GuardedBroker
from tests.integration.kafka.by_hand import Hand
from tests.integration.kafka.ends import KAFKA
from tests.integration.running_broker import RunningBroker

from millrace.broker.kafka.requests import ApiKey
from millrace.client import SyncAdmin

CREATE = CreateTopicsRequest.CreatableTopic
GROW = CreatePartitionsRequest.CreatePartitionsTopic
ALTER = AlterConfigsRequest.AlterConfigsResource
CHANGE = IncrementalAlterConfigsRequest.AlterConfigsResource
MOVE = AlterPartitionReassignmentsRequest.ReassignableTopic

MESSAGES: dict[int, tuple[range, Any]] = {
    ApiKey.CREATE_TOPICS: (
        range(2, 8),
        CreateTopicsRequest(
            topics=[
                CREATE(
                    name="t",
                    num_partitions=1,
                    replication_factor=1,
                    assignments=[],
                    configs=[CREATE.CreatableTopicConfig(name="retention.ms", value="5")],
                ),
                CREATE(
                    name="u",
                    num_partitions=-1,
                    replication_factor=-1,
                    assignments=[
                        CREATE.CreatableReplicaAssignment(partition_index=0, broker_ids=[0])
                    ],
                    configs=[],
                ),
            ],
            validate_only=True,
        ),
    ),
    ApiKey.DELETE_TOPICS: (
        range(1, 7),
        DeleteTopicsRequest(
            topic_names=["t"],
            topics=[DeleteTopicsRequest.DeleteTopicState(name="t", topic_id=UUID(int=0))],
        ),
    ),
    ApiKey.CREATE_PARTITIONS: (
        range(4),
        CreatePartitionsRequest(
            topics=[
                GROW(
                    name="orders",
                    count=2,
                    assignments=[GROW.CreatePartitionsAssignment(broker_ids=[0])],
                )
            ],
            validate_only=True,
        ),
    ),
    ApiKey.DESCRIBE_CONFIGS: (
        range(1, 5),
        DescribeConfigsRequest(
            resources=[
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=2, resource_name="orders", configuration_keys=["a"]
                )
            ]
        ),
    ),
    ApiKey.ALTER_CONFIGS: (
        range(3),
        AlterConfigsRequest(
            resources=[
                ALTER(
                    resource_type=2,
                    resource_name="orders",
                    configs=[ALTER.AlterableConfig(name="retention.ms", value="5")],
                )
            ],
            validate_only=True,
        ),
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        range(2),
        IncrementalAlterConfigsRequest(
            resources=[
                CHANGE(
                    resource_type=2,
                    resource_name="orders",
                    configs=[
                        CHANGE.AlterableConfig(
                            name="cleanup.policy", config_operation=2, value="compact"
                        )
                    ],
                )
            ],
            validate_only=True,
        ),
    ),
    ApiKey.DESCRIBE_LOG_DIRS: (
        range(1, 6),
        DescribeLogDirsRequest(
            topics=[DescribeLogDirsRequest.DescribableLogDirTopic(topic="orders", partitions=[0])]
        ),
    ),
    ApiKey.ELECT_LEADERS: (
        range(3),
        ElectLeadersRequest(
            election_type=0,
            topic_partitions=[ElectLeadersRequest.TopicPartitions(topic="orders", partitions=[0])],
        ),
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (
        range(2),
        AlterPartitionReassignmentsRequest(
            topics=[
                MOVE(
                    name="orders",
                    partitions=[MOVE.ReassignablePartition(partition_index=0, replicas=[0])],
                )
            ]
        ),
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (
        range(1),
        ListPartitionReassignmentsRequest(
            topics=[
                ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics(
                    name="orders", partition_indexes=[0]
                )
            ]
        ),
    ),
    ApiKey.DESCRIBE_PRODUCERS: (
        range(1),
        DescribeProducersRequest(
            topics=[DescribeProducersRequest.TopicRequest(name="orders", partition_indexes=[0])]
        ),
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (
        range(2),
        DescribeClientQuotasRequest(
            components=[
                DescribeClientQuotasRequest.ComponentData(
                    entity_type="user", match_type=0, match="a"
                )
            ]
        ),
    ),
    ApiKey.DESCRIBE_ACLS: (
        range(1, 4),
        DescribeAclsRequest(
            resource_type_filter=1,
            resource_name_filter="a",
            principal_filter="b",
            host_filter="c",
            operation=1,
            permission_type=1,
        ),
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (
        range(1),
        DescribeTopicPartitionsRequest(
            topics=[DescribeTopicPartitionsRequest.TopicRequest(name="orders")],
            cursor=DescribeTopicPartitionsRequest.Cursor(topic_name="a", partition_index=0),
        ),
    ),
    ApiKey.LIST_CONFIG_RESOURCES: (
        range(1, 2),  # Before, it has no body.
        ListConfigResourcesRequest(resource_types=[2, 4]),
    ),
    ApiKey.SASL_HANDSHAKE: (range(2), SaslHandshakeRequest(mechanism="SCRAM-SHA-256")),
    ApiKey.SASL_AUTHENTICATE: (range(3), SaslAuthenticateRequest(auth_bytes=b"n,,n=a,r=b")),
}
EXTREMES = (0x00, 0x01, 0x7F, 0x80, 0xFF)
BODY_AT = 16
"""Where the body of a frame begins, or the tagged fields of its header: the client id is `me`."""


SETTINGS: dict[str, object] = {**KAFKA, "limits.connections_per_host_rate_max": 1_000_000}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningBroker, ...]]:
    """A broker whose clients may do everything, with the topic `orders`; and a guarded one."""
    free = RunningBroker(tmp_path_factory.mktemp("free"), SETTINGS).start()
    guarded = GuardedBroker(tmp_path_factory.mktemp("guarded"), SETTINGS).start()
    with SyncAdmin(free.address) as admin:
        admin.create_topic("orders", 1, 1)
    yield free, guarded
    for broker in (free, guarded):
        broker.abandon()


def spoilt(frame: bytes) -> Iterator[bytes]:
    """Yield a frame with each byte of its body wrong in turn, and cut short."""
    for at in range(BODY_AT, len(frame)):
        for value in EXTREMES:
            if frame[at] != value:
                yield frame[:at] + bytes([value]) + frame[at + 1 :]
    for end in range(BODY_AT, len(frame)):
        yield struct.pack(">i", end - 4) + frame[4:end]


def answered(broker: RunningBroker, frames: Iterator[bytes], patience_s: float = 0) -> int:
    """Return how many of the frames are answered; where a connection ends, go on with another.

    Args:
        broker: is asked.
        frames: requests.
        patience_s: for how long an answer is waited for; 0: every one comes.
    """
    count = 0
    connection: Hand | None = None
    for frame in frames:
        if connection is None:
            connection = Hand(broker)
            connection.socket.settimeout(patience_s or 20)
        try:
            connection.send_bytes(frame)
            if connection.frame() is not None:
                count += 1
                continue
        except ConnectionError:
            pass
        except TimeoutError:
            assert patience_s, "it is not answered"
        connection.close()
        connection = None
    if connection is not None:
        connection.close()
    return count


@pytest.mark.parametrize("key", MESSAGES, ids=lambda key: ApiKey(key).name)
def test_each_byte_may_be_wrong(brokers: tuple[RunningBroker, ...], key: int) -> None:
    versions, message = MESSAGES[key]
    broker = brokers[key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)]
    before = broker.log_path.read_text().count('"call_failed"')
    for version in {versions[0], versions[-1]}:
        valid = request_frame(key, version, message)
        assert answered(broker, iter([valid])) == 1
        assert answered(broker, spoilt(valid)) > 0
        assert answered(broker, iter([valid])) == 1
    said = broker.log_path.read_text()
    assert said.count('"call_failed"') == before, said[-3000:]
