"""Regular expressions that name topics of a subscription.

They are RE2's, by Arrow's kernels: the time is linear in the length of the names, so that no
expression of a client can hold up the coordinator.

Source: KIP-848, "Regular expressions".
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from millrace.core.errors import InvalidGroupError


def matching(pattern: str, names: Sequence[str]) -> list[str]:
    """Return the names that a regular expression matches as a whole, in their order.

    Raises:
        InvalidGroupError: it is no regular expression of RE2.
    """
    texts = pa.array(names, pa.string())
    try:
        pc.match_substring_regex(pa.array([""]), pattern)  # By itself, too: `)(` is none.
        matches = pc.match_substring_regex(texts, f"^(?:{pattern})$")
    except (pa.ArrowInvalid, UnicodeError) as error:
        raise InvalidGroupError(
            f"{pattern!r} is no regular expression of RE2: {error}: correct it"
        ) from error
    found: list[str] = texts.filter(matches).to_pylist()
    return found
