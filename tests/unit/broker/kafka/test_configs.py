"""Changes of settings by Kafka's protocol begin with what the controller knows of a topic."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.admin import AlterConfigsRequest, IncrementalAlterConfigsRequest
from tests.fakes.call_context import CALLER

from millrace.broker.kafka.administration.configs import (
    ConfigOperation,
    ConfigRequests,
    ResourceType,
)
from millrace.broker.kafka.names import Names
from millrace.broker.kafka.requests import ApiKey, KafkaConnectionState, Request
from millrace.broker.kafka.wire.errors import NO_ERROR, Code
from millrace.core.broker_config import BrokerConfig
from millrace.core.errors import TopicAuthorizationFailedError, UnknownTopicOrPartitionError
from millrace.proto.errors import error_to_wire
from millrace.proto.v1 import cluster_pb2 as pb

_Operation = tuple[str, ConfigOperation, str | None]
APPEND, SUBTRACT, SET = ConfigOperation.APPEND, ConfigOperation.SUBTRACT, ConfigOperation.SET


class Controller:
    """Implements what is needed of `LocalCalls`: it alters the topics that it has.

    Attributes:
        overrides: the settings of each topic.
        calls: how often it was asked.
    """

    def __init__(self, **overrides: dict[str, str]) -> None:
        self.overrides = overrides
        self.forbidden: set[str] = set()
        self.calls = 0

    async def call(self, method: str, request: pb.AlterTopicsRequest, caller: object) -> Any:
        assert method == "AlterTopics"
        self.calls += 1
        if denied := self.forbidden & {change.name for change in request.topics}:
            raise TopicAuthorizationFailedError(f"not {denied}")
        return pb.AlterTopicsResponse(
            results=[self._altered(change, request.validate_only) for change in request.topics]
        )

    def _altered(self, change: pb.TopicChange, validate_only: bool) -> pb.TopicResult:
        if change.name not in self.overrides:
            error = UnknownTopicOrPartitionError(f"no topic {change.name}")
            return pb.TopicResult(error=error_to_wire(error))
        after = {**self.overrides[change.name], **change.set_config}
        after = {name: value for name, value in after.items() if name not in change.unset_config}
        if not validate_only:
            self.overrides[change.name] = after
        config = {"cleanup.policy": "delete", **after}
        entries = [pb.ConfigEntry(name=name, value=value) for name, value in config.items()]
        return pb.TopicResult(topic=pb.TopicMetadata(name=change.name, config=entries))


async def codes_of(controller: Controller, key: ApiKey, message: Any) -> list[int]:
    """Return the code for each resource of a request."""
    config = BrokerConfig(log_dirs=("/nowhere",))
    parts: Any = SimpleNamespace(
        broker=SimpleNamespace(config=config, partitions=None, channel=None),
        calls=SimpleNamespace(listener=None),
        names=Names("default"),
        local=controller,
    )
    served = ConfigRequests(parts).served()[key]
    request = Request(
        key=key,
        version=1,
        client_id="test",
        message=type(message).decode(message.encode(version=1), version=1),
        caller=CALLER,
        connection=KafkaConnectionState("10.0.0.1:4711"),
    )
    return [each.error_code for each in (await served.handler(request)).responses]


async def alter(controller: Controller, topic: str, **config: str) -> list[int]:
    """Make a request AlterConfigs; the names have `_` for a dot."""
    kind = AlterConfigsRequest.AlterConfigsResource
    configs = [
        kind.AlterableConfig(name=name.replace("_", "."), value=value)
        for name, value in config.items()
    ]
    resource = kind(resource_type=ResourceType.TOPIC, resource_name=topic, configs=configs)
    message = AlterConfigsRequest(resources=[resource], validate_only=False)
    return await codes_of(controller, ApiKey.ALTER_CONFIGS, message)


async def alter_some(
    controller: Controller, changes: Sequence[tuple[str, Sequence[_Operation]]]
) -> list[int]:
    """Make a request IncrementalAlterConfigs."""
    kind = IncrementalAlterConfigsRequest.AlterConfigsResource
    resources = [
        kind(
            resource_type=ResourceType.TOPIC,
            resource_name=topic,
            configs=[
                kind.AlterableConfig(name=name, config_operation=operation, value=value)
                for name, operation, value in operations
            ],
        )
        for topic, operations in changes
    ]
    message = IncrementalAlterConfigsRequest(resources=resources, validate_only=False)
    return await codes_of(controller, ApiKey.INCREMENTAL_ALTER_CONFIGS, message)


async def test_settings_that_are_not_named_get_their_defaults() -> None:
    controller = Controller(t={"retention.ms": "5", "segment.ms": "7", "durability": "local"})
    assert await alter(controller, "t", retention_bytes="1000", segment_ms="8") == [NO_ERROR]
    assert controller.overrides == {"t": {"retention.bytes": "1000", "segment.ms": "8"}}


async def test_a_list_is_changed_as_the_controller_has_it() -> None:
    controller = Controller(
        a={"cleanup.policy": "compact"}, b={"cleanup.policy": "compact,delete"}, c={}
    )
    changes = [
        ("a", [("cleanup.policy", APPEND, "delete"), ("segment.ms", SET, "9")]),
        ("b", [("cleanup.policy", SUBTRACT, "compact")]),
        ("c", [("cleanup.policy", APPEND, "compact, delete")]),
    ]
    assert await alter_some(controller, changes) == [NO_ERROR] * 3
    assert controller.overrides == {
        "a": {"cleanup.policy": "compact,delete", "segment.ms": "9"},
        "b": {"cleanup.policy": "delete"},
        "c": {"cleanup.policy": "delete,compact"},
    }
    assert controller.calls == 2


async def test_a_list_that_cannot_be_seen_holds_no_other_topic_up() -> None:
    controller = Controller(mine={}, theirs={})
    controller.forbidden.add("theirs")
    append = [("cleanup.policy", APPEND, "compact")]
    changes = [(topic, append) for topic in ("theirs", "mine", "nowhere", "no name")]
    assert await alter_some(controller, changes) == [
        Code.TOPIC_AUTHORIZATION_FAILED,
        NO_ERROR,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.INVALID_TOPIC_EXCEPTION,
    ]
    assert controller.overrides == {"mine": {"cleanup.policy": "delete,compact"}, "theirs": {}}


@pytest.mark.parametrize("name", ["retention.ms", "leader.replication.throttled.replicas"])
async def test_the_controller_is_asked_once_where_no_list_with_an_effect_is_changed(
    name: str,
) -> None:
    controller = Controller(t={})
    operation = SET if name == "retention.ms" else APPEND
    assert await alter_some(controller, [("t", [(name, operation, "1")])]) == [NO_ERROR]
    assert controller.calls == 1
