"""Keys and values of records as people read them: JSON, text, or bytes in hexadecimal. Pure.

A value may have any size and any content, so all work is bounded: how many bytes are looked at, how
many characters are shown, how many characters of HTML are written for them, and how deep JSON is
indented. Only the white space of JSON changes: numbers keep all their digits.
"""

import json
import re
from dataclasses import dataclass
from typing import Final, Literal, NoReturn

from millrace.web import markup

Form = Literal["json", "text", "hex"]
FORMS: Final[tuple[Form, ...]] = ("json", "text", "hex")

BYTES_MAX: Final = 64 * 1024
"""Bytes of a value that are shown as a whole."""
JSON_BYTES_MAX: Final = 1024 * 1024
"""A longer value is not parsed as JSON."""
CHARACTERS_MAX: Final = 256 * 1024
"""Characters that a value may have when it is laid out."""
WRITTEN_MAX: Final = 512 * 1024
"""Characters that a value may take in a page: enough for all but values that are made for it."""
_INDENTED_MAX: Final = 32
_ROW: Final = 16
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s"{}\[\],:]+')
_CONTROL: Final = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_CONTROL_SHARE_MAX: Final = 0.1


@dataclass(slots=True, frozen=True)
class Shown:
    """A value in one form."""

    form: Form
    text: str
    is_cut: bool
    """It is longer than this."""


def show(data: bytes, form: Form | None = None) -> Shown:
    """Return a value for a page of its own.

    Args:
        form: None: what fits; a form that does not fit is replaced by the next one.
    """
    if form in (None, "json") and (laid_out := _as_json(data)) is not None:
        return _shown("json", laid_out[:CHARACTERS_MAX], len(laid_out) > CHARACTERS_MAX)
    begin = data[:BYTES_MAX]
    is_cut = len(data) > BYTES_MAX
    text = None if form == "hex" else as_text(begin, is_cut=is_cut)
    if text is not None and (form == "text" or not _is_binary(text)):
        return _shown("text", text, is_cut)
    begin = data[: BYTES_MAX // 4]  # A byte takes four characters.
    return _shown("hex", _dump(begin), len(data) > len(begin))


def preview(data: bytes, *, is_cut: bool, form: Form | None = None) -> str:
    """Return the beginning of a value in one line.

    Args:
        is_cut: the value is longer.
        form: None: what fits.
    """
    text = None if form == "hex" else as_text(data, is_cut=is_cut)
    if text is None or (form is None and _is_binary(text)):
        return data.hex(" ") + (" …" if is_cut else "")
    return " ".join(text.split("\n")) + ("…" if is_cut else "")


def as_text(data: bytes, *, is_cut: bool) -> str | None:
    """Return bytes as text; None: they are not UTF-8.

    Args:
        is_cut: the last character may lack its end.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if not is_cut or error.start < len(data) - 3 or error.reason != "unexpected end of data":
            return None
        return data[: error.start].decode()


def _shown(form: Form, text: str, is_cut: bool) -> Shown:
    begin = markup.begin(text, WRITTEN_MAX)
    return Shown(form, begin, is_cut or len(begin) < len(text))


def _is_binary(text: str) -> bool:
    return len(_CONTROL.findall(text)) > _CONTROL_SHARE_MAX * len(text)


def _as_json(data: bytes) -> str | None:
    """Return an object or an array laid out in lines; None: it is none, or too large."""
    if len(data) > JSON_BYTES_MAX or data.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        text = data.decode()
        # Numbers stay texts: a million digits would take minutes to become one.
        json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return _laid_out(text)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _laid_out(text: str) -> str:
    pieces: list[str] = []
    size = depth = 0
    before = ""

    def put(piece: str) -> None:
        nonlocal size
        pieces.append(piece)
        size += len(piece)

    def line() -> None:
        put("\n" + "  " * min(depth, _INDENTED_MAX))

    for found in _TOKEN.finditer(text):
        token = found[0]
        if size > CHARACTERS_MAX:
            break
        is_end = token in ("}", "]")
        depth -= is_end
        if (is_end and before not in ("{", "[")) or (before in ("{", "[", ",") and not is_end):
            line()
        put({":": ": "}.get(token, token))
        depth += token in ("{", "[")
        before = token
    return "".join(pieces)


def _dump(data: bytes) -> str:
    """Return bytes as in `xxd`: where each row begins, its bytes, and those that are ASCII."""
    lines = []
    for start in range(0, len(data), _ROW):
        row = data[start : start + _ROW]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:08x}  {row.hex(' '):{_ROW * 3 - 1}}  {letters}")
    return "\n".join(lines)
