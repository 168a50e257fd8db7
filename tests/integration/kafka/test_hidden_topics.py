"""A caller that describes a group is not told which hidden topics its members subscribe to."""

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass
from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.consumer import JoinGroupRequest
from tests.integration.guarded import RULES, GuardedBroker, authorization, call
from tests.integration.kafka.by_hand import wait_for_coordinators
from tests.integration.kafka.logging_in import SETTINGS, Connection
from tests.integration.raw_client import RawClient

from millrace.broker.kafka.requests import ApiKey
from millrace.broker.kafka.wire import codec
from millrace.core.coordinator.groups.consumer_protocol import subscription_of
from millrace.proto.v1 import groups_pb2

_DESCRIBER = """
[[rules]]
who = ["describer"]
may = ["describe"]
topics = ["team/orders"]
groups = ["team/*"]
"""
_ROOT = RULES[RULES.rindex("[[rules]]") :]
_SERVICE = groups_pb2.DESCRIPTOR.services_by_name["Groups"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    """A broker with the groups `ours` and `classic`, whose members want `orders` and `secret`."""
    # The member of `ours` says once that it is there, and stays for all of the tests.
    settings = {**SETTINGS, "groups.session_timeout_ms": 600_000}
    found = GuardedBroker(tmp_path_factory.mktemp("hiding"), settings)
    found.write_rules(_DESCRIBER + _ROOT)
    try:
        found.start()
        with Connection(found) as root:
            assert root.log_in("root", mechanism="SCRAM-SHA-256").error_code == 0
            wait_for_coordinators(root)
        with RawClient(found.address) as client:
            joining = groups_pb2.GroupHeartbeatRequest(
                group="team/ours",
                member_id="m",
                member={"topics": ["team/orders", "team/secret"]},
            )
            method = _SERVICE.methods_by_name["GroupHeartbeat"]
            answer, refused = call(client.channel, method, joining, authorization("root"))
            assert not refused
            assert not answer.error.code
        yield found
    finally:
        found.abandon()


def described(broker: GuardedBroker, group: str, role: str) -> bytes:
    """Return what `DescribeGroup` tells a role."""
    method = _SERVICE.methods_by_name["DescribeGroup"]
    with RawClient(broker.address) as client:
        request = GetMessageClass(method.input_type)(group=group)
        answer, refused = call(client.channel, method, request, authorization(role))
    assert not refused
    told: bytes = answer.SerializeToString()
    return told


def test_a_group_of_our_own_protocol(broker: GuardedBroker) -> None:
    assert b"team/secret" in described(broker, "team/ours", "root")
    told = described(broker, "team/ours", "describer")
    assert b"team/orders" in told
    assert b"secret" not in told


def test_a_group_of_our_own_protocol_by_kafkas_requests(broker: GuardedBroker) -> None:
    consumer_group_describe = codec.request_class(ApiKey.CONSUMER_GROUP_DESCRIBE)
    for role, may in (("root", True), ("describer", False)):
        with Connection(broker) as caller:
            assert caller.log_in(role, mechanism="SCRAM-SHA-256").error_code == 0
            asked = DescribeGroupsRequest(groups=["ours"], include_authorized_operations=False)
            (group,) = caller.ask(ApiKey.DESCRIBE_GROUPS, 5, asked).groups
            assert b"orders" in group.members[0].member_metadata
            assert (b"secret" in group.members[0].member_metadata) is may
            asked = consumer_group_describe(group_ids=["ours"], include_authorized_operations=False)
            (group,) = caller.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, asked).groups
            topics = {"orders", "secret"} if may else {"orders"}
            assert {*group.members[0].subscribed_topic_names} == topics


def test_a_group_of_kafkas_classic_protocol(broker: GuardedBroker) -> None:
    metadata = subscription_of(["orders", "secret"])
    joining: Any = JoinGroupRequest(
        group_id="classic",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=metadata)],
    )
    with Connection(broker) as root:
        assert root.log_in("root", mechanism="SCRAM-SHA-256").error_code == 0
        assert root.ask(ApiKey.JOIN_GROUP, 3, joining).error_code == 0
        assert b"team/secret" in described(broker, "team/classic", "root")
        told = described(broker, "team/classic", "describer")
    assert b"team/orders" in told
    assert b"secret" not in told
