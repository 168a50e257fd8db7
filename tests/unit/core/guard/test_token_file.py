import hashlib
import hmac
import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.errors import InvalidConfigError
from millrace.core.guard.token_file import (
    SCRAM_HASHES,
    SCRAM_ITERATIONS,
    TOKEN_CHARACTERS_MAX,
    TOKENS_MAX,
    TokenEntry,
    Tokens,
    digest_of,
    new_entry,
    parse_tokens,
    token_problem,
    tokens_to_text,
)
from millrace.core.ids import WallMs

TOKEN = "mlr_" + "x" * 43
SALT = b"s" * 16


def entry(token: str = TOKEN, principal: str = "alice", ends: int | None = None) -> TokenEntry:
    ended = None if ends is None else WallMs(ends)
    return new_entry(token, principal, ["shop"], ended, SALT)


def test_a_token_is_found_by_its_hash_and_by_nothing_else() -> None:
    tokens = parse_tokens(tokens_to_text([entry(), entry("y" * 40, "bob", 1_800_000_000_000)]))
    found = tokens.find(digest_of(TOKEN))
    assert found == entry()
    assert found is not None
    assert found.identity.principal == "alice"
    assert found.identity.groups == {"shop"}
    assert tokens.find(digest_of("y" * 40)) == entry("y" * 40, "bob", 1_800_000_000_000)
    assert tokens.find(digest_of(TOKEN + "x")) is None
    assert tokens.find(b"") is None


def test_the_file_has_no_token() -> None:
    text = tokens_to_text([entry()])
    assert TOKEN not in text
    assert TOKEN not in repr(entry())


@pytest.mark.parametrize("hash_name", SCRAM_HASHES)
def test_the_verifier_is_that_of_rfc_5802(hash_name: str) -> None:
    scram = entry().verifier(hash_name)
    assert scram.iterations == SCRAM_ITERATIONS
    salted = hashlib.pbkdf2_hmac(hash_name, TOKEN.encode(), SALT, scram.iterations)
    message = b"n=alice,r=abc,r=abcdef,s=,i=4096,c=biws,r=abcdef"
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    signature = hmac.digest(scram.stored_key, message, hash_name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    recovered = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
    assert hashlib.new(hash_name, recovered).digest() == scram.stored_key
    assert hmac.digest(salted, b"Server Key", hash_name) == scram.server_key


def test_a_principal_may_have_two_tokens() -> None:
    tokens = parse_tokens(tokens_to_text([entry(), entry("y" * 40)]))
    assert [found.principal for found in tokens.entries] == ["alice", "alice"]
    assert len({found.token_id for found in tokens.entries}) == 2


def changed(**members: object) -> str:
    said = json.loads(tokens_to_text([entry()]))
    said.update(members)
    return json.dumps({name: value for name, value in said.items() if value != "absent"})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "line 1: "),
        ("\n[]", "line 2: each line is one JSON object"),
        (changed(sha256="absent"), "line 1: 'sha256' is missing"),
        (changed(sha256="AB"), "line 1: sha256: 64 hex"),
        (changed(token=TOKEN), "line 1: 'token' is nothing that a token has"),
        (changed(principal="anonymous"), "line 1: 'anonymous' is the name of callers"),
        (changed(principal=7), "line 1: principal: a text"),
        (changed(groups="shop"), "line 1: groups: a list"),
        (changed(groups=["g"] * 101), "line 1: groups: at most 100"),
        (changed(groups=["a*"]), "line 1: 'a*': a name is"),
        (changed(expires_at="soon"), "line 1: expires_at: milliseconds"),
        (changed(expires_at=True), "line 1: expires_at: milliseconds"),
        (changed(scram_sha_256={}), "line 1: scram_sha_256: it is damaged"),
        (changed() + "\n" + changed(), "line 2: the token is in line 1 already"),
        ('{"principal": "a", "principal": "b"}', "line 1: an object has the name"),
    ],
)
def test_a_mistake_is_told_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        parse_tokens(text)
    assert problem in refused.value.message


def test_iterations_are_bounded() -> None:
    scram = json.loads(tokens_to_text([entry()]))["scram_sha_256"]
    for wrong in (0, 4095, 10**9, "4096"):
        with pytest.raises(InvalidConfigError, match="damaged"):
            parse_tokens(changed(scram_sha_256={**scram, "iterations": wrong}))


def test_there_are_at_most_so_many_tokens() -> None:
    line = json.loads(tokens_to_text([entry()]))
    text = "\n".join(
        json.dumps({**line, "sha256": f"{number:064x}"}) for number in range(TOKENS_MAX + 1)
    )
    with pytest.raises(InvalidConfigError, match="at most"):
        parse_tokens(text)


@pytest.mark.parametrize(
    "token",
    [
        "",
        "short",
        "x" * (TOKEN_CHARACTERS_MAX + 1),
        "two words" * 4,
        "ü" * 20,
        "x" * 20 + "\n",
        "=" * 20,
    ],
)
def test_not_every_text_is_a_token_and_nothing_of_it_is_repeated(token: str) -> None:
    problem = token_problem(token)
    assert problem
    assert not token or token not in problem


def test_salts_of_other_names_stay_while_tokens_come_and_go() -> None:
    first, second, third = (
        new_entry(f"{name}-{'x' * 16}", name, [], None, b"s" * 16) for name in ("a", "b", "c")
    )
    secret = Tokens([first]).salt_secret
    assert Tokens([first, second, third]).salt_secret == secret
    assert Tokens([first, third]).salt_secret == secret
    assert Tokens([second, third]).salt_secret != secret
    assert first.digest not in secret
    assert Tokens([]).salt_secret


def test_tokens_of_this_file_and_of_kubernetes_have_the_shape() -> None:
    assert not token_problem(TOKEN)
    assert not token_problem("eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.c2ln_bmF0-dXJl")


@given(st.text(max_size=200))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with suppress(InvalidConfigError):  # And no other error.
        parse_tokens(text)
