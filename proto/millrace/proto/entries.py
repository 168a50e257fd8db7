"""Counts what a message holds before it is decoded: elements of lists, entries of maps, numbers.

To decode a megabyte of settings takes 90 ms, as each one goes into a hash table, and the
interpreter stands still meanwhile. So a message is first decoded as its *outline*. That is a
message type with the same field numbers that has only the lists and maps, as lists of bytes.
Elements that have lists themselves are then decoded as one outline, all together: the bytes of
several messages in a row are one message with all their entries. So a request is decoded once for
each level of its lists, and no element alone. That takes 7 ms for the worst megabyte, half a
million empty elements, and 1 ms for 10,000 topics with a setting each.

Bytes of an element that is no message may hide the entries of those after it. That gains nothing,
as the decoding ends at this element.
"""

from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool

NUMBERS_PER_ENTRY: Final = 8
"""Numbers that the lists of each element may have on average, such as replicas of a partition."""

_PACKAGE: Final = "outline"
_AS_BYTES: Final = frozenset(
    {FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}
)
_pool: Final = DescriptorPool()


@dataclass(slots=True)
class _Outline:
    """A message type whose only fields are the lists and maps of another one, by their names.

    Attributes:
        kind: class of the messages; None: the other one has no lists.
        lists: names of the lists.
        numbers: names of those that hold numbers.
        inside: outlines of the elements that have lists, by the list.
    """

    kind: Any = None
    lists: list[str] = field(default_factory=list)
    numbers: set[str] = field(default_factory=set)
    inside: dict[str, "_Outline"] = field(default_factory=dict)


def too_many_entries(descriptor: Any, data: bytes, entries_max: int) -> str | None:
    """Return which list or map of a message is too long, with its length; None: none is.

    A list or map may have `entries_max` entries, counted in all elements that have such a list
    together. Lists of numbers in elements may have `NUMBERS_PER_ENTRY` times as many.

    Args:
        descriptor: of the message's type.
        data: the message.
        entries_max: how many entries a list or map may have.

    Raises:
        DecodeError: no protobuf.
    """
    if len(data) <= entries_max:
        return None  # Each entry takes a byte at least.
    outline = _outline_of(descriptor)
    return None if outline.kind is None else _too_many(outline, data, entries_max)


def _too_many(
    outline: _Outline, data: bytes, entries_max: int, numbers_factor: int = 1
) -> str | None:
    """Count the lists of a message, or of several of one kind in a row."""
    message = outline.kind.FromString(data)
    for name in outline.lists:
        entries = getattr(message, name)
        count = len(entries)
        if count > entries_max * (numbers_factor if name in outline.numbers else 1):
            return f"{count} {name}"
        if count and (inside := outline.inside.get(name)):
            problem = _too_many(inside, b"".join(entries), entries_max, NUMBERS_PER_ENTRY)
            if problem is not None:
                return problem
    return None


@cache
def _outline_of(descriptor: Descriptor) -> _Outline:
    """Return the outline of a message type. Kinds that hold themselves are not for requests."""
    outline = _Outline()
    fields = []
    for described in descriptor.fields:
        message = described.message_type
        is_map = message is not None and message.GetOptions().map_entry
        inside = None if message is None or is_map else _outline_of(message)
        if inside is not None and inside.kind is not None:
            outline.inside[described.name] = inside  # Also a single one: its lists count.
        elif not described.is_repeated:
            continue
        outline.lists.append(described.name)
        if described.type not in _AS_BYTES:
            outline.numbers.add(described.name)
        fields.append(
            descriptor_pb2.FieldDescriptorProto(
                name=described.name,
                number=described.number,
                label=FieldDescriptor.LABEL_REPEATED,
                type=_type_of(described),
            )
        )
    if fields:
        name = descriptor.full_name.replace(".", "_")
        file = descriptor_pb2.FileDescriptorProto(
            name=name,
            package=_PACKAGE,
            syntax="proto3",
            message_type=[descriptor_pb2.DescriptorProto(name=name, field=fields)],
        )
        _pool.Add(file)
        found = _pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")
        outline.kind = message_factory.GetMessageClass(found)
    return outline


def _type_of(described: FieldDescriptor) -> Any:
    if described.type in _AS_BYTES:
        return FieldDescriptor.TYPE_BYTES
    return (
        FieldDescriptor.TYPE_INT32
        if described.type == FieldDescriptor.TYPE_ENUM
        else described.type
    )
