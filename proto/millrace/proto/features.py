"""The levels that this release speaks, and who is refused for theirs.

A level is added when those who speak only the ones before would misunderstand; the lowest is given
up a release later, so that brokers can be upgraded one after another.
"""

from collections.abc import Iterable
from typing import Final

from millrace.core.errors import UnsupportedFeatureError
from millrace.core.metadata.broker_levels import BROKER_LEVEL, FIRST_LEVEL
from millrace.proto.v1.common_pb2 import Feature

CLIENT_PROTOCOL: Final = Feature(name="client-protocol", min_level=1, max_level=1)
"""Between clients and brokers. Clients of the first release did not say it, and speak level 1."""

BROKER_PROTOCOL: Final = Feature(
    name="broker-protocol", min_level=FIRST_LEVEL, max_level=BROKER_LEVEL
)
"""Between brokers: sessions with the controller, and what followers fetch."""


def check_client(features: Iterable[Feature]) -> None:
    """Check the levels of a client.

    Raises:
        UnsupportedFeatureError: no level is spoken by both.
    """
    _common(CLIENT_PROTOCOL, features, default=Feature(min_level=1, max_level=1), who="client")


def check_broker(features: Iterable[Feature]) -> int:
    """Return the level in use with another broker: the highest that both speak.

    Raises:
        UnsupportedFeatureError: no level is spoken by both.
    """
    return _common(BROKER_PROTOCOL, features, default=Feature(), who="broker")


def _common(ours: Feature, features: Iterable[Feature], *, default: Feature, who: str) -> int:
    theirs = next((feature for feature in features if feature.name == ours.name), default)
    if theirs.max_level < ours.min_level:
        what_to_do = f"upgrade the {who} that calls"
    elif theirs.min_level > ours.max_level:
        what_to_do = f"upgrade the cluster's brokers first, or start the {who} with their release"
    else:
        return min(ours.max_level, theirs.max_level)
    raise UnsupportedFeatureError(
        f"{ours.name}: the {who} that calls speaks {_levels(theirs)}, and this broker "
        f"{_levels(ours)}: {what_to_do}"
    )


def _levels(feature: Feature) -> str:
    if feature.min_level >= feature.max_level:
        return f"level {feature.max_level}" if feature.max_level else "no level"
    return f"levels {feature.min_level} to {feature.max_level}"
