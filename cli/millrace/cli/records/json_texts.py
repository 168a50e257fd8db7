"""JSON that is read without a change of its numbers.

A number is its text, as `bytes`: so 1.10, 1e400 and a number of thirty digits stay what they are,
and none is taken for a text. What Python reads beside JSON (`NaN`, `Infinity`) is refused. So is an
object with a name twice, of which every reader would make something else.
"""

import json
from typing import Any, Final

from millrace.core.json_objects import unique_members


def _refused(word: str) -> Any:
    raise ValueError(f"JSON has no {word}")


DECODER: Final = json.JSONDecoder(
    object_pairs_hook=unique_members,
    parse_float=str.encode,
    parse_int=str.encode,
    parse_constant=_refused,
)


def text_of(value: Any) -> str:
    """Return a value as JSON, numbers as they were read.

    Raises:
        ValueError: JSON cannot say the value, for example NaN.
    """
    match value:
        case bytes():
            return value.decode()
        case dict():
            return "{" + ",".join(f"{_text(k)}:{text_of(v)}" for k, v in value.items()) + "}"
        case list():
            return "[" + ",".join(map(text_of, value)) + "]"
    return _text(value)


def cell_of(value: Any) -> bytes | None:
    """Return a value as the bytes that a key or a value should have: text is not quoted."""
    if value is None or isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else text_of(value)).encode()


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
