"""What people and clients write: files of settings, names, patterns, quotas."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from millrace.broker import config
from millrace.broker.rpc.requests import decode_request
from millrace.core.addresses import host_port, parse_addresses, split_address
from millrace.core.coordinator.groups.patterns import check_pattern, matching
from millrace.core.errors import (
    InvalidConfigError,
    InvalidGroupError,
    InvalidQuotaError,
    InvalidTopicError,
    MalformedRequestError,
    MillraceError,
)
from millrace.core.guard.access import Demand, Operation, ResourceKind, named, refusal
from millrace.core.ids import parse_topic_partition
from millrace.core.metadata.requests import parse_accepted_copy
from millrace.core.metadata.topic_config import parse_overrides
from millrace.core.quotas.quota import checked
from millrace.core.settings import Unit, parse_number
from millrace.core.topics import parse_topic_name
from millrace.proto.quotas import quota_from_wire, quota_to_wire
from millrace.proto.v1 import cluster_pb2

_FILE: Final = Path(tempfile.gettempdir(), f"millrace-fuzz-{os.getpid()}.toml")
_TEXT_MAX: Final = 20_000


def fuzz_broker_config(data: bytes) -> None:
    """A broker's file of settings, listeners among them, and after a zero the environment."""
    file, *variables = data.split(b"\0")
    pairs = [text.decode("utf-8", "replace").partition("=") for text in variables]
    environment = {f"{config.ENVIRONMENT_PREFIX}{name}": value for name, _, value in pairs}
    _FILE.write_bytes(file)
    try:
        found = config.load(_FILE, environment)
    except InvalidConfigError as error:
        _check_length(error)
    else:
        assert found.log_directories
        assert all(entry.config.port <= 65_535 for entry in found.listeners.entries)
    finally:
        _FILE.unlink()


def fuzz_topic_config(data: bytes) -> None:
    """Settings of a topic, a line for each: refused, or read alike once more."""
    lines = data.decode("utf-8", "replace").split("\n")
    given = {name: value for name, _, value in (line.partition("=") for line in lines)}
    try:
        found = parse_overrides(given)
    except InvalidConfigError as error:
        _check_length(error)
    else:
        assert parse_overrides(dict(reversed(given.items()))) == found


def fuzz_names(data: bytes) -> None:
    """Names of topics, partitions and brokers, addresses and numbers."""
    text = data.decode("utf-8", "surrogateescape")
    resource = named(ResourceKind.TOPICS, text)
    error = refusal("nobody", Demand(Operation.CONSUME, resource))
    assert len(error.message) < 1000
    with suppress(InvalidTopicError):
        name = parse_topic_name(text)
        assert parse_topic_name(str(name)) == name
        assert (resource.namespace, resource.name) == name
    with suppress(ValueError):
        for address in parse_addresses(text):
            host, port = split_address(address)
            assert 0 < port <= 65_535
            assert split_address(host_port(host, port)) == (host, port)
    partition = parse_topic_partition(text)
    assert partition is None or parse_topic_partition(str(partition)) == partition
    with suppress(ValueError):
        assert parse_accepted_copy(text)
    for unit in Unit:
        with suppress(ValueError):
            parse_number(text, unit)


def fuzz_patterns(data: bytes) -> None:
    """A pattern of topics: refused, or it matches names, in a time that does not explode."""
    pattern, _, rest = data.decode("utf-8", "surrogateescape").partition("\n")
    names = [name for name in rest.split("\n") if name.isprintable()]
    with suppress(InvalidGroupError):  # A log may have it all the same.
        check_pattern(pattern)
    assert set(matching(pattern, names)) <= set(names)


def fuzz_quotas(data: bytes) -> None:
    """A quota as a client sends it: refused, or one that keeps its rules."""
    with suppress(MalformedRequestError, InvalidQuotaError):
        message: Any = decode_request(cluster_pb2.Quota, data, 1)
        quota = checked(quota_from_wire(message))
        assert checked(quota_from_wire(quota_to_wire(quota))) == quota


def _check_length(error: MillraceError) -> None:
    assert len(error.message) <= _TEXT_MAX, "an answer that is much larger than its question"
