"""A generation of a classic group, as `__positions` keeps it beside the records of other groups.

Classic groups speak the first group protocol of Kafka's clients. What they store is one record for
each group: its last generation that got assignments, or that has no members. The key:

| offset | size | field  | meaning                                |
|-------:|-----:|--------|----------------------------------------|
|      0 |    1 | kind   | 8                                      |
|      1 |    2 | length | of the group's name, little-endian     |
|      3 |      | group  | its name, UTF-8                        |

The value is a JSON object with the fields of the types below and `"version": 1`; bytes are in
base64. Null: the group is forgotten. One record has all members, so a generation is stored as a
whole or not at all.

Source: Kafka's GroupMetadataValue.
"""

import json
import struct
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from millrace.core.errors import UnsupportedFormatError
from millrace.core.ids import WallMs
from millrace.core.topics import DEFAULT_NAMESPACE

VERSION: Final = 1
CLASSIC: Final = 8
_KEY: Final = struct.Struct("<BH")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMember:
    """A member in a generation.

    Attributes:
        instance_id: the name that a static member keeps over restarts; empty: it is dynamic.
        client_id: of its program, for people.
        address: of its process, for people.
        namespace: of the topics that it names, as its listener has it.
        session_timeout_ms: how long it may be silent.
        rebalance_timeout_ms: how long the group waits for it to join again.
        metadata: what it said for the generation's protocol; its meaning is the clients'.
        assignment: what the leader gave it; likewise.
    """

    instance_id: str = ""
    client_id: str = ""
    address: str = ""
    namespace: str = DEFAULT_NAMESPACE
    session_timeout_ms: int
    rebalance_timeout_ms: int
    metadata: bytes = b""
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation of a group.

    Attributes:
        number: of the generation; the first one is 1.
        protocol_type: what the members are, as `consumer`; empty: not known yet.
        protocol: how partitions are assigned; empty without members.
        leader: the member that assigns; empty without members.
        members: by member id, in the order in which they came.
    """

    number: int
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    members: Mapping[str, ClassicMember] = field(default_factory=dict)


class ClassicRecord(NamedTuple):
    """Stores or forgets the generation of a group."""

    group: str
    value: Generation | None
    timestamp: WallMs

    @property
    def key(self) -> tuple[str, str]:
        """What it is about."""
        return "classic", self.group

    @property
    def is_deletion(self) -> bool:
        """Whether it forgets."""
        return self.value is None


def encode(record: ClassicRecord) -> tuple[bytes, bytes | None]:
    """Return the key and the value of a record."""
    name = record.group.encode()
    key = _KEY.pack(CLASSIC, len(name)) + name
    generation = record.value
    if generation is None:
        return key, None
    fields = {
        "version": VERSION,
        "number": generation.number,
        "protocol_type": generation.protocol_type,
        "protocol": generation.protocol,
        "leader": generation.leader,
        "members": {
            member_id: {
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "address": member.address,
                "namespace": member.namespace,
                "session_timeout_ms": member.session_timeout_ms,
                "rebalance_timeout_ms": member.rebalance_timeout_ms,
                "metadata": b64encode(member.metadata).decode(),
                "assignment": b64encode(member.assignment).decode(),
            }
            for member_id, member in generation.members.items()
        },
    }
    return key, json.dumps(fields, separators=(",", ":")).encode()


def decode(key: bytes, value: bytes | None, timestamp: WallMs) -> ClassicRecord:
    """Return a record.

    Raises:
        UnsupportedFormatError: this release does not know its format.
    """
    try:
        kind, length = _KEY.unpack_from(key)
        group = key[_KEY.size :].decode()
        if kind != CLASSIC or len(key) != _KEY.size + length:
            raise ValueError(f"kind {kind}, or a name of another length than {length}")
        if value is None:
            return ClassicRecord(group, None, timestamp)
        fields = json.loads(value)
        if fields["version"] != VERSION:
            raise ValueError(f"version {fields['version']}")
        return ClassicRecord(group, _generation(fields), timestamp)
    except (
        *(struct.error, ValueError, KeyError, TypeError, AttributeError),
        *(OverflowError, RecursionError),
    ) as error:
        raise UnsupportedFormatError(
            f"a record of a classic group is none that this release knows ({error!r}): a later "
            "release has written it. Start that one again"
        ) from error


def _generation(fields: Mapping[str, Any]) -> Generation:
    return Generation(
        int(fields["number"]),
        str(fields["protocol_type"]),
        str(fields["protocol"]),
        str(fields["leader"]),
        {str(member_id): _member(member) for member_id, member in fields["members"].items()},
    )


def _member(fields: Mapping[str, Any]) -> ClassicMember:
    return ClassicMember(
        instance_id=str(fields["instance_id"]),
        client_id=str(fields["client_id"]),
        address=str(fields["address"]),
        namespace=str(fields["namespace"]),
        session_timeout_ms=int(fields["session_timeout_ms"]),
        rebalance_timeout_ms=int(fields["rebalance_timeout_ms"]),
        metadata=b64decode(fields["metadata"], validate=True),
        assignment=b64decode(fields["assignment"], validate=True),
    )
