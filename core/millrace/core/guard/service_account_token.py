"""What a ServiceAccount's token must be before anybody is asked about it.

Kubernetes signs such a token for one account, one or more audiences, and a time. A broker takes the
tokens whose only audience is its cluster. A token with another audience, such as the API server's,
would let its receiver act there as the pod (G1). All rules that need no key are here. Checks are in
the order of their cost, so a flood of forged tokens costs little.

Sources: RFC 7519; RFC 8725 (algorithms are chosen by the key, never by the token);
https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/#bound-service-account-tokens.
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeGuard, cast

from millrace.core.guard.identity import Identity, RefusedCredentialError
from millrace.core.ids import WallMs
from millrace.core.json_objects import unique_members

TOKEN_CHARACTERS_MAX: Final = 8192
"""A projected token has about a thousand characters, and names of accounts and pods are bounded."""
KEY_ID_CHARACTERS_MAX: Final = 256
LEEWAY_MS: Final = 30_000
"""How far clocks may differ: a token counts so much earlier and later."""
ALGORITHMS: Final = frozenset({"RS256", "ES256", "ES384", "ES512"})
"""With which the API server signs; all have a public key."""

_AUDIENCE_END: Final = ".millrace.dev"
_ACCOUNT_PREFIX: Final = "system:serviceaccount:"
_GROUPS: Final = ("system:serviceaccounts", "system:authenticated")
"""Groups of every ServiceAccount; those of its namespace are a third one."""


_TIME_MAX: Final = 1 << 40
_SHAPE: Final = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)
_ACCOUNT: Final = re.compile(rf"{_ACCOUNT_PREFIX}[a-z0-9-]{{1,63}}:[a-z0-9.-]{{1,253}}", re.ASCII)


class OtherIssuerError(RefusedCredentialError):
    """All claims are right but the issuer: the API server may have changed its own."""


@dataclass(frozen=True, slots=True)
class ShapedToken:
    """A token that looks like a ServiceAccount's, and of which nothing is proved yet.

    Attributes:
        key_id: of the key that signed it, as it says.
        algorithm: of the signature, as it says; one of `ALGORITHMS`.
        claims: that a signature must prove.
    """

    key_id: str
    algorithm: str
    claims: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Expected:
    """What the claims of a token must say.

    Attributes:
        issuer: the API server's, as it publishes it.
        audience: the cluster's, as of `audience_of`.
    """

    issuer: str
    audience: str


def audience_of(cluster_name: str, namespace: str) -> str:
    """Return the audience of a cluster's tokens: no other cluster, and no API server, has it."""
    return f"{cluster_name}.{namespace}{_AUDIENCE_END}"


def sending_problem(token: str) -> str:
    """Return why a client must not send a token; empty: it may.

    A token with another audience than a cluster of ours would let the receiver act elsewhere as the
    pod. So it must not even be shown.
    """
    try:
        audiences = parse(token).claims.get("aud")
    except RefusedCredentialError:
        return ""  # None of a ServiceAccount.
    only = audiences[0] if isinstance(audiences, list) and len(audiences) == 1 else audiences
    if isinstance(only, str) and only.endswith(_AUDIENCE_END):
        return ""
    return (
        f"a token of Kubernetes for {_shown(audiences)} is never sent, as the receiver could "
        "act there: ask for one whose only audience is <cluster>.<namespace>.millrace.dev"
    )


def audience_problem(token: str, audience: str) -> str:
    """Return why a client must not send a token to the cluster of an audience; empty: it may.

    Who receives the token of another cluster could act there in its owner's name.
    """
    try:
        found = parse(token).claims.get("aud")
    except RefusedCredentialError:
        return "a token of a ServiceAccount is needed, and this is none"
    if found in ([audience], audience):
        return ""
    return f"the token is for {_shown(found)}, and not sent to {audience}, which could use it there"


def looks_like_one(token: str) -> bool:
    """Return whether a token has the form of a signed token (JWT), so is none of a token file."""
    return _SHAPE.fullmatch(token) is not None


def parse(token: str) -> ShapedToken:
    """Read a token without its key.

    Raises:
        RefusedCredentialError: it is no token of a ServiceAccount.
    """
    if len(token) > TOKEN_CHARACTERS_MAX:
        raise RefusedCredentialError(f"it has {len(token)} characters")
    if not looks_like_one(token):
        raise RefusedCredentialError("it has not the form of a signed token")
    header_part, claims_part, _ = token.split(".")
    header, claims = _object("header", header_part), _object("claims", claims_part)
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise RefusedCredentialError(f"its algorithm is {str(algorithm)[:20]!r}")
    if not isinstance(key_id, str) or not 0 < len(key_id) <= KEY_ID_CHARACTERS_MAX:
        raise RefusedCredentialError("it names no key")
    if "crit" in header or "b64" in header:
        raise RefusedCredentialError("its header asks for something that is not known here")
    return ShapedToken(key_id, algorithm, claims)


def check_claims(claims: Mapping[str, Any], expected: Expected, now_ms: WallMs) -> Identity:
    """Return the ServiceAccount that the claims name.

    Raises:
        OtherIssuerError: only its issuer is not the expected one.
        RefusedCredentialError: the token is for somebody else, or for another time.
    """
    if claims.get("aud") not in ([expected.audience], expected.audience):
        raise RefusedCredentialError(
            f"its audience is {_shown(claims.get('aud'))} and must be {expected.audience!r} alone"
        )
    expires = claims.get("exp")
    if not _is_time(expires):
        raise RefusedCredentialError("it does not say when it ends")
    expires_at = WallMs(int(expires * 1000) + LEEWAY_MS)
    if expires_at <= now_ms:
        raise RefusedCredentialError("it has expired")
    for name in ("nbf", "iat"):
        begins = claims.get(name, 0)
        if not _is_time(begins):
            raise RefusedCredentialError(f"its {name} is no time")
        if begins * 1000 - LEEWAY_MS > now_ms:
            raise RefusedCredentialError("it is not valid yet")
    account = claims.get("sub")
    if not isinstance(account, str) or not _ACCOUNT.fullmatch(account):
        raise RefusedCredentialError(f"it is of {_shown(account)}, which is no ServiceAccount")
    if claims.get("iss") != expected.issuer:
        raise OtherIssuerError(f"its issuer is {_shown(claims.get('iss'))}")
    namespace = account.removeprefix(_ACCOUNT_PREFIX).partition(":")[0]
    groups = frozenset((*_GROUPS, f"{_GROUPS[0]}:{namespace}"))
    return Identity(account, groups, expires_at)


def _object(what: str, part: str) -> Mapping[str, Any]:
    try:
        text = base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
        found = json.loads(text, object_pairs_hook=unique_members)
    except (binascii.Error, ValueError, RecursionError) as error:
        raise RefusedCredentialError(f"its {what} cannot be read") from error
    if not isinstance(found, dict):
        raise RefusedCredentialError(f"its {what} is no object")
    return found


def _is_time(value: object) -> TypeGuard[float]:
    # A bool is an int, and json reads NaN.
    return type(value) in (int, float) and 0 <= cast(float, value) < _TIME_MAX


def _shown(value: object) -> str:
    return repr(value)[:120]
