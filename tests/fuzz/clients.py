"""What clients read that others wrote: brokers' answers, kubeconfigs, checkpoints, people's files.

A broker that is wrong, or of a later release, must not end a program by an error that no program
expects.
"""

import io
import json
import os
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final
from unittest import mock

from google.protobuf.message import DecodeError
from tests.fakes.virtual_loop import in_virtual_time

from millrace.cli import profiles
from millrace.cli.console.failures import Failure
from millrace.cli.groups.group_reset import read_positions
from millrace.cli.moves import assignment_file
from millrace.cli.records.sources import RecordMapping, read_records
from millrace.client import Admin, Position, SharedTransaction, plan_reassignment
from millrace.client._cluster.connection import Connection
from millrace.client._consumer.fetch_stream import _news
from millrace.client._producer.produce_stream import _answer_of
from millrace.core.errors import InvalidConfigError, MillraceError
from millrace.proto.v1 import fetch_pb2, produce_pb2
from millrace.proto.v1.common_pb2 import HelloResponse
from millrace.runtime.kubernetes.access import from_kubeconfig
from millrace.runtime.transport.calls import CallError, Status
from millrace.spark.cluster.offsets import Offsets
from millrace.spark.errors import CheckpointError

NEXT: Final = b"\0\0\0\0"
"""Between two answers."""
_FOLDER: Final = Path(tempfile.mkdtemp(prefix="millrace-fuzz-"))
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
        in_virtual_time(_ask)(list(CALLS.values())[number], answers)
        return
    with suppress(DecodeError, MillraceError):
        _news(fetch_pb2.FetchedPartition.FromString(answers[0]), memoryview(b""))
    with suppress(DecodeError, MillraceError):
        for answer in produce_pb2.ProduceAnswer.FromString(answers[0]).results:
            _answer_of(answer)


async def _ask(call: Callable[[Admin], Awaitable[object]], answers: list[bytes]) -> None:
    channel: Any = _Answering(answers)
    admin = Admin("h:1", request_timeout_ms=300, metadata_timeout_ms=100)

    async def connect(address: str) -> Connection:
        return Connection(address, channel, HelloResponse(broker_id=1))

    cluster: Any = admin._cluster
    cluster._connect = connect
    try:
        _look_at(await call(admin))
    except MillraceError as error:
        _check_length(error.message)
    finally:
        await admin.close()


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

    def unary_unary(
        self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any
    ) -> Any:
        async def calling(request: Any) -> Any:
            request_serializer(request)
            is_of_metadata = method.endswith("/GetMetadata")
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


def fuzz_kubeconfig(data: bytes) -> None:
    """A kubeconfig: access to an API server, or refused. No program that it names is run."""
    path = _FOLDER / "kubeconfig"
    path.write_bytes(data)
    failed = subprocess.TimeoutExpired("a program", 1)
    with mock.patch.object(subprocess, "run", side_effect=failed):
        try:
            access = from_kubeconfig(path)
        except InvalidConfigError as error:
            _check_length(error.message)
            return
        assert all(type(text) is str for text in (access.server, access.namespace))
        assert type(access.tls_server_name) in (str, type(None))
        with suppress(OSError, UnicodeDecodeError):
            assert type(access.token()) in (str, type(None))


def fuzz_spark_checkpoint(data: bytes) -> None:
    """Offsets that a checkpoint has kept: refused, or those that are written so."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(value, dict):
        return  # Spark itself has offsets as objects.
    try:
        found = Offsets.from_dict(value)
    except CheckpointError as error:
        _check_length(str(error))
        return
    again = Offsets.from_dict(found.to_dict())
    assert again.to_dict() == found.to_dict()
    assert again.positions == found.positions
    assert all(0 <= position.offset < 1 << 63 for position in found.positions.values())


_MAPPINGS: Final = (
    RecordMapping(),
    RecordMapping(key="a", value="b", timestamp="c", headers="d", null_value="-"),
    RecordMapping(key="key", value="value", timestamp="timestamp", headers="headers"),
    RecordMapping(key_separator=b"\t", null_value="null", as_text=True),
)
_FORMATS: Final = ("lines", "json", "csv")


def fuzz_cli_files(data: bytes) -> None:
    """Files that people give to commands, by the first byte: profiles, plans, positions, records.

    Read, or one message that says what is wrong.
    """
    number, contents = data[0] if data else 0, data[1:]
    try:
        if number == 0:
            _read_profiles(contents)
        elif number == 1:
            plan = assignment_file.parse(contents, "plan.json")
            again = assignment_file.text(assignment_file.document(plan, plan))
            assert assignment_file.parse(again.encode(), "plan.json") == plan
        elif number == 2:
            read_positions(contents, "positions.json")
        else:
            mapping = _MAPPINGS[number // len(_FORMATS) % len(_MAPPINGS)]
            _read_records(contents, _FORMATS[number % len(_FORMATS)], mapping)
    except Failure as failure:
        _check_length(failure.message)


def _read_profiles(contents: bytes) -> None:
    (_FOLDER / "millrace").mkdir(exist_ok=True)
    (_FOLDER / "millrace" / "config.toml").write_bytes(contents)
    with mock.patch.dict(os.environ, {"XDG_CONFIG_HOME": str(_FOLDER)}):
        found = profiles.load()
        found.store()
        assert profiles.load() == found


def _read_records(contents: bytes, file_format: str, mapping: RecordMapping) -> None:
    last = 0
    for columns in read_records(io.BytesIO(contents), "file", file_format, mapping):
        assert len(columns.values) == len(columns.numbers) > 0
        assert columns.numbers[0] > last
        last = columns.numbers[-1]


def _check_length(text: str) -> None:
    assert len(text) <= _TEXT_MAX, "an answer that is much larger than its question"
