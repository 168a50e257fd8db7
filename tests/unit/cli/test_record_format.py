import pyarrow as pa
import pytest

from millrace.cli.records.record_format import Batch, formatted, parse_format
from millrace.core.records.columns import SCHEMA

RECORDS = pa.RecordBatch.from_pylist(
    [
        {"offset": 4, "timestamp": 0, "key": b"before", "value": b"", "headers": []},
        {
            "offset": 5,
            "timestamp": 1500,
            "key": b"k",
            "value": b"v\xff",
            "headers": [{"key": "h", "value": b"1"}, {"key": "ä", "value": None}],
        },
        {"offset": 9, "timestamp": -1, "key": None, "value": None, "headers": []},
    ],
    SCHEMA,
).slice(1)


def shown(text: str, null: bytes = b"null", records: pa.RecordBatch = RECORDS) -> bytes:
    return bytes(formatted(parse_format(text), Batch("flights", 3, records, null)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"%t %p %o\n", b"flights 3 5\nflights 3 9\n"),
        (r"%k=%s\n", b"k=v\xff\nnull=null\n"),
        (r"%K,%S;", b"1,2;-1,-1;"),
        ("%R%s", b"\0\0\0\2v\xff\xff\xff\xff\xffnull"),
        (r"%T\t%h\n", "1500\th=1,ä=null\n-1\t\n".encode()),
        (r"100%% %o\x0a\0\\", b"100% 5\n\0\\100% 9\n\0\\"),
        ("ü%t", "üflightsüflights".encode()),
        ("%p", b"33"),
    ],
)
def test_tokens_stand_for_the_parts_of_a_record(text: str, expected: bytes) -> None:
    assert shown(text) == expected


def test_null_is_written_as_the_user_says() -> None:
    assert shown("[%k%s%h]", null=b"-") == "[kv\xff".encode("latin-1") + "h=1,ä=-][--]".encode()


@pytest.mark.parametrize("token", ["%t", "%p", "%o", "%k", "%s", "%K", "%S", "%R", "%T", "%h"])
def test_every_token_takes_batches_without_records(token: str) -> None:
    assert shown(token, records=RECORDS.slice(0, 0)) == b""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("%d", "%d is no token; there are %t, %p"),
        ("json", "'json' has no token"),
        ("100%%", "has no token"),
        ("", "has no token"),
        ("%k%", "'%' at its end is not complete"),
        ("%k\\", "at its end is not complete"),
        (r"%k\q", r"\\q is no escape"),
        (r"%k\xg", r"\\x is no escape"),
    ],
)
def test_what_means_nothing_is_refused_with_what_does(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_format(text)
