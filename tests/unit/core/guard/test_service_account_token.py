"""What a ServiceAccount's token must be, before any key is used."""

import base64
import json
from typing import Any

import pytest

from millrace.core.guard.identity import RefusedCredentialError
from millrace.core.guard.service_account_token import (
    LEEWAY_MS,
    TOKEN_CHARACTERS_MAX,
    Expected,
    audience_of,
    check_claims,
    parse,
    sending_problem,
)
from millrace.core.ids import WallMs

ISSUER = "https://kubernetes.default.svc"
AUDIENCE = audience_of("logs", "shop")
NOW_S = 1_800_000_000
NOW = WallMs(NOW_S * 1000)
HEADER = {"alg": "ES256", "kid": "k1", "typ": "JWT"}
CLAIMS = {
    "iss": ISSUER,
    "aud": [AUDIENCE],
    "exp": NOW_S + 3600,
    "nbf": NOW_S,
    "iat": NOW_S,
    "sub": "system:serviceaccount:shop:reader",
}


def part(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def token(header: object = HEADER, claims: object = CLAIMS, signature: str = "c2ln") -> str:
    return f"{part(header)}.{part(claims)}.{signature}"


def check(**changed: Any) -> str:
    claims = {name: value for name, value in (CLAIMS | changed).items() if value != "absent"}
    return check_claims(claims, Expected(ISSUER, AUDIENCE), NOW).principal


def test_the_audience_names_the_cluster_and_its_namespace() -> None:
    assert AUDIENCE == "logs.shop.millrace.dev"


def test_a_token_is_read_without_its_key() -> None:
    shaped = parse(token())
    assert (shaped.key_id, shaped.algorithm, shaped.claims) == ("k1", "ES256", CLAIMS)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "form"),
        ("a-token-of-a-file", "form"),
        ("a.b", "form"),
        ("a.b.", "form"),
        (token() + ".d", "form"),
        (token() + "\n", "form"),
        (token() + " x", "form"),
        (token(signature="s\u0131g"), "form"),
        ("a" * (TOKEN_CHARACTERS_MAX + 1), "characters"),
        (token(header="no json"), "header cannot be read"),
        (token(header="[" * 5000), "header cannot be read"),
        (token(header='{"alg": "ES256", "alg": "none"}'), "header cannot be read"),
        (token(header=["ES256"]), "header is no object"),
        (token(claims='"text"'), "claims is no object"),
        (token(header=HEADER | {"alg": "none"}), "algorithm is 'none'"),
        (token(header=HEADER | {"alg": "HS256"}), "algorithm is 'HS256'"),
        (token(header=HEADER | {"alg": ["ES256"]}), "algorithm is"),
        (token(header={"kid": "k1"}), "algorithm is 'None'"),
        (token(header={"alg": "ES256"}), "names no key"),
        (token(header=HEADER | {"kid": ""}), "names no key"),
        (token(header=HEADER | {"kid": 7}), "names no key"),
        (token(header=HEADER | {"kid": "k" * 300}), "names no key"),
        (token(header=HEADER | {"crit": ["b64"], "b64": False}), "not known here"),
    ],
)
def test_what_is_no_token_of_a_service_account_is_refused_by_its_shape(
    text: str, reason: str
) -> None:
    with pytest.raises(RefusedCredentialError, match=reason):
        parse(text)


def test_the_claims_name_the_account_its_groups_and_the_end() -> None:
    identity = check_claims(CLAIMS, Expected(ISSUER, AUDIENCE), NOW)
    assert identity.principal == "system:serviceaccount:shop:reader"
    assert identity.groups == {
        "system:serviceaccounts",
        "system:serviceaccounts:shop",
        "system:authenticated",
    }
    assert identity.expires_at == NOW + 3_600_000 + LEEWAY_MS


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"iss": "https://elsewhere"}, "issuer"),
        ({"iss": "absent"}, "issuer"),
        ({"aud": ["https://kubernetes.default.svc"]}, "audience"),
        ({"aud": [AUDIENCE, "https://kubernetes.default.svc"]}, "alone"),
        ({"aud": [audience_of("logs", "other")]}, "audience"),
        ({"aud": []}, "audience"),
        ({"aud": "absent"}, "audience"),
        ({"exp": NOW_S - LEEWAY_MS / 1000}, "expired"),
        ({"exp": "absent"}, "when it ends"),
        ({"exp": "2030-01-01"}, "when it ends"),
        ({"exp": float("nan")}, "when it ends"),
        ({"exp": float("inf")}, "when it ends"),
        ({"exp": True}, "when it ends"),
        ({"nbf": NOW_S + LEEWAY_MS / 1000 + 1}, "not valid yet"),
        ({"iat": NOW_S + 86_400}, "not valid yet"),
        ({"nbf": "soon"}, "nbf is no time"),
        ({"sub": "alice"}, "no ServiceAccount"),
        ({"sub": "system:serviceaccount:shop"}, "no ServiceAccount"),
        ({"sub": "system:serviceaccount:shop:a:b"}, "no ServiceAccount"),
        ({"sub": "system:serviceaccount:Shop:a\n"}, "no ServiceAccount"),
        ({"sub": 7}, "no ServiceAccount"),
    ],
)
def test_claims_for_somebody_else_or_another_time_are_refused(
    changed: dict[str, Any], reason: str
) -> None:
    with pytest.raises(RefusedCredentialError, match=reason):
        check(**changed)


def test_clocks_may_differ_a_little() -> None:
    leeway_s = LEEWAY_MS // 1000
    assert check(exp=NOW_S - leeway_s + 1)
    assert check(nbf=NOW_S + leeway_s, iat=NOW_S + leeway_s)


def test_one_audience_may_stand_without_a_list() -> None:
    assert check(aud=AUDIENCE)


@pytest.mark.parametrize(
    "audience",
    [
        ["https://kubernetes.default.svc"],
        [AUDIENCE, "https://kubernetes.default.svc"],
        ["millrace.dev.example.org"],
        [],
        None,
        {"a": AUDIENCE},
    ],
)
def test_a_client_sends_no_token_that_is_good_elsewhere(audience: object) -> None:
    """G1."""
    assert "never sent" in sending_problem(token(claims=CLAIMS | {"aud": audience}))
    legacy = {name: value for name, value in CLAIMS.items() if name != "aud"}
    assert "never sent" in sending_problem(token(claims=legacy))


@pytest.mark.parametrize(
    "text", [token(), token(claims=CLAIMS | {"aud": AUDIENCE}), "mlr_" + "x" * 40]
)
def test_a_client_sends_tokens_of_clusters_and_of_files(text: str) -> None:
    assert sending_problem(text) == ""
