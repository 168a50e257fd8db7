"""The keys with which the API server signs tokens, as it publishes them.

They are fetched when a token names one that is not known, and at most every `FETCH_S`: anybody can
invent names of keys. In the time between, a name that is not known may be that of a new key: its
token is neither good nor bad, and its caller tries again. A key that the API server gives up is not
missed here, since each token is reviewed by the API server itself, too.

The issuer comes with the keys. An API server that gets another one keeps the names of its keys, so
a token with another issuer and a right signature has both fetched again, within the same bound.

Source: https://kubernetes.io/docs/tasks/configure-pod-container/configure-service-account/#service-account-issuer-discovery.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt import PyJWK
from jwt.api_jws import PyJWS
from jwt.exceptions import PyJWTError

from millrace.broker.guard.guard import AuthorityAwayError
from millrace.broker.guard.reviews import Reviewer
from millrace.core.guard.identity import RefusedCredentialError
from millrace.core.guard.service_account_token import ALGORITHMS, KEY_ID_CHARACTERS_MAX, ShapedToken
from millrace.runtime import host

FETCH_S: Final = 30.0
"""Time between two fetches of keys that are not known."""
_AGAIN_S: Final = 1.0
"""Time after a fetch that failed."""
_KEYS_MAX: Final = 64
_RSA_BITS_MIN: Final = 2048
_JWS: Final = PyJWS()

_CONFIGURATION: Final = "/.well-known/openid-configuration"
_KEYS: Final = "/openid/v1/jwks"
_KEY_SET: Final = "application/jwk-set+json, application/json"


@dataclass(frozen=True, slots=True)
class PublishedKey:
    """A key, and the issuer that claims must name.

    Attributes:
        issuer: of the API server.
    """

    issuer: str
    _key: PyJWK

    def verify(self, token: str) -> None:
        """Check a token's signature.

        Raises:
            RefusedCredentialError: the API server did not sign it.
        """
        try:
            _JWS.decode(token, self._key, algorithms=[self._key.algorithm_name])
        except PyJWTError as error:
            raise RefusedCredentialError("its signature is wrong") from error


class PublishedKeys:
    """The issuer and the keys of an API server. They belong to the event loop."""

    def __init__(self, reviewer: Reviewer) -> None:
        self._reviewer = reviewer
        self._issuer = ""
        self._keys: dict[str, PyJWK] = {}
        self._next_fetch_s = 0.0
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, shaped: ShapedToken, *, fetch: bool = False) -> PublishedKey:
        """Return the key that a token names.

        Args:
            shaped: the token.
            fetch: also if the key is known, as its issuer may be another one by now.

        Raises:
            RefusedCredentialError: there is none for it.
            AuthorityAwayError: the key or the issuer is not known, and nobody tells it now.
        """
        if fetch or shaped.key_id not in self._keys:
            await self._fetch()
        key = self._keys.get(shaped.key_id)
        if key is None:
            raise RefusedCredentialError(f"the API server has no key {shaped.key_id[:80]!r}")
        if key.algorithm_name != shaped.algorithm:
            raise RefusedCredentialError(f"its key is not for {shaped.algorithm}")
        return PublishedKey(self._issuer, key)

    async def _fetch(self) -> None:
        """Fetch the keys; any number of callers may wait.

        Raises:
            AuthorityAwayError: there is no answer, or that was done a moment ago.
        """
        if self._fetching is None:
            if host.monotonic_s() < self._next_fetch_s:
                raise AuthorityAwayError("the API server was asked for its keys a moment ago")
            self._fetching = asyncio.create_task(self._fetch_once())
        await asyncio.shield(self._fetching)

    async def _fetch_once(self) -> None:
        self._next_fetch_s = host.monotonic_s() + _AGAIN_S
        try:
            configuration = await self._reviewer.read(_CONFIGURATION)
            published = (await self._reviewer.read(_KEYS, _KEY_SET)).get("keys")
            issuer = configuration.get("issuer")
            if not isinstance(issuer, str) or not issuer or not isinstance(published, list):
                raise AuthorityAwayError("the API server publishes no issuer or no keys")
            self._issuer, self._keys = issuer, _usable(published)
            self._next_fetch_s = host.monotonic_s() + FETCH_S
        finally:
            self._fetching = None


def _usable(published: list[Any]) -> dict[str, PyJWK]:
    """Return the public keys for signatures by their names."""
    found = {}
    for entry in published[:_KEYS_MAX]:
        if not isinstance(entry, dict) or entry.get("kty") not in ("RSA", "EC"):
            continue
        key_id = entry.get("kid")
        if not isinstance(key_id, str) or not 0 < len(key_id) <= KEY_ID_CHARACTERS_MAX:
            continue
        try:
            key = PyJWK(entry)
        except (PyJWTError, TypeError, ValueError):  # Not all of it does PyJWT check itself.
            continue
        if key.algorithm_name in ALGORITHMS and _is_good(key.key):
            found[key_id] = key
    return found


def _is_good(key: object) -> bool:
    """Return whether a key is public, and long enough (RFC 7518, section 3.3)."""
    if isinstance(key, rsa.RSAPublicKey):
        return key.key_size >= _RSA_BITS_MIN
    return isinstance(key, ec.EllipticCurvePublicKey)
