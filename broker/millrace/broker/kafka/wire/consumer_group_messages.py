"""The messages of KIP-848's consumer groups, which kafka-python lacks."""

from kafka.protocol.api_message import ApiMessage

_SCHEMAS = "millrace.broker.kafka.wire.schemas"


class ConsumerGroupHeartbeatRequest(ApiMessage, load_json=_SCHEMAS):
    """A member lives, joins, leaves, or says what it has given up."""


class ConsumerGroupHeartbeatResponse(ApiMessage, load_json=_SCHEMAS):
    """What it may read."""


class ConsumerGroupDescribeRequest(ApiMessage, load_json=_SCHEMAS):
    """What a group is like."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=_SCHEMAS):
    """Its members, and what they read."""
