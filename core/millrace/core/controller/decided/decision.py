"""The controller's answer to a request, before the objects that it rests on are stored."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from millrace.core.errors import MillraceError
from millrace.core.metadata.model import BrokerLife
from millrace.core.metadata.requests import RegisterBroker

_T = TypeVar("_T")


@dataclass(slots=True, kw_only=True)
class GrantEpoch:
    """The second phase of a registration, due when the first is stored (P37)."""

    request: RegisterBroker
    life: BrokerLife


@dataclass(slots=True)
class Decision:
    """The answer to a request.

    Attributes:
        result: the answer; a `GrantEpoch` is decided on first, and answered then.
        keys: the objects that it rests on.
        is_refusal: it rests on everything that is not stored yet: any of it may be the reason.
    """

    result: object
    keys: list[str] = field(default_factory=list)
    is_refusal: bool = False


def decide_each(
    change: Callable[[_T], object],
    asked: Iterable[_T],
    key_of: Callable[..., str] | None = None,
) -> Decision:
    """Decide on each by itself: a refusal of one does not stop the others."""
    decision = Decision([])
    results: list[object] = []
    for question in asked:
        try:
            result = change(question)
        except MillraceError as error:
            # A trace would refer to this frame, and so to `results`: a cycle, with the request.
            results.append(error.with_traceback(None))
            decision.is_refusal = True
        else:
            results.append(result)
            if key_of is not None:
                decision.keys.append(key_of(result))
    decision.result = results
    return decision
