"""Values of any content and size are shown in a bounded form."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.web.markup import joined
from millrace.web.values import (
    BYTES_MAX,
    CHARACTERS_MAX,
    JSON_BYTES_MAX,
    WRITTEN_MAX,
    Form,
    Shown,
    preview,
    show,
)


def test_json_is_laid_out_with_its_own_literals() -> None:
    data = b'{"id": 12345678901234567890.10, "a":[1,{}, []],"t":"x\\"},[\\u00e9"}'
    assert show(data) == Shown(
        "json",
        '{\n  "id": 12345678901234567890.10,\n  "a": [\n    1,\n    {},\n    []\n  ],\n'
        '  "t": "x\\"},[\\u00e9"\n}',
        is_cut=False,
    )


texts = st.text(max_size=8)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)


@given(st.lists(json_values, max_size=4), st.booleans())
def test_json_that_is_laid_out_means_the_same(value: object, ascii_only: bool) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    shown = show(data)
    if shown.form == "json":
        assert json.loads(shown.text) == json.loads(data)
    else:
        with pytest.raises(UnicodeDecodeError):  # It has half of a pair.
            data.decode()


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (b"hello", "text"),
        ("Zürich\n東京".encode(), "text"),
        (b'"a text"', "text"),
        (b"{not json", "text"),
        (b"[1, NaN]", "text"),
        (b"\xff\xfe\x00", "hex"),
        (b"\x00\x01\x02\x03", "hex"),
        (b"\x1b[31mred\x1b[0m and a lot of text after it", "text"),
        (b"", "text"),
    ],
)
def test_a_value_is_shown_in_the_form_that_fits(data: bytes, form: str) -> None:
    assert show(data).form == form


@pytest.mark.parametrize("form", ["json", "text", "hex"])
@pytest.mark.parametrize("data", [b"\xff\xfe", b"abc", b"[1]"])
def test_a_form_that_does_not_fit_is_replaced(form: Form, data: bytes) -> None:
    wanted = {
        ("json", b"\xff\xfe"): "hex",
        ("json", b"abc"): "text",
        ("text", b"\xff\xfe"): "hex",
    }.get((form, data), form)
    assert show(data, form).form == wanted


def test_bytes_are_shown_beside_their_letters() -> None:
    assert show(b"\x00<script>\xff0123456789", "hex").text == (
        "00000000  00 3c 73 63 72 69 70 74 3e ff 30 31 32 33 34 35  .<script>.012345\n"
        "00000010  36 37 38 39                                      6789"
    )


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 500_000,
        b"[" * 500_000 + b"]" * 500_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b"[" + b"1" * 1_000_000 + b"]",
        b"[" + b"1," * 400_000 + b"1]",
        b"[[" + b"[],[{}]," * 100_000 + b"1]]",
        b'["' + b"\\" * 900_000 + b'"]',
        b"x" * 10_000_000,
        b"\xff" * 10_000_000,
        b"\x00" * 10_000_000,
        "é".encode() * 5_000_000,
        b"\n" * 10_000_000,
        ("\u202e" * 100_000).encode(),
        b"\x1b" * 10_000_000,
        ('["' + "\u202e\u202d" * 150_000 + '"]').encode(),
    ],
    ids=range(15),
)
@pytest.mark.parametrize("form", [None, "json", "text", "hex"])
def test_a_hostile_value_is_cut_and_takes_no_time(data: bytes, form: Form | None) -> None:
    begun = time.process_time()
    shown = show(data, form)
    assert time.process_time() - begun < 2
    assert len(shown.text) <= CHARACTERS_MAX
    assert len(joined(shown.text)) <= WRITTEN_MAX
    assert shown.is_cut


def test_json_of_many_levels_is_no_problem() -> None:
    shown = show(b"[" * 500 + b"]" * 500)
    assert shown.form == "json"
    assert shown.text.count("[") == 500
    assert max(map(len, shown.text.splitlines())) < 100


@pytest.mark.parametrize("size", [0, 1, BYTES_MAX, JSON_BYTES_MAX])
def test_a_value_within_the_bound_is_shown_as_a_whole(size: int) -> None:
    assert show(b"x" * size).is_cut == (size > BYTES_MAX)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_character_that_the_bound_cuts_does_not_make_bytes_of_a_text(cut: int) -> None:
    begin = ("a" * 10 + "🛫").encode()[:-cut]
    assert preview(begin, is_cut=True) == "a" * 10 + "…"
    assert preview(begin, is_cut=False).startswith("61 61")


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"a\nb\n", "a b "),
        (b"\xff\x00", "ff 00"),
        (b"{\n}", "{ }"),
    ],
)
def test_a_preview_is_one_line(data: bytes, line: str) -> None:
    assert preview(data, is_cut=False) == line


@given(st.binary(), st.booleans())
def test_any_bytes_have_a_preview(data: bytes, is_cut: bool) -> None:
    assert "\n" not in preview(data, is_cut=is_cut)
