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
    """Return what is asked for. An annotation that is no moment asks for nothing."""
    moments = [_moment(annotations.get(name, "")) for name in (CERTIFICATES, AUTHORITY)]
    certificates, authority = (moment or 0.0 for moment in moments)
    return Asked(certificates=certificates, authority=authority)


def check_renewals(annotations: Mapping[str, str]) -> None:
    """Make sure that all that is asked for is understood.

    Raises:
        InvalidConfigError: an annotation is no moment.
    """
    for name in (CERTIFICATES, AUTHORITY):
        text = annotations.get(name)
        if text is not None and _moment(text) is None:
            raise InvalidConfigError(
                f"annotation {name}: {text!r} is no time in UTC: write one as "
                "2026-11-30T12:00:00Z, or take the annotation away"
            )


def _moment(text: str) -> float | None:
    """Return a time in seconds since 1970; None: it is none."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if found.tzinfo is None else found.timestamp()
