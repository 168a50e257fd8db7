"""Who a caller is: a principal, which is proved, and the groups that it belongs to.

A principal is the name of a token, the name in a certificate, or a ServiceAccount of Kubernetes
(`system:serviceaccount:<namespace>:<name>`). Where a name is taken from does not matter to rules.
"""

from dataclasses import dataclass
from typing import Final

from millrace.core.callers import ANONYMOUS
from millrace.core.ids import WallMs

PRINCIPAL_CHARACTERS_MAX: Final = 253


@dataclass(frozen=True, slots=True)
class Identity:
    """A proved identity, or nobody's.

    Attributes:
        principal: its name, or `anonymous`.
        groups: that it belongs to.
        expires_at: when the proof ends; None: never.
    """

    principal: str
    groups: frozenset[str] = frozenset()
    expires_at: WallMs | None = None

    @property
    def is_known(self) -> bool:
        """Whether anything is proved."""
        return self.principal != ANONYMOUS


class RefusedCredentialError(Exception):
    """It proves nothing. The text is for the audit log, and never for the caller."""


NOBODY: Final = Identity(ANONYMOUS)
"""The identity of a caller that proves nothing."""


def principal_problem(name: str) -> str:
    """Return what is wrong with the name of a principal or of a group; empty: nothing is."""
    if name == ANONYMOUS:
        return f"{ANONYMOUS!r} is the name of callers that prove nothing: choose another one"
    if name.startswith("group:"):
        return f"{name[:40]!r}: names with 'group:' in front are those of groups, in rules"
    if (
        not 0 < len(name) <= PRINCIPAL_CHARACTERS_MAX
        or not name.isprintable()
        or name != name.strip()
        or "*" in name
    ):
        return (
            f"{name[:40]!r}: a name is 1 to {PRINCIPAL_CHARACTERS_MAX} printable characters, "
            "without asterisks, and without spaces around it"
        )
    return ""
