"""Bounds of what a member says of itself."""

from collections.abc import Iterator
from typing import Final

from millrace.core.coordinator.groups.assignors import ASSIGNORS
from millrace.core.coordinator.groups.group import (
    Group,
    Member,
)
from millrace.core.coordinator.groups.patterns import check_pattern
from millrace.core.coordinator.groups.subscriptions import (
    PATTERNS_MAX,
    patterns_of,
)
from millrace.core.coordinator.positions.position import why_no_name
from millrace.core.errors import (
    InvalidGroupError,
    InvalidTopicError,
)
from millrace.core.topics import parse_topic_name

_TOPICS_MAX: Final = 1000
"""Topics that one member may subscribe to."""

_ID_LENGTH_MAX: Final = 255

_PATTERN_LENGTH_MAX: Final = 1000


def check_subscribed_pattern(group: Group, pattern: str) -> None:
    if len(pattern) > _PATTERN_LENGTH_MAX:
        raise InvalidGroupError(
            f"a regular expression of {len(pattern)} characters: at most {_PATTERN_LENGTH_MAX}"
        )
    if pattern:
        check_pattern(pattern)
        if len(patterns_of(group) | {pattern}) > PATTERNS_MAX:
            raise InvalidGroupError(
                f"the members of the group {group.name!r} have {PATTERNS_MAX} different regular "
                "expressions, and more are not allowed: use one of these"
            )


def check_group_name(name: str) -> None:
    """Refuse an invalid name.

    Raises:
        InvalidGroupError: says why.
    """
    if why := why_no_name(name, "a group"):
        raise InvalidGroupError(why)


def check_member(member_id: str, member: Member) -> None:
    texts = _texts(member_id, member)
    for what, text in texts:
        if len(text) > _ID_LENGTH_MAX or (text and not text.isprintable()):
            raise InvalidGroupError(
                f"the {what} {text[:_ID_LENGTH_MAX]!r} of a member: at most {_ID_LENGTH_MAX} "
                "printable characters"
            )
    if not member_id:
        raise InvalidGroupError("a member without a member id: choose one, as a random UUID")
    if len(member.topics) > _TOPICS_MAX:
        raise InvalidGroupError(
            f"a member subscribes to {len(member.topics)} topics: at most {_TOPICS_MAX}"
        )
    for topic in member.topics:
        try:
            parse_topic_name(topic)
        except InvalidTopicError as error:
            raise InvalidGroupError(f"a member subscribes to no topic: {error.message}") from error
    if member.assignor and member.assignor not in ASSIGNORS:
        raise InvalidGroupError(
            f"there is no assignor {member.assignor!r}: choose one of {', '.join(ASSIGNORS)}"
        )


def _texts(member_id: str, member: Member) -> Iterator[tuple[str, str]]:
    yield "member id", member_id
    yield "instance id", member.instance_id
    yield "client id", member.client_id
    yield "address", member.address
    yield "zone", member.zone
