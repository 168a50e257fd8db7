"""Tokens of people who would like to be somebody: made by hand, with and without the right key."""

import base64
import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

_HOUR = 3600


def forged(good: str, own_key: ec.EllipticCurvePrivateKey, public_key: bytes) -> dict[str, str]:
    """Return tokens that say what a good one says, by the name of the trick.

    Args:
        good: that is accepted.
        own_key: some other one than the API server's.
        public_key: the API server's, as everybody may read it.
    """
    header = jwt.get_unverified_header(good)
    claims = _claims(good)
    _, body, signature = good.split(".")
    other = {**claims, "sub": "system:serviceaccount:kube-system:default"}
    confused = f"{_part({**header, 'alg': 'HS256'})}.{body}"
    mac = hmac.new(public_key, confused.encode(), hashlib.sha256).digest()
    named = {"kid": header["kid"]}
    return {
        "forged": jwt.encode(claims, own_key, "ES256", headers=named),
        "forged-own-key-id": jwt.encode(claims, own_key, "ES256", headers={"kid": "mine"}),
        "other-account": f"{_part(header)}.{_part(other)}.{signature}",
        "alg-none": f"{_part({**header, 'alg': 'none'})}.{body}.",
        "alg-none-with-a-signature": f"{_part({**header, 'alg': 'none'})}.{body}.{signature}",
        "key-confusion": f"{confused}.{_base64(mac)}",
        "no-token": "x" * 40,
    }


def signed(good: str, key_file: Path) -> dict[str, str]:
    """Return tokens of the API server's own key that count at no time, or for nobody.

    Args:
        good: that is accepted.
        key_file: the API server's, where it is at hand.
    """
    key = key_file.read_bytes()
    claims, named = _claims(good), {"kid": jwt.get_unverified_header(good)["kid"]}
    now = int(time.time())
    namespace = claims["kubernetes.io"]["namespace"]
    nobody = {"namespace": namespace, "serviceaccount": {"name": "nobody", "uid": "1"}}
    changes: dict[str, dict[str, Any]] = {
        "expired": {"iat": now - 2 * _HOUR, "nbf": now - 2 * _HOUR, "exp": now - _HOUR},
        "not-yet": {"iat": now + _HOUR, "nbf": now + _HOUR, "exp": now + 2 * _HOUR},
        "no-such-account": {
            "sub": f"system:serviceaccount:{namespace}:nobody",
            "kubernetes.io": nobody,
        },
        "other-issuer": {"iss": "https://issuer.example.org"},
    }
    return {
        name: jwt.encode({**claims, **change}, key, "ES256", headers=named)
        for name, change in changes.items()
    }


def _claims(token: str) -> dict[str, Any]:
    claims: dict[str, Any] = jwt.decode(token, options={"verify_signature": False})
    return claims


def _part(content: dict[str, Any]) -> str:
    return _base64(json.dumps(content).encode())


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
