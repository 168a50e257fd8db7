"""What people ask the operator to renew, by annotations of a Cluster, as of `kubectl annotate`.

Each is a moment, as in `kubectl rollout restart`: what was made before it is renewed. So it is done
once, however often the operator looks, and by another operator if this one is killed.

Source: Strimzi's `strimzi.io/force-renew` and `strimzi.io/force-replace`.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from millrace.core.errors import InvalidConfigError
from millrace.operator.plan.certificates import Asked

CERTIFICATES: Final = "millrace.dev/renew-certificates"
"""The brokers' certificates."""
AUTHORITY: Final = "millrace.dev/renew-authority"
"""The authority that signs them; their certificates follow."""


def asked_renewals(annotations: Mapping[str, str]) -> Asked:
    """Return what is asked for.

    Raises:
        InvalidConfigError: an annotation is no moment.
    """
    return Asked(
        certificates=_moment(annotations, CERTIFICATES), authority=_moment(annotations, AUTHORITY)
    )


def _moment(annotations: Mapping[str, str], name: str) -> float:
    text = annotations.get(name)
    if text is None:
        return 0.0
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise InvalidConfigError(
            f"annotation {name}: {text!r} is no time in UTC: write one as 2026-11-30T12:00:00Z, or "
            "take the annotation away"
        )
    return found.timestamp()
