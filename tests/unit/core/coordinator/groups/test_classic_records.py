"""Generations of classic groups in the log."""

import json

import pytest

from millrace.core.coordinator.groups import coordinator
from millrace.core.coordinator.groups.classic_records import (
    ClassicMember,
    ClassicRecord,
    Generation,
    encode,
)
from millrace.core.errors import UnsupportedFormatError
from millrace.core.ids import WallMs

AT = WallMs(5)
MEMBER = ClassicMember(
    instance_id="one",
    client_id="app",
    address="10.0.0.7:5",
    namespace="shop",
    session_timeout_ms=10_000,
    rebalance_timeout_ms=300_000,
    metadata=b"\x00\xffm",
    assignment=b"a",
)
RECORD = ClassicRecord("grüße", Generation(3, "consumer", "range", "m", {"m": MEMBER}), AT)


def test_a_generation_is_laid_out_as_documented() -> None:
    key, value = encode(RECORD)
    name = "grüße".encode()
    assert key == b"\x08" + len(name).to_bytes(2, "little") + name
    assert value is not None
    assert json.loads(value) == {
        "version": 1,
        "number": 3,
        "protocol_type": "consumer",
        "protocol": "range",
        "leader": "m",
        "members": {
            "m": {
                "instance_id": "one",
                "client_id": "app",
                "address": "10.0.0.7:5",
                "namespace": "shop",
                "session_timeout_ms": 10_000,
                "rebalance_timeout_ms": 300_000,
                "metadata": "AP9t",
                "assignment": "YQ==",
            }
        },
    }


@pytest.mark.parametrize(
    "record", [RECORD, ClassicRecord("g", Generation(1), AT), ClassicRecord("g", None, AT)]
)
def test_what_is_written_is_read(record: ClassicRecord) -> None:
    assert coordinator.decode(*coordinator.encode(record), AT) == record


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"\x08\x01\x00g", b"{}"),
        (b"\x08\x01\x00g", b"[]"),
        (b"\x08\x01\x00g", b"x"),
        (b"\x08\x01\x00g", b'{"version": 2}'),
        (b"\x08\x02\x00g", None),
        (b"\x08\x01", None),
        (b"\x08\x01\x00\xff", None),
    ],
)
def test_a_record_of_a_later_release_is_not_passed_over(key: bytes, value: bytes | None) -> None:
    with pytest.raises(UnsupportedFormatError):
        coordinator.decode(key, value, AT)
