"""Brokers' answers to clients.

A broker that is wrong, or of a later release, must not end a program by an error that no program
expects. Changed bytes alone seldom are another answer, so half of the changes are to fields.
"""

import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from tests.fakes.virtual_loop import in_virtual_time

from millrace.client import Admin, Position, SharedTransaction, plan_reassignment
from millrace.client._cluster.connection import Connection
from millrace.client._consumer.fetch_stream import _news
from millrace.client._producer.produce_stream import _answer_of
from millrace.core.errors import MillraceError
from millrace.proto.v1 import cluster_pb2, fetch_pb2, produce_pb2
from millrace.proto.v1.common_pb2 import HelloResponse
from millrace.runtime.transport.calls import CallError, Status

NEXT: Final = b"\0\0\0\0"
"""Between two answers."""
_TEXT_MAX: Final = 20_000

_PLACE: Final = ("t", 0)
_SHARED: Final = SharedTransaction("x", 1, 1, is_done=False, renew_ms=1)


async def _describe_topics(admin: Admin) -> object:
    topics = (await admin.describe_topics()).values()
    _look_at([*topics])
    cluster = await admin.describe_cluster()
    needed = [topic.min_insync_replicas(at) for topic in topics for at in topic.partitions]
    return needed, plan_reassignment(topics, cluster.brokers)


async def _describe_logs(admin: Admin) -> object:
    logs = await admin.describe_logs("t")
    topics = await admin.describe_topics()
    return logs, [topic.misplaced(logs) for topic in topics.values()]


async def _describe_group(admin: Admin) -> object:
    group = await admin.describe_group("g")
    if group is None:
        return None
    return group, group.partitions(await admin.describe_topics(group.topics))


CALLS: Final[dict[str, Callable[[Admin], Awaitable[object]]]] = {
    "list_topics": lambda admin: admin.list_topics(),
    "describe_topics": _describe_topics,
    "create_topic": lambda admin: admin.create_topic("t"),
    "describe_health": lambda admin: admin.describe_health(),
    "describe_cluster": lambda admin: admin.describe_cluster(),
    "describe_broker_configs": lambda admin: admin.describe_broker_configs(),
    "describe_logs": _describe_logs,
    "describe_damage": lambda admin: admin.describe_damage(),
    "list_deleted_topics": lambda admin: admin.list_deleted_topics(),
    "list_offsets": lambda admin: admin.list_offsets([_PLACE]),
    "find_epoch_ends": lambda admin: admin.find_epoch_ends({_PLACE: 1}),
    "describe_lags": lambda admin: admin.describe_lags({_PLACE: 1}),
    "delete_records": lambda admin: admin.delete_records({_PLACE: 1}),
    "list_groups": lambda admin: admin.list_groups(),
    "describe_group": _describe_group,
    "fetch_positions": lambda admin: admin.fetch_positions("g"),
    "list_quotas": lambda admin: admin.list_quotas(),
    "describe_quotas": lambda admin: admin.describe_quotas(),
    "elect_leaders": lambda admin: admin.elect_leaders([_PLACE]),
    "reassign_partitions": lambda admin: admin.reassign_partitions({_PLACE: [1]}),
    "list_transactions": lambda admin: admin.list_transactions(),
    "describe_transaction": lambda admin: admin.describe_transaction("x"),
    "list_open_transactions": lambda admin: admin.list_open_transactions([_PLACE]),
    "find_hanging_transactions": lambda admin: admin.find_hanging_transactions(),
    "describe_topic": lambda admin: admin.describe_topic("t"),
    "alter_topic": lambda admin: admin.alter_topic("t", partitions=2),
    "delete_topic": lambda admin: admin.delete_topic("t"),
    "undelete_topic": lambda admin: admin.undelete_topic("t"),
    "purge_topic": lambda admin: admin.purge_topic("t"),
    "drain_broker": lambda admin: admin.drain_broker(1),
    "undrain_broker": lambda admin: admin.undrain_broker(1),
    "unregister_broker": lambda admin: admin.unregister_broker(1),
    "wait_for_news": lambda admin: admin.wait_for_news({_PLACE: 1}, 100),
    "resolve_initial": lambda admin: admin.resolve_initial("g", {_PLACE: Position(1)}),
    "commit_positions": lambda admin: admin.commit_positions("g", {_PLACE: Position(1)}),
    "forget_topics": lambda admin: admin.forget_topics("g", ["t"]),
    "delete_group": lambda admin: admin.delete_group("g"),
    "set_quota": lambda admin: admin.set_quota("q", client_id="", request_percent=1),
    "delete_quota": lambda admin: admin.delete_quota("q"),
    "abort_transaction": lambda admin: admin.abort_transaction("x"),
    "abort_open_transaction": lambda admin: admin.abort_open_transaction(_PLACE, 1, 1),
    "open_shared_transaction": lambda admin: admin.open_shared_transaction("x", "run"),
    "commit_shared_transaction": lambda admin: admin.commit_shared_transaction(_SHARED, []),
    "abort_shared_transaction": lambda admin: admin.abort_shared_transaction(_SHARED),
    "renew_shared_transaction": lambda admin: admin.renew_shared_transaction(_SHARED),
    "forget_version": lambda admin: admin.forget_version("x"),
}
"""Every call of `Admin`, in an order that the corpus goes by: a new one comes last."""


def fuzz_answers(data: bytes) -> None:
    """Answers of brokers to `Admin`: read, or a typed error, in a bounded time.

    The first byte chooses the call. The first answer is the cluster's metadata, whenever that is
    asked for; the others come in turn.
    """
    number, answers = data[0] if data else 0, data[1:].split(NEXT)
    if number < len(CALLS):
        channel = _Answering(answers)
        in_virtual_time(_ask)(list(CALLS.values())[number], channel)
        if len(channel.asked) > len(_asked.get(number, ())):
            _asked[number] = channel.asked
        return
    with suppress(DecodeError, MillraceError):
        _news(fetch_pb2.FetchedPartition.FromString(answers[0]), memoryview(b""))
    with suppress(DecodeError, MillraceError):
        for answer in produce_pb2.ProduceAnswer.FromString(answers[0]).results:
            _answer_of(answer)


async def _ask(call: Callable[[Admin], Awaitable[object]], channel: Any) -> None:
    admin = Admin("h:1", request_timeout_ms=300, metadata_timeout_ms=100)

    async def connect(address: str) -> Connection:
        return Connection(address, channel, HelloResponse(broker_id=1))

    cluster: Any = admin._cluster
    cluster._connect = connect
    try:
        _look_at(await call(admin))
    except MillraceError as error:
        _look_at_error(error)
    finally:
        await admin.close()


def _look_at_error(error: MillraceError) -> None:
    assert len(error.message) <= _TEXT_MAX, "an answer that is much larger than its question"


def _look_at(found: object) -> None:
    """Look at all that an answer says, and at all that it computes from that."""
    if isinstance(found, Mapping):
        _look_at([*found.keys(), *found.values()])
    elif isinstance(found, (list, tuple)):
        for each in found:
            _look_at(each)
    else:
        kind: Any = type(found)
        for name in _attributes(kind):
            _look_at(getattr(found, name))


@cache
def _attributes(of: type) -> tuple[str, ...]:
    """Return the fields and properties of a dataclass; none of anything else."""
    if not is_dataclass(of):
        return ()
    computed = (name for name, found in vars(of).items() if isinstance(found, property))
    return (*(field.name for field in fields(of)), *computed)


class _Answering:
    """The channel to a broker that gives these answers, and is then gone."""

    def __init__(self, answers: list[bytes]) -> None:
        self._metadata, *self._others = answers
        self.asked: list[type[Message]] = [cluster_pb2.GetMetadataResponse]
        """What is expected in the place of each answer."""

    def unary_unary(
        self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any
    ) -> Any:
        async def calling(request: Any) -> Any:
            request_serializer(request)
            is_of_metadata = method.endswith("/GetMetadata")
            if not is_of_metadata:
                self.asked.append(response_deserializer.__self__)
            if not is_of_metadata and not self._others:
                raise CallError(Status.UNAVAILABLE, "it is gone")
            answer = self._metadata if is_of_metadata else self._others.pop(0)
            try:
                return response_deserializer(answer)
            except DecodeError as error:
                raise CallError(Status.INTERNAL, "no such answer") from error

        return calling

    def stream_stream(self, *_: Any, **__: Any) -> None:
        """Nothing here opens a stream."""

    async def close(self) -> None:
        """End."""


# --- Changes ---------------------------------------------------------------------------------

_asked: Final[dict[int, list[type[Message]]]] = {}
"""What is expected in the place of each answer to a call, by its number, as far as is known."""
_TOPIC_ID: Final = bytes(range(1, 17))
_TEXTS: Final = (
    *("", "t", "default/t", "x/y", "-1", "2", "\N{SUPERSCRIPT TWO}", "9" * 40, "h:1", "h"),
    *("cluster.default_replication_factor", "max.message.bytes", "media", "min.insync.replicas"),
    *("__transactions", "new address", "slow disk", "ssd"),
)
_LONG: Final = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
_UNSIGNED: Final = (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64)
_CLEARED: Final = 0.15
_WITHIN: Final = 0.6
_OF_NEW: Final = 4
"""Changes of a new entry."""


def mutate_answers(data: bytes, dice: random.Random) -> bytes:
    """Return the same input with a field of one of its answers changed."""
    number, answers = data[0] if data else 0, data[1:].split(NEXT)
    kinds = _asked.get(number)
    if kinds is None:
        return data
    at = dice.randrange(len(kinds))
    answers += [b""] * (at + 1 - len(answers))
    message = kinds[at]()
    with suppress(DecodeError):
        message.ParseFromString(answers[at])
    _change(message, dice)
    answers[at] = message.SerializeToString()
    return data[:1] + NEXT.join(answers)


def _change(message: Any, dice: random.Random) -> None:
    """Change a field of a message, or of a message within it."""
    if not message.DESCRIPTOR.fields:
        return
    field = dice.choice(message.DESCRIPTOR.fields)
    found = getattr(message, field.name)
    if dice.random() < _CLEARED:
        message.ClearField(field.name)
    elif not field.is_repeated:
        if field.message_type is None:
            setattr(message, field.name, _value(field, dice))
        else:
            _change(found, dice)
    elif found and dice.random() < _CLEARED:
        del found[dice.randrange(len(found))]
    elif field.message_type is None:
        found.append(_value(field, dice))
    elif found and dice.random() < _WITHIN:
        _change(dice.choice(found), dice)
    else:
        added = found.add()
        if dice.random() < _WITHIN:
            added.CopyFrom(found[0])
        for _ in range(_OF_NEW):
            _change(added, dice)


def _value(field: FieldDescriptor, dice: random.Random) -> object:
    """Return a value for a field; one in the place of a list's is one of its entries."""
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return dice.random() < 0.5
        case FieldDescriptor.CPPTYPE_ENUM:
            assert field.enum_type is not None
            return dice.choice([*field.enum_type.values_by_number, 99])
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return dice.choice([0.0, 0.5, -1.0, float("nan"), float("inf")])
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return dice.choice([_TOPIC_ID, _TOPIC_ID[::-1], b""])
        case FieldDescriptor.CPPTYPE_STRING:
            return dice.choice(_TEXTS)
    bits = 64 if field.cpp_type in _LONG else 32
    if field.cpp_type in _UNSIGNED:
        return dice.choice([0, 1, 2, (1 << bits) - 1])
    return dice.choice([-1, 0, 1, 2, (1 << bits - 1) - 1, -1 << bits - 1])
