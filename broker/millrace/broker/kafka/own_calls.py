"""Millrace's own calls for requests of Kafka's that have many entries.

Kafka answers each entry by itself, also where the caller may not touch some of them; a call of ours
is then refused as a whole, and is made again for each entry.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from millrace.core.errors import AccessDeniedError, MillraceError, UnknownTopicOrPartitionError
from millrace.proto.errors import error_from_wire

_EntryT = TypeVar("_EntryT")


async def answers_of_each(
    entries: Sequence[_EntryT], ask: Callable[[Sequence[_EntryT]], Awaitable[Sequence[Any]]]
) -> list[Any]:
    """Return the answer to each entry: a message, or a `MillraceError`.

    Args:
        entries: of a request.
        ask: makes a call with some of them; returns its results in their order.
    """
    if not entries:
        return []
    try:
        return list(await ask(entries))
    except (AccessDeniedError, UnknownTopicOrPartitionError) as error:
        # One entry has the whole refused. The others are answered, as Kafka's are.
        if len(entries) == 1:
            return [error]
    except MillraceError as error:
        return [error] * len(entries)
    return [answer for entry in entries for answer in await answers_of_each([entry], ask)]


def refusal_in(result: Any) -> MillraceError | None:
    """Return why an entry was refused; None: it was not.

    Args:
        result: a message with an `error`, or the error itself.
    """
    if isinstance(result, MillraceError):
        return result
    return error_from_wire(result.error) if result.error.code else None
