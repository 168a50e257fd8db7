"""What proves who makes a call: the token in its metadata.

Source: RFC 6750, section 2.1.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from millrace.core.callers import ANONYMOUS
from millrace.core.guard.identity import NOBODY, Identity, RefusedCredentialError
from millrace.core.guard.token_file import token_problem

_KEY: Final = "authorization"
_SCHEME: Final = "bearer "
_KUBERNETES_OWN: Final = "system:"
"""How names begin that Kubernetes gives: no certificate may claim one."""


@dataclass(frozen=True, slots=True)
class Credential:
    """A token that was accepted.

    Attributes:
        identity: whom it proves.
        digest: of the token.
    """

    identity: Identity
    digest: bytes


def bearer_token(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """Return the token in a call's metadata; None: there is none.

    Raises:
        RefusedCredentialError: something else is there, or several are.
    """
    said = [value for key, value in metadata if key == _KEY]
    if not said:
        return None
    if len(said) > 1:
        raise RefusedCredentialError(f"the call has {len(said)} authorization headers")
    value = said[0] if isinstance(said[0], str) else said[0].decode("ascii", "replace")
    if value[: len(_SCHEME)].lower() != _SCHEME:
        raise RefusedCredentialError("the authorization header has no bearer token")
    token = value[len(_SCHEME) :]
    if problem := token_problem(token):
        raise RefusedCredentialError(problem)
    return token


def certified(principal: str) -> Identity:
    """Return who is connected, by the certificate of the connection.

    Args:
        principal: that it names; empty: there is none, or it names nobody.

    Raises:
        RefusedCredentialError: it claims a name that certificates cannot give (G6).
    """
    if not principal:
        return NOBODY
    if principal == ANONYMOUS or principal.startswith(_KUBERNETES_OWN):
        raise RefusedCredentialError(f"a certificate names {principal!r}")
    return Identity(principal)
