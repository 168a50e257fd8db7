"""Tokens of ServiceAccounts: verified here, reviewed by the API server, remembered (G8)."""

import asyncio
import base64
import hmac
import json
import time

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tests.fakes.authority import FakeAuthority
from tests.fakes.virtual_loop import in_virtual_time

from millrace.broker.guard.guard import AuthorityAwayError, NotAskedError
from millrace.broker.guard.service_accounts import ServiceAccountTokens
from millrace.core.guard.identity import RefusedCredentialError
from millrace.core.guard.known_tokens import AWAY_MS, REFUSED_MS, REVIEW_MS
from millrace.core.guard.service_account_token import audience_of

AUDIENCE = audience_of("logs", "shop")
READER = "system:serviceaccount:shop:reader"


@pytest.fixture
def authority() -> FakeAuthority:
    return FakeAuthority()


async def refusal(tokens: ServiceAccountTokens, token: str) -> str:
    with pytest.raises(RefusedCredentialError) as refused:
        await tokens.identify(token)
    return str(refused.value)


@in_virtual_time
async def test_a_token_is_verified_and_reviewed_once(authority: FakeAuthority) -> None:
    tokens = ServiceAccountTokens(authority, AUDIENCE)
    token = authority.token([AUDIENCE])
    for _ in range(3):
        identity = (await tokens.identify(token)).identity
        assert identity.principal == READER
        assert "system:serviceaccounts:shop" in identity.groups
    assert authority.asked["TokenReview"] == 1
    assert authority.asked["/openid/v1/jwks"] == 1


@in_virtual_time
async def test_many_calls_with_one_token_ask_once(authority: FakeAuthority) -> None:
    tokens = ServiceAccountTokens(authority, AUDIENCE)
    token = authority.token([AUDIENCE])
    found = await asyncio.gather(*(tokens.identify(token) for _ in range(50)))
    assert {shown.identity.principal for shown in found} == {READER}
    assert authority.asked["TokenReview"] == 1


@in_virtual_time
async def test_a_caller_that_goes_away_does_not_take_the_answer_from_others(
    authority: FakeAuthority,
) -> None:
    tokens = ServiceAccountTokens(authority, AUDIENCE)
    token = authority.token([AUDIENCE])
    calls = [asyncio.create_task(tokens.identify(token)) for _ in range(2)]
    await asyncio.sleep(0)
    calls[0].cancel()
    assert (await calls[1]).identity.principal == READER


@in_virtual_time
async def test_forged_tokens_cost_the_api_server_nothing(authority: FakeAuthority) -> None:
    tokens = ServiceAccountTokens(authority, AUDIENCE)
    good = authority.token([AUDIENCE])
    await tokens.identify(good)
    other = FakeAuthority()  # Another API server, whose key has the same name.
    public = authority.keys["k1"].public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    claims = jwt.decode(good, options={"verify_signature": False})
    header, body, signature = good.split(".")
    forged = {
        other.token([AUDIENCE]): "signature",
        f"{header}.{body}.{signature[:-4]}AAAA": "signature",
        f"{header}.{body}x.{signature}": "claims cannot be read",
        _unsigned(claims, "none"): "algorithm",
        _keyed_by_the_public_key(claims, pem): "algorithm",
        jwt.encode(
            claims, ec.generate_private_key(ec.SECP384R1()), "ES384", headers={"kid": "k1"}
        ): "key is not for ES384",
        authority.token(["https://kubernetes.default.svc"]): "audience",
        authority.token([AUDIENCE, "https://kubernetes.default.svc"]): "audience",
        authority.token([AUDIENCE], exp=int(time.time()) - 3600): "expired",
        authority.token([AUDIENCE], nbf=int(time.time()) + 3600): "not valid yet",
        other.token([AUDIENCE], iss="https://elsewhere"): "signature",
    }
    for token, reason in forged.items():
        assert reason in await refusal(tokens, token)
    assert authority.asked["TokenReview"] == 1


def _unsigned(claims: dict[str, object], algorithm: str) -> str:
    header = {"alg": algorithm, "kid": "k1", "typ": "JWT"}
    parts = (base64.urlsafe_b64encode(json.dumps(each).encode()) for each in (header, claims))
    return ".".join(part.decode().rstrip("=") for part in parts) + ".c2ln"


def _keyed_by_the_public_key(claims: dict[str, object], pem: bytes) -> str:
    """A token whose secret is what everybody knows (key confusion)."""
    unsigned = _unsigned(claims, "HS256").rpartition(".")[0]
    signature = base64.urlsafe_b64encode(hmac.digest(pem, unsigned.encode(), "sha256")).decode()
    return f"{unsigned}.{signature.rstrip('=')}"


@in_virtual_time
async def test_names_of_keys_that_are_invented_fetch_the_keys_twice_a_minute(
    authority: FakeAuthority,
) -> None:
    tokens = ServiceAccountTokens(authority, AUDIENCE)
    other = FakeAuthority()
    for number in range(600):
        other.keys[f"k{number + 2}"] = other.keys["k1"]
        token = other.token([AUDIENCE], key_id=f"k{number + 2}")
        if number % 300:
            with pytest.raises(AuthorityAwayError):  # Maybe the API server has it by now.
                await tokens.identify(token)
        else:
            assert "no key" in await refusal(tokens, token)
        await asyncio.sleep(0.1)
    assert authority.asked["/openid/v1/jwks"] == 2


@in_virtual_time
async def test_a_new_key_is_never_taken_for_an_invented_one(authority: FakeAuthority) -> None:
    tokens = ServiceAccountTokens(authority, AUDIENCE)
    other = FakeAuthority()
    other.keys["invented"] = other.keys["k1"]
    assert "no key" in await refusal(tokens, other.token([AUDIENCE], key_id="invented"))
    await asyncio.sleep(1)
    authority.keys["k2"] = ec.generate_private_key(ec.SECP256R1())
    token = authority.token([AUDIENCE], "shop:writer", key_id="k2")
    for _ in range(2):
        with pytest.raises(AuthorityAwayError):
            await tokens.identify(token)
        await asyncio.sleep(15)
    assert (await tokens.identify(token)).identity.principal == "system:serviceaccount:shop:writer"


@in_virtual_time
async def test_ten_thousand_unique_bad_tokens_a_second_disturb_nobody(
    authority: FakeAuthority,
) -> None:
    """Neither the API server nor those who are known."""
    tokens = ServiceAccountTokens(authority, AUDIENCE)
    known = authority.token([AUDIENCE])
    await tokens.identify(known, "10.0.0.1")
    other = FakeAuthority()
    header, body, signature = other.token([AUDIENCE]).split(".")
    for number in range(10_000):
        odd = f"{header}.{body}.{signature[:-6]}{number:06d}"
        with pytest.raises((RefusedCredentialError, NotAskedError)):
            await tokens.identify(odd, "10.0.0.1")
        if not number % 100:
            assert (await tokens.identify(known, "10.0.0.1")).identity.principal == READER
    assert authority.asked["TokenReview"] == 1
    assert len(tokens._known) < 1100, "most were told to try again, and not looked at"


@in_virtual_time
async def test_forgeries_of_an_address_do_not_keep_its_good_new_tokens_from_being_known(
    authority: FakeAuthority,
) -> None:
    tokens = ServiceAccountTokens(authority, AUDIENCE)
    await tokens.identify(authority.token([AUDIENCE]), "10.0.0.1")
    other = FakeAuthority()
    header, body, signature = other.token([AUDIENCE]).split(".")
    for second in range(20):
        for number in range(500):  # Ten times as many as are reviewed.
            odd = f"{header}.{body}.{signature[:-6]}{second * 500 + number:06d}"
            with pytest.raises(RefusedCredentialError):
                await tokens.identify(odd, "10.0.0.1")
        for number in range(10):
            good = authority.token([AUDIENCE], f"shop:reader-{second}-{number}")
            assert (await tokens.identify(good, "10.0.0.1")).identity.principal
        await asyncio.sleep(1)


@in_virtual_time
async def test_one_address_cannot_have_the_api_server_review_new_tokens_without_end(
    authority: FakeAuthority,
) -> None:
    tokens = ServiceAccountTokens(authority, AUDIENCE, reviews_per_source=10)
    several = [authority.token([AUDIENCE], f"shop:reader-{number}") for number in range(100)]
    outcomes = await asyncio.gather(
        *(tokens.identify(token, "10.0.0.1") for token in several), return_exceptions=True
    )
    refused = [outcome for outcome in outcomes if isinstance(outcome, NotAskedError)]
    assert 40 <= len(refused) <= 50, "it had saved up five seconds"
    assert authority.asked["TokenReview"] == 100 - len(refused)
    another = authority.token([AUDIENCE], "shop:another")
    assert (await tokens.identify(another, "10.0.0.2")).identity.principal
    assert (await tokens.identify(several[0], "10.0.0.1")).identity.principal, "it is known"
    await asyncio.sleep(10)
    assert (await tokens.identify(several[-1], "10.0.0.1")).identity.principal


@in_virtual_time
async def test_a_new_key_of_the_api_server_is_fetched(authority: FakeAuthority) -> None:
    tokens = ServiceAccountTokens(authority, AUDIENCE)
    await tokens.identify(authority.token([AUDIENCE]))
    await asyncio.sleep(31)
    authority.keys["k2"] = ec.generate_private_key(ec.SECP256R1())
    token = authority.token([AUDIENCE], "shop:writer", key_id="k2")
    assert (await tokens.identify(token)).identity.principal == "system:serviceaccount:shop:writer"


@in_virtual_time
async def test_tokens_of_another_issuer_of_the_api_server_are_taken(
    authority: FakeAuthority,
) -> None:
    """Its key stays, and so the name of the key."""
    tokens = ServiceAccountTokens(authority, AUDIENCE)
    await tokens.identify(authority.token([AUDIENCE]))
    authority.issuer = "https://api.example"
    token = authority.token([AUDIENCE], "shop:writer")
    for _ in range(2):
        with pytest.raises(AuthorityAwayError):  # It may not be asked again yet.
            await tokens.identify(token)
        await asyncio.sleep(15.5)
    others = [authority.token([AUDIENCE], f"shop:writer-{number}") for number in range(10)]
    found = await asyncio.gather(*map(tokens.identify, [token, *others]))
    assert found[0].identity.principal == "system:serviceaccount:shop:writer"
    assert authority.asked["/openid/v1/jwks"] == 2


@in_virtual_time
async def test_an_issuer_that_is_not_the_api_servers_is_refused(authority: FakeAuthority) -> None:
    tokens = ServiceAccountTokens(authority, AUDIENCE)
    await tokens.identify(authority.token([AUDIENCE]))
    elsewhere = "https://elsewhere"
    await asyncio.sleep(31)
    forged = FakeAuthority().token([AUDIENCE], iss=elsewhere)
    assert "signature" in await refusal(tokens, forged)
    not_ours = authority.token(["another.shop.millrace.dev"], iss=elsewhere)
    assert "audience" in await refusal(tokens, not_ours)
    assert authority.asked["/openid/v1/jwks"] == 1, "neither has the keys fetched"
    assert "issuer" in await refusal(tokens, authority.token([AUDIENCE], iss=elsewhere))
    assert authority.asked["/openid/v1/jwks"] == 2


@in_virtual_time
async def test_the_account_that_is_gone_is_refused_at_the_next_review(
    authority: FakeAuthority,
) -> None:
    tokens = ServiceAccountTokens(authority, AUDIENCE)
    token = authority.token([AUDIENCE])
    await tokens.identify(token)
    authority.revoked.add(READER)
    await asyncio.sleep(REVIEW_MS / 1000 - 1)
    await tokens.identify(token)
    await asyncio.sleep(1)
    assert "gone" in await refusal(tokens, token)
    asked = authority.asked["TokenReview"]
    assert "gone" in await refusal(tokens, token)
    assert authority.asked["TokenReview"] == asked
    authority.revoked.clear()
    await asyncio.sleep(REFUSED_MS / 1000)
    assert (await tokens.identify(token)).identity.principal == READER


@in_virtual_time
async def test_those_known_go_on_while_the_api_server_is_away_and_new_ones_do_not(
    authority: FakeAuthority,
) -> None:
    tokens = ServiceAccountTokens(authority, AUDIENCE)
    known, new = authority.token([AUDIENCE]), authority.token([AUDIENCE], "shop:writer")
    await tokens.identify(known)
    authority.is_away = True
    with pytest.raises(AuthorityAwayError):
        await tokens.identify(new)
    for _ in range(AWAY_MS // 60_000 - 1):
        await asyncio.sleep(60)
        assert (await tokens.identify(known)).identity.principal == READER
    await asyncio.sleep(60)
    with pytest.raises(AuthorityAwayError):
        await tokens.identify(known)
    authority.is_away = False
    assert (await tokens.identify(known)).identity.principal == READER
    assert (await tokens.identify(new)).identity.principal == "system:serviceaccount:shop:writer"


@in_virtual_time
async def test_a_review_that_has_no_answer_delays_a_known_caller_once(
    authority: FakeAuthority,
) -> None:
    tokens = ServiceAccountTokens(authority, AUDIENCE)
    token = authority.token([AUDIENCE])
    await tokens.identify(token)
    await asyncio.sleep(REVIEW_MS / 1000)
    authority.delay_s = 60.0
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    for _ in range(100):
        assert (await tokens.identify(token)).identity.principal == READER
    assert loop.time() - began_s <= 1.0


def test_the_end_of_a_known_token_is_noticed(authority: FakeAuthority) -> None:
    async def story() -> None:
        tokens = ServiceAccountTokens(authority, AUDIENCE)
        token = authority.token([AUDIENCE], exp=time.time() - 29)  # The leeway is 30 s.
        await tokens.identify(token)
        await asyncio.sleep(1.1)
        assert "expired" in await refusal(tokens, token)

    asyncio.run(story())


@in_virtual_time
async def test_an_answer_for_another_audience_or_account_is_no_proof(
    authority: FakeAuthority,
) -> None:
    tokens = ServiceAccountTokens(authority, AUDIENCE)
    authority.answers = {"authenticated": True, "user": {"username": READER}}
    assert "audience" in await refusal(tokens, authority.token([AUDIENCE]))
    authority.answers["audiences"] = [AUDIENCE]
    assert "somebody else" in await refusal(tokens, authority.token([AUDIENCE], "shop:writer"))
