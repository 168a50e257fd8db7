"""The wire's rules, and what it owes to those who speak the last release's."""

from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)
from tests.arch.wire import breaks, compiled, last_release, lint


def test_the_wire_keeps_its_rules() -> None:
    assert lint(compiled()) == []


def test_nobody_who_speaks_the_last_releases_wire_is_broken() -> None:
    assert breaks(last_release(), compiled()) == []


# What the lint finds.

LINTED = """
syntax = "proto3";
package {package};
// A thing.
message Thing {{
  // Commented.
  string name = 1;
  {field}
}}
// Which.
enum Which {{ {zero} = 0; }}
service Things {{
  // Commented.
  rpc Find({request}) returns (FindResponse);
}}
message FindRequest {{}}
message FindResponse {{}}
"""


def linted(tmp_path: Path, **parts: str) -> list[str]:
    good = {
        "package": "things.v1",
        "field": "",
        "zero": "WHICH_UNSPECIFIED",
        "request": "FindRequest",
    }
    file = tmp_path / "things" / "v1" / "things.proto"
    file.parent.mkdir(parents=True)
    file.write_text(LINTED.format_map(good | parts))
    return lint(compiled(tmp_path))


def test_the_lint_finds_nothing_in_what_keeps_the_rules(tmp_path: Path) -> None:
    assert linted(tmp_path) == []
    assert (
        linted(tmp_path / "2", field="reserved 2; // Was.\n // Commented.\n int32 size = 3;") == []
    )


@pytest.mark.parametrize(
    ("part", "text", "finding"),
    [
        ("package", "things.v2", "not its folder's"),
        ("package", "things", "no version"),
        ("field", "int32 size = 2;", "Thing.size has no comment"),
        ("field", "// Commented.\n int32 Size = 2;", "lower case"),
        ("field", "// Commented.\n int32 size = 3;", "2 is neither used nor reserved"),
        ("zero", "WHICH_THIS", "zero is WHICH_THIS"),
        ("zero", "THIS", "does not begin with WHICH_"),
        ("request", "Thing", "does not speak FindRequest"),
    ],
)
def test_the_lint_finds_what_breaks_a_rule(
    tmp_path: Path, part: str, text: str, finding: str
) -> None:
    findings = linted(tmp_path, **{part: text})
    assert any(finding in found for found in findings), findings


# What breaks a peer. Each change is made to the wire as it is.


def message_of(files: FileDescriptorSet, name: str) -> DescriptorProto:
    return next(m for file in files.file for m in file.message_type if m.name == name)


def enum_of(files: FileDescriptorSet, name: str) -> EnumDescriptorProto:
    return next(e for file in files.file for e in file.enum_type if e.name == name)


def service_of(files: FileDescriptorSet, name: str) -> ServiceDescriptorProto:
    return next(s for file in files.file for s in file.service if s.name == name)


def field_of(files: FileDescriptorSet, message: str, name: str) -> FieldDescriptorProto:
    return next(f for f in message_of(files, message).field if f.name == name)


def remove_field(files: FileDescriptorSet) -> None:
    message_of(files, "ProduceHeader").field.remove(field_of(files, "ProduceHeader", "acks"))


def remove_field_and_reserve_the_number_alone(files: FileDescriptorSet) -> None:
    remove_field(files)
    message_of(files, "ProduceHeader").reserved_range.add(start=2, end=3)


def change_type(files: FileDescriptorSet) -> None:
    field_of(files, "ProduceHeader", "acks").type = FieldDescriptorProto.TYPE_INT32


def change_message_type(files: FileDescriptorSet) -> None:
    field_of(files, "LeaderEpochResult", "end").type_name = ".millrace.proto.v1.AbortedTransaction"


def change_number(files: FileDescriptorSet) -> None:
    field_of(files, "ProduceHeader", "acks").number = 99


def rename_field(files: FileDescriptorSet) -> None:
    field_of(files, "ProduceHeader", "acks").name = "acknowledgements"


def repeat_field(files: FileDescriptorSet) -> None:
    field_of(files, "ProduceHeader", "acks").label = FieldDescriptorProto.LABEL_REPEATED


def forget_presence(files: FileDescriptorSet) -> None:
    field = field_of(files, "FetchSettings", "replica_id")
    field.proto3_optional = False
    field.ClearField("oneof_index")


def leave_oneof(files: FileDescriptorSet) -> None:
    field_of(files, "ListOffsetsPartition", "timestamp").ClearField("oneof_index")


def swap_numbers(files: FileDescriptorSet) -> None:
    field_of(files, "ProduceHeader", "acks").number = 3
    field_of(files, "ProduceHeader", "request_timeout_ms").number = 2


def rename_enum_value(files: FileDescriptorSet) -> None:
    enum_of(files, "ErrorCode").value[8].name = "ERROR_CODE_WRONG_LEADER"


def remove_enum_value(files: FileDescriptorSet) -> None:
    del enum_of(files, "ErrorCode").value[8]


def renumber_enum_value(files: FileDescriptorSet) -> None:
    enum_of(files, "ErrorCode").value[8].number = 999


def remove_message(files: FileDescriptorSet) -> None:
    for file in files.file:
        for message in list(file.message_type):
            if message.name == "AbortedTransaction":
                file.message_type.remove(message)


def remove_method(files: FileDescriptorSet) -> None:
    del service_of(files, "Fetch").method[1]


def stop_streaming(files: FileDescriptorSet) -> None:
    service_of(files, "Fetch").method[0].client_streaming = False


def rename_package(files: FileDescriptorSet) -> None:
    for file in files.file:
        file.package = "millrace.proto.v2"


@pytest.mark.parametrize(
    "change",
    [
        remove_field,
        remove_field_and_reserve_the_number_alone,
        change_type,
        change_message_type,
        change_number,
        rename_field,
        repeat_field,
        forget_presence,
        leave_oneof,
        swap_numbers,
        rename_enum_value,
        remove_enum_value,
        renumber_enum_value,
        remove_message,
        remove_method,
        stop_streaming,
        rename_package,
    ],
)
def test_a_change_that_breaks_a_peer_is_found(
    change: Callable[[FileDescriptorSet], None],
) -> None:
    changed = compiled()
    change(changed)
    assert breaks(compiled(), changed)


def test_a_reserved_number_is_not_used_again() -> None:
    old, new = compiled(), compiled()
    remove_field(old)
    message_of(old, "ProduceHeader").reserved_range.add(start=2, end=3)
    assert any("reserved and is used again" in found for found in breaks(old, new))


def test_growing_breaks_nobody() -> None:
    grown = compiled()
    message_of(grown, "ProduceHeader").field.add(name="more", number=99, type=9, label=1)
    enum_of(grown, "ErrorCode").value.add(name="ERROR_CODE_NEW", number=999)
    service_of(grown, "Fetch").method.add(name="More")
    grown.file[0].message_type.add(name="More")
    assert breaks(compiled(), grown) == []


def test_a_field_may_go_when_its_number_and_name_are_reserved() -> None:
    reserved = compiled()
    remove_field(reserved)
    header = message_of(reserved, "ProduceHeader")
    header.reserved_range.add(start=2, end=3)
    header.reserved_name.append("acks")
    assert breaks(compiled(), reserved) == []
