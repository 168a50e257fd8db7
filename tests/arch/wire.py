"""The wire as descriptors: its lint, and what would break those who speak the last release's.

`make release` stores the present wire as that of the last release.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)
from tests.arch.repository import ROOT
from tests.releases.last import WIRE

PROTO = ROOT / "proto"

# Zero means something here, as in Kafka: what a reader gets that says nothing.
MEANINGFUL_ZEROS = {"IsolationLevel"}


def compiled(folder: Path = PROTO) -> FileDescriptorSet:
    """Return the descriptors of every .proto file below `folder`, with its comments."""
    return FileDescriptorSet.FromString(_compile(folder))


@cache
def _compile(folder: Path) -> bytes:
    sources = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.proto"))
    with tempfile.NamedTemporaryFile() as output:
        subprocess.run(
            [
                *(sys.executable, "-m", "grpc_tools.protoc", "-I", "."),
                *("--include_source_info", f"--descriptor_set_out={output.name}", *sources),
            ],
            cwd=folder,
            check=True,
        )
        return Path(output.name).read_bytes()


def last_release() -> FileDescriptorSet:
    """Return the descriptors of the last release."""
    return json_format.Parse(WIRE.read_text(), FileDescriptorSet())


def keep_for_the_next_release() -> None:
    """Write the wire as it is for the last release's."""
    files = compiled()
    for file in files.file:
        file.ClearField("source_code_info")
    WIRE.write_text(json_format.MessageToJson(files, indent=1) + "\n")


# Lint.


def lint(files: FileDescriptorSet) -> list[str]:
    """Return what is not as the wire's rules want it, each with its place."""
    return [f"{file.name}: {finding}" for file in files.file for finding in _lint(file)]


def _lint(file: FileDescriptorProto) -> Iterator[str]:
    folder = file.name.rpartition("/")[0]
    if not re.fullmatch(r"([a-z]+\.)+v[0-9]+", file.package):
        yield f"the package {file.package!r} has no version"
    if file.package.replace(".", "/") != folder:
        yield f"the package {file.package!r} is not its folder's"
    if file.syntax != "proto3":
        yield f"its syntax is {file.syntax or 'proto2'}"
    commented = {
        tuple(place.path)
        for place in file.source_code_info.location
        if place.leading_comments.strip() or place.trailing_comments.strip()
    }
    for path, message in _messages(file):
        yield from _lint_fields(message, path, commented)
    for path, enum in _enums(file):
        if path not in commented:
            yield f"{enum.name} has no comment"
        yield from _lint_enum(enum)
    for index, service in enumerate(file.service):
        yield from _lint_service(service, (6, index), commented)


def _lint_fields(
    message: DescriptorProto, path: tuple[int, ...], commented: set[tuple[int, ...]]
) -> Iterator[str]:
    for index, field in enumerate(message.field):
        place = f"{message.name}.{field.name}"
        if (*path, 2, index) not in commented:
            yield f"{place} has no comment"
        if not re.fullmatch(r"[a-z][a-z0-9_]*", field.name):
            yield f"{place} is not in lower case with underscores"
    used = {field.number for field in message.field}
    reserved = {n for piece in message.reserved_range for n in range(piece.start, piece.end)}
    for number in range(1, max(used, default=0)):
        if number not in used and number not in reserved:
            yield f"{message.name}: the number {number} is neither used nor reserved"


def _lint_enum(enum: EnumDescriptorProto) -> Iterator[str]:
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper() + "_"
    zero = next(value.name for value in enum.value if value.number == 0)
    if zero != f"{prefix}UNSPECIFIED" and enum.name not in MEANINGFUL_ZEROS:
        yield f"{enum.name}: zero is {zero}, not {prefix}UNSPECIFIED"
    for value in enum.value:
        if not value.name.startswith(prefix):
            yield f"{enum.name}: {value.name} does not begin with {prefix}"
    if enum.options.allow_alias:
        yield f"{enum.name} gives a number two names"


def _lint_service(
    service: ServiceDescriptorProto, path: tuple[int, ...], commented: set[tuple[int, ...]]
) -> Iterator[str]:
    for index, method in enumerate(service.method):
        if (*path, 2, index) not in commented:
            yield f"{service.name}.{method.name} has no comment"
        for kind, name in (("Request", method.input_type), ("Response", method.output_type)):
            if name.rpartition(".")[2] != method.name + kind:
                yield f"{service.name}.{method.name} does not speak {method.name + kind}"


# Compatibility.


def breaks(old: FileDescriptorSet, new: FileDescriptorSet) -> list[str]:
    """Return what would break a peer that speaks `old`; names count, for JSON and for our users."""
    findings: list[str] = []
    was, now = _by_name(old), _by_name(new)
    for name, thing in was.items():
        if name not in now:
            findings.append(f"{name} is gone")
        elif isinstance(thing, DescriptorProto):
            findings += _broken_fields(name, thing, now[name])
        elif isinstance(thing, EnumDescriptorProto):
            findings += _broken_values(name, thing, now[name])
        else:
            findings += _broken_methods(name, thing, now[name])
    return findings


def _broken_fields(name: str, old: DescriptorProto, new: DescriptorProto) -> Iterator[str]:
    was, now = ({field.number: field for field in message.field} for message in (old, new))
    for number, field in was.items():
        if number in now:
            before, after = _shape(old, field), _shape(new, now[number])
            if before != after:
                yield f"{name}: the number {number} was {before} and is {after}"
        elif not _is_reserved(number, field.name, new):
            yield f"{name}: {field.name} = {number} is gone, and not reserved by number and name"
    for piece in old.reserved_range:
        for number in range(piece.start, piece.end):
            if number in now:
                yield f"{name}: the number {number} was reserved and is used again"


def _broken_values(name: str, old: EnumDescriptorProto, new: EnumDescriptorProto) -> Iterator[str]:
    now = {value.number: value.name for value in new.value}
    for value in old.value:
        if now.get(value.number) != value.name:
            yield f"{name}: {value.name} = {value.number} is {now.get(value.number, 'gone')}"


def _broken_methods(
    name: str, old: ServiceDescriptorProto, new: ServiceDescriptorProto
) -> Iterator[str]:
    now = {method.name: method for method in new.method}
    for method in old.method:
        if now.get(method.name) != method:
            yield f"{name}: {method.name} is gone, or speaks in another way"


def _shape(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    """Return all that a peer relies on in a field, as one text."""
    kind = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    words = [FieldDescriptorProto.Label.Name(field.label).removeprefix("LABEL_").lower()]
    if field.proto3_optional:
        words = ["present or absent"]
    elif field.HasField("oneof_index"):
        words = [f"one of {message.oneof_decl[field.oneof_index].name}"]
    return " ".join([*words, field.type_name.lstrip(".") or kind, field.name])


def _is_reserved(number: int, name: str, message: DescriptorProto) -> bool:
    return name in message.reserved_name and any(
        piece.start <= number < piece.end for piece in message.reserved_range
    )


def _by_name(files: FileDescriptorSet) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file in files.file:
        things: list[Sequence[Any]] = [
            [message for _, message in _messages(file)],
            [enum for _, enum in _enums(file)],
            file.service,
        ]
        for thing in (thing for kind in things for thing in kind):
            found[f"{file.package}.{thing.name}"] = thing
    return found


def _messages(file: FileDescriptorProto) -> Iterator[tuple[tuple[int, ...], DescriptorProto]]:
    for index, message in enumerate(file.message_type):
        assert all(nested.options.map_entry for nested in message.nested_type), "messages are flat"
        yield (4, index), message


def _enums(file: FileDescriptorProto) -> Iterator[tuple[tuple[int, ...], EnumDescriptorProto]]:
    for index, enum in enumerate(file.enum_type):
        yield (5, index), enum
