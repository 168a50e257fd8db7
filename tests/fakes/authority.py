"""An API server that signs tokens of ServiceAccounts and answers reviews of them."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from millrace.broker.guard.guard import AuthorityAwayError
from millrace.broker.guard.reviews import ACCESS_REVIEW, TOKEN_REVIEW
from millrace.runtime.kubernetes.resources import Kind

ISSUER = "https://kubernetes.default.svc"


class FakeAuthority:
    """Implements `Reviewer`.

    Attributes:
        issuer: that it publishes, and signs tokens as.
        is_away: nobody answers.
        revoked: accounts that are gone.
        allowed: verb, resource, namespace and name that reviews of access allow, for anybody.
        asked: how often, by what.
        reviewed: the specs of the reviews of access, in their order.
        delay_s: how long reviews take.
        answers: instead of its own, to a review of a token, if not empty.
    """

    def __init__(self) -> None:
        self.issuer = ISSUER
        self.is_away = False
        self.revoked: set[str] = set()
        self.allowed: set[tuple[str, str, str, str]] = set()
        self.asked: Counter[str] = Counter()
        self.reviewed: list[Mapping[str, Any]] = []
        self.delay_s = 0.0
        self.answers: dict[str, Any] = {}
        self.keys = {"k1": ec.generate_private_key(ec.SECP256R1())}

    def token(
        self,
        audience: object,
        account: str = "shop:reader",
        key_id: str = "k1",
        **changed: object,
    ) -> str:
        """Return a token that the API server signs for an account."""
        now_s = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": audience,
            "sub": f"system:serviceaccount:{account}",
            "iat": now_s,
            "nbf": now_s,
            "exp": now_s + 3600,
            **changed,
        }
        return jwt.encode(claims, self.keys[key_id], "ES256", headers={"kid": key_id})

    async def review(self, kind: Kind, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        self._count(kind.name)
        await asyncio.sleep(self.delay_s)
        if self.answers:
            return self.answers
        if kind is TOKEN_REVIEW:
            claims = jwt.decode(spec["token"], options={"verify_signature": False})
            user = {"username": claims["sub"]}
            if claims["sub"] in self.revoked:
                return {"error": "the account is gone"}
            return {"authenticated": True, "audiences": spec["audiences"], "user": user}
        assert kind is ACCESS_REVIEW
        self.reviewed.append(spec)
        about = spec["resourceAttributes"]
        asked = tuple(about.get(part, "") for part in ("verb", "resource", "namespace", "name"))
        return {"allowed": asked in self.allowed}

    async def read(self, path: str, accept: str = "") -> Mapping[str, Any]:
        self._count(path)
        if path == "/.well-known/openid-configuration":
            return {"issuer": self.issuer}
        assert path == "/openid/v1/jwks"
        keys = [_published(name, key) for name, key in self.keys.items()]
        return {"keys": [*keys, {"kty": "oct", "k": "c2VjcmV0", "kid": "secret"}, "none"]}

    def _count(self, what: str) -> None:
        self.asked[what] += 1
        if self.is_away:
            raise AuthorityAwayError("nobody answers")


def _published(name: str, key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
    published: dict[str, Any] = json.loads(ECAlgorithm.to_jwk(key.public_key()))
    return {**published, "kid": name, "alg": "ES256", "use": "sig"}
