"""The records of groups in `__positions`, beside those of positions (`positions/records.py`).

The key:

| offset | size | field  | meaning                                                       |
|-------:|-----:|--------|---------------------------------------------------------------|
|      0 |    1 | kind   | 3: a group, 4: a member, 5: a target, 6: a current assignment |
|      1 |    2 | length | of the group's name, little-endian                            |
|      3 |      | group  | its name, UTF-8                                               |
|        |      | member | the rest: the member id, UTF-8; empty with kind 3             |

The value is a JSON object with the fields of the type and `"version": 1`; null: it is forgotten.
Partitions are an object of topic ids in hexadecimal and lists of numbers. Records are few, as only
changes are stored, and people read them when something is wrong.
"""

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final

from millrace.core.coordinator.groups.group import (
    Current,
    CurrentRecord,
    Epochs,
    GroupRecord,
    LeftTopic,
    Member,
    MemberRecord,
    MembershipRecord,
    Partitions,
    TargetRecord,
)
from millrace.core.errors import UnsupportedFormatError
from millrace.core.ids import TopicId, TopicPartition, WallMs

VERSION: Final = 1
GROUP, MEMBER, TARGET, CURRENT = 3, 4, 5, 6
KINDS: Final = (GROUP, MEMBER, TARGET, CURRENT)
_KEY: Final = struct.Struct("<BH")


def encode(record: MembershipRecord) -> tuple[bytes, bytes | None]:
    """Return the key and the value of a record."""
    fields: dict[str, Any] | None = None
    match record:
        case GroupRecord(group, epochs, _):
            key = _key(GROUP, group)
            fields = None if epochs is None else _epochs_fields(epochs)
        case MemberRecord(group, member_id, member, _):
            key = _key(MEMBER, group, member_id)
            fields = None if member is None else _member_fields(member)
        case TargetRecord(group, member_id, target, _):
            key = _key(TARGET, group, member_id)
            fields = None if target is None else {"partitions": _by_topic(target)}
        case CurrentRecord(group, member_id, current, _):
            key = _key(CURRENT, group, member_id)
            fields = None if current is None else _current_fields(current)
    if fields is None:
        return key, None
    return key, json.dumps({"version": VERSION, **fields}, separators=(",", ":")).encode()


def decode(key: bytes, value: bytes | None, timestamp: WallMs) -> MembershipRecord:
    """Return a record.

    Raises:
        UnsupportedFormatError: this release does not know its format.
    """
    try:
        kind, length = _KEY.unpack_from(key)
        group = key[_KEY.size : _KEY.size + length].decode()
        member_id = key[_KEY.size + length :].decode()
        fields = None if value is None else json.loads(value)
        if fields is not None and fields["version"] != VERSION:
            raise ValueError(f"version {fields['version']}")
        if kind == GROUP:
            return GroupRecord(group, fields and _epochs(fields), timestamp)
        if kind == MEMBER:
            return MemberRecord(group, member_id, fields and _member(fields), timestamp)
        if kind == TARGET:
            target = None if fields is None else _partitions(fields["partitions"])
            return TargetRecord(group, member_id, target, timestamp)
        if kind == CURRENT:
            return CurrentRecord(group, member_id, fields and _current(fields), timestamp)
        raise ValueError(f"kind {kind}")
    except (
        *(struct.error, ValueError, KeyError, TypeError, AttributeError),
        *(OverflowError, RecursionError),
    ) as error:
        raise UnsupportedFormatError(
            f"a record of a group is none that this release knows ({error!r}): a later release has "
            "written it. Start that one again"
        ) from error


def _key(kind: int, group: str, member_id: str = "") -> bytes:
    name = group.encode()
    return _KEY.pack(kind, len(name)) + name + member_id.encode()


def _epochs_fields(epochs: Epochs) -> dict[str, Any]:
    return {
        "epoch": epochs.epoch,
        "target_epoch": epochs.target_epoch,
        "topics": _numbers_fields(epochs.topics),
        "later": _numbers_fields(epochs.later),
        "names": list(epochs.names),
        "patterns": list(epochs.patterns),
        "left": {topic_id.hex(): [*topic] for topic_id, topic in epochs.left},
        "left_names": dict(epochs.left_names),
        "left_patterns": dict(epochs.left_patterns),
    }


def _epochs(fields: Mapping[str, Any]) -> Epochs:
    return Epochs(
        int(fields["epoch"]),
        int(fields["target_epoch"]),
        _numbers(fields["topics"]),
        # Earlier releases have not written the rest.
        _numbers(fields.get("later", {})),
        tuple(map(str, fields.get("names", ()))),
        tuple(map(str, fields.get("patterns", ()))),
        _left_topics(fields.get("left", {})),
        _times(fields.get("left_names", {})),
        _times(fields.get("left_patterns", {})),
    )


def _left_topics(fields: Mapping[str, Any]) -> tuple[tuple[TopicId, LeftTopic], ...]:
    topics = (
        (
            TopicId(bytes.fromhex(field)),
            LeftTopic(None if begun_with is None else int(begun_with), WallMs(int(at))),
        )
        for field, (begun_with, at) in fields.items()
    )
    return tuple(sorted(topics))


def _times(fields: Mapping[str, Any]) -> tuple[tuple[str, WallMs], ...]:
    return tuple(sorted((text, WallMs(int(at))) for text, at in fields.items()))


def _numbers_fields(numbers: Iterable[tuple[TopicId, int]]) -> dict[str, int]:
    return {topic_id.hex(): number for topic_id, number in numbers}


def _numbers(fields: Mapping[str, Any]) -> tuple[tuple[TopicId, int], ...]:
    return tuple(sorted((TopicId(bytes.fromhex(field)), int(n)) for field, n in fields.items()))


def _member_fields(member: Member) -> dict[str, Any]:
    return {
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "address": member.address,
        "zone": member.zone,
        "topics": list(member.topics),
        "pattern": member.pattern,
        "assignor": member.assignor,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "is_away": member.is_away,
        "silent_ms": member.silent_ms,
    }


def _member(fields: Mapping[str, Any]) -> Member:
    return Member(
        instance_id=str(fields["instance_id"]),
        client_id=str(fields["client_id"]),
        address=str(fields["address"]),
        zone=str(fields["zone"]),
        topics=tuple(map(str, fields["topics"])),
        pattern=str(fields["pattern"]),
        assignor=str(fields["assignor"]),
        rebalance_timeout_ms=int(fields["rebalance_timeout_ms"]),
        is_away=bool(fields["is_away"]),
        silent_ms=int(fields.get("silent_ms", 0)),  # Earlier releases do not store it.
    )


def _current_fields(current: Current) -> dict[str, Any]:
    return {
        "epoch": current.epoch,
        "assigned": _by_topic(current.assigned),
        "revoking": _by_topic(current.revoking),
        "gained": _by_topic(current.gained),
    }


def _current(fields: Mapping[str, Any]) -> Current:
    return Current(
        int(fields["epoch"]),
        _partitions(fields["assigned"]),
        _partitions(fields["revoking"]),
        _partitions(fields["gained"]),
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        by_topic.setdefault(topic_id.hex(), []).append(partition)
    return by_topic


def _partitions(by_topic: Mapping[str, Iterable[int]]) -> Partitions:
    return frozenset(
        TopicPartition(TopicId(bytes.fromhex(topic_id)), int(partition))
        for topic_id, partitions in by_topic.items()
        for partition in partitions
    )
