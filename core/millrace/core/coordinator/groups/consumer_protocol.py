"""What members of the protocol type `consumer` say: the topics that they read, what is assigned.

To the broker it is opaque, but for people who look at a group, and so that nobody forgets the
positions of a topic that is being read. All numbers are big-endian, as everywhere in Kafka's
protocol. A subscription and an assignment begin with a version (2 bytes) and a count (4); later
fields are not needed.

Source: Kafka's ConsumerProtocolSubscription and ConsumerProtocolAssignment.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from millrace.core.topics import PartitionName

PROTOCOL_TYPE: Final = "consumer"
_HEAD: Final = struct.Struct(">hi")
_NO_MORE: Final = b"\xff\xff\xff\xff"
"""Users' data that are not there."""
_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")


class _Reader:
    """Reads fields; a field that is cut short raises `ValueError`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = _HEAD.size

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        taken = self._data[self._at : self._at + size] if size >= 0 else b""
        if size < 0 or len(taken) < size:
            raise ValueError("it is cut short")
        self._at += size
        return taken

    def text(self) -> str:
        (length,) = _SHORT.unpack(self.take(2))
        return self.take(length).decode()

    def number(self) -> int:
        return int(_INT.unpack(self.take(4))[0])

    def numbers(self) -> tuple[int, ...]:
        count = self.number()
        return struct.unpack(f">{count}i", self.take(4 * count)) if count > 0 else ()


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics of a subscription, without a namespace; None: it is none."""
    try:
        _, topics = _HEAD.unpack_from(metadata)
        reader = _Reader(metadata)
        return frozenset(reader.text() for _ in range(topics))
    except (struct.error, ValueError):
        return None


def assigned_partitions(assignment: bytes) -> frozenset[PartitionName] | None:
    """Return the partitions of an assignment, without a namespace; None: it is none."""
    if not assignment:
        return frozenset()
    try:
        _, topics = _HEAD.unpack_from(assignment)
        reader = _Reader(assignment)
        found: set[PartitionName] = set()
        for _ in range(topics):
            topic = reader.text()
            found.update((topic, partition) for partition in reader.numbers())
        return frozenset(found)
    except (struct.error, ValueError):
        return None


def subscription_of(topics: Sequence[str]) -> bytes:
    """Return what a member says that reads these topics."""
    named = b"".join(map(_text, topics))
    return _HEAD.pack(0, len(topics)) + named + _NO_MORE


def assignment_of(partitions: Iterable[PartitionName]) -> bytes:
    """Return the assignment of these partitions."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    assigned = b"".join(
        _text(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
        for topic, numbers in by_topic.items()
    )
    return _HEAD.pack(0, len(by_topic)) + assigned + _NO_MORE


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _SHORT.pack(len(encoded)) + encoded
