"""A broker that knows six callers by their tokens, and calls to it in their names."""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from tests.integration.running_broker import RunningBroker

from millrace.core.guard.token_file import new_entry, tokens_to_text
from millrace.core.ids import WallMs
from millrace.proto.errors import error_from_trailers
from millrace.proto.v1 import common_pb2

ROLES = ("nobody", "describer", "consumer", "producer", "owner", "administrator")

RULES = """
[[rules]]
who = ["describer", "consumer", "producer"]
may = ["describe"]
topics = ["team/*"]
groups = ["team/*"]
transactions = ["team/*"]

[[rules]]
who = ["consumer"]
may = ["consume"]
topics = ["team/*"]
groups = ["team/*"]

[[rules]]
who = ["producer"]
may = ["produce", "transact"]
topics = ["team/*"]
transactions = ["team/*"]

[[rules]]
who = ["owner"]
may = ["produce", "consume", "describe", "create", "alter", "delete", "transact"]
topics = ["team/*"]
groups = ["team/*"]
transactions = ["team/*"]

[[rules]]
who = ["administrator"]
may = ["describe", "administer"]
topics = ["*/*"]
groups = ["*/*"]
transactions = ["*/*"]
cluster = true

[[rules]]
who = ["root"]
may = ["produce", "consume", "describe", "create", "alter", "delete", "transact", "administer"]
topics = ["*/*", "default/__*"]
groups = ["*/*"]
transactions = ["*/*"]
cluster = true
"""


def token_of(name: str) -> str:
    """Return the token of a caller."""
    return f"mlr_{name}_{'x' * 30}"


def authorization(name: str) -> list[tuple[str, str]]:
    """Return the metadata of a caller's calls."""
    return [] if name == "nobody" else [("authorization", f"Bearer {token_of(name)}")]


class GuardedBroker(RunningBroker):
    """A broker with rules and tokens.

    Args:
        folder: of the broker, its files too.
        settings: as of `RunningBroker`.
    """

    def __init__(self, folder: Path, settings: dict[str, object] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.rules, self.tokens = folder / "rules.toml", folder / "tokens"
        self.write_rules(RULES)
        self.write_tokens(dict.fromkeys((*ROLES[1:], "root")))
        files = {"access.rules_file": self.rules, "access.tokens_file": self.tokens}
        super().__init__(folder, {**files, **(settings or {})})

    def write_rules(self, text: str) -> None:
        """Replace the rules."""
        replace_file(self.rules, text)

    def write_tokens(self, ends: dict[str, int | None]) -> None:
        """Replace the tokens: names, and when each token ends."""
        entries = [
            new_entry(token_of(name), name, [], None if end is None else WallMs(end), b"s" * 16)
            for name, end in ends.items()
        ]
        replace_file(self.tokens, tokens_to_text(entries))

    def token_file(self, name: str) -> Path:
        """Return a file with the token of a caller."""
        path = self.folder / f"{name}.token"
        path.write_text(token_of(name) + "\n")
        return path

    def wait_for(self, event: str, times: int) -> None:
        """Wait until the log has an event so many times."""
        deadline = time.monotonic() + 30
        while self._said().count(f'"{event}"') < times:
            assert time.monotonic() < deadline, self.log_end()
            time.sleep(0.05)


def replace_file(path: Path, text: str) -> None:
    """Replace a file at once: a broker may read it at any moment."""
    other = path.with_suffix(".new")
    other.write_text(text)
    os.replace(other, path)


def call(
    channel: grpc.Channel, method: Any, request: Message, metadata: Sequence[tuple[str, str]]
) -> tuple[Any, set[str]]:
    """Make a call with one request.

    Args:
        channel: to the broker.
        method: descriptor of the method.
        request: to send.
        metadata: of the call.

    Returns:
        The answer; None: the call failed as a whole. And the names of the errors of access.
    """
    path = f"/{method.containing_service.full_name}/{method.name}"
    ask: Any = channel.unary_unary(
        path,
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
    try:
        response = ask(request, timeout=20, metadata=metadata)
    except grpc.RpcError as error:
        failed: Any = error
        refusal = error_from_trailers(failed.trailing_metadata() or (), failed.details() or "")
        name = "" if refusal is None else refusal.name()
        return None, {name} if _is_access(name) else set()
    return response, {name for name in _error_names(response) if _is_access(name)}


def _is_access(name: str) -> bool:
    return name.endswith(("AUTHORIZATION_FAILED", "AUTHENTICATION_FAILED"))


def _error_names(message: Message) -> Iterator[str]:
    """Yield the names of all errors in an answer."""
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for found in value if field.is_repeated else [value]:
            if isinstance(found, common_pb2.Error):
                yield common_pb2.ErrorCode.Name(found.code).removeprefix("ERROR_CODE_")
            else:
                yield from _error_names(found)
