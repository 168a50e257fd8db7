"""Conditions, as Kubernetes has them: what is known of a resource, why, and what to do."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

MESSAGE_LENGTH_MAX = 4096


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition.

    Attributes:
        is_true: None: not known.
        reason: one word in CamelCase, for programs.
        message: for people: what it is, and what to do.
    """

    type: str
    is_true: bool | None
    reason: str
    message: str = ""


def merged(
    before: Iterable[Mapping[str, Any]],
    found: Iterable[Condition],
    *,
    generation: int,
    now: str,
) -> list[dict[str, Any]]:
    """Return conditions as the status has them; each keeps the time of its last transition.

    Args:
        before: as the status had them.
        now: RFC 3339.
    """
    known = {each.get("type"): each for each in before}
    result = []
    for each in found:
        status = {True: "True", False: "False", None: "Unknown"}[each.is_true]
        old = known.get(each.type, {})
        since = old.get("lastTransitionTime", now) if old.get("status") == status else now
        result.append(
            {
                "type": each.type,
                "status": status,
                "observedGeneration": generation,
                "lastTransitionTime": since,
                "reason": each.reason,
                "message": _short(each.message),
            }
        )
    return result


def _short(message: str) -> str:
    if len(message) <= MESSAGE_LENGTH_MAX:
        return message
    return message[: MESSAGE_LENGTH_MAX - 3] + "..."
