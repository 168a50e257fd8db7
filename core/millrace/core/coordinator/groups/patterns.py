"""Regular expressions that name topics of a subscription.

One that begins with `default/` names topics in full, as `namespace/name`: so one of a single
namespace matches no topic of another one, also where the namespace is `default`.

They are RE2's, by Arrow's kernels: the time is linear in the length of the names, so that no
expression of a client can hold up the coordinator.

Source: KIP-848, "Regular expressions".
"""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from millrace.core.errors import InvalidGroupError
from millrace.core.topics import DEFAULT_NAMESPACE

IN_DEFAULT: Final = f"{DEFAULT_NAMESPACE}/"
"""With this a regular expression begins that names topics in full."""


def check_pattern(pattern: str) -> None:
    """Refuse what is no regular expression.

    Raises:
        InvalidGroupError: it is none of RE2.
    """
    text = pa.array([""])  # Arrow compiles no expression for no input.
    try:
        pc.match_substring_regex(text, pattern)  # By itself, too: `)(` is none.
        pc.match_substring_regex(text, _whole(pattern))
    except (pa.ArrowInvalid, UnicodeError) as error:
        raise InvalidGroupError(
            f"{pattern!r} is no regular expression of RE2: {error}: correct it"
        ) from error


def matching(pattern: str, names: Sequence[str]) -> list[str]:
    """Return the names that a regular expression matches as a whole, in their order.

    Names lack the namespace `default`. A pattern that names topics in full also matches without it,
    as in each release before: `default/a|b`.

    What is no regular expression matches nothing: it may be in a log, and the other members of its
    group must go on.
    """
    texts = pa.array(names, pa.string())
    try:
        matches = pc.match_substring_regex(texts, _whole(pattern))
        if pattern.startswith(IN_DEFAULT):
            full = pa.array((_in_full(name) for name in names), pa.string())
            matches = pc.or_(matches, pc.match_substring_regex(full, _whole(pattern)))
    except (pa.ArrowInvalid, UnicodeError):
        return []
    found: list[str] = texts.filter(matches).to_pylist()
    return found


def _whole(pattern: str) -> str:
    return f"^(?:{pattern})$"


def _in_full(name: str) -> str:
    return name if "/" in name else f"{IN_DEFAULT}{name}"
