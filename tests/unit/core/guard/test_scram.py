import base64
import hashlib
import hmac

import pytest

from millrace.core.guard.identity import RefusedCredentialError
from millrace.core.guard.scram import MESSAGE_BYTES_MAX, ScramExchange
from millrace.core.guard.token_file import SCRAM_HASHES, TokenEntry, new_entry, new_verifier
from millrace.core.ids import WallMs

SECRET = b"s" * 32
TOKEN = "mlr_alice-has-this-token"
OTHER = "mlr_alice-has-another-one"
SALT = b"0123456789abcdef"
ENTRY = new_entry(TOKEN, "alice", [], None, SALT)


def proof(
    password: str, challenge: bytes, bare: str, unproved: str, hash_name: str = "sha256"
) -> bytes:
    """Return the end of a client's side (RFC 5802, section 3)."""
    said = dict(part.split("=", 1) for part in challenge.decode().split(","))
    salt, iterations = base64.b64decode(said["s"]), int(said["i"])
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    signed = f"{bare},{challenge.decode()},{unproved}".encode()
    signature = hmac.digest(hashlib.new(hash_name, client_key).digest(), signed, hash_name)
    xored = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{unproved},p={base64.b64encode(xored).decode()}".encode()


def log_in(
    password: str,
    entries: list[TokenEntry],
    *,
    bare: str = "n=alice,r=abc",
    header: str = "n,,",
    unproved: str = "",
    hash_name: str = "sha256",
) -> tuple[TokenEntry, bytes]:
    exchange = ScramExchange((header + bare).encode(), "xyz", hash_name)
    challenge = exchange.challenge(entries, SECRET)
    binding = base64.b64encode(header.encode()).decode()
    unproved = unproved or f"c={binding},r=abcxyz"
    return exchange.finish(proof(password, challenge, bare, unproved, hash_name))


def test_the_example_of_the_standard() -> None:
    """RFC 7677, section 3."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    entry = TokenEntry("user", (), b"", None, (new_verifier("sha256", "pencil", salt),))
    exchange = ScramExchange(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert exchange.name == "user"
    assert exchange.challenge([entry], SECRET) == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    found, said = exchange.finish(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert found is entry
    assert said == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize("hash_name", SCRAM_HASHES)
def test_a_token_is_the_password(hash_name: str) -> None:
    entry, said = log_in(TOKEN, [ENTRY], hash_name=hash_name)
    assert entry is ENTRY
    size = hashlib.new(hash_name).digest_size
    assert len(base64.b64decode(said.removeprefix(b"v="))) == size
    with pytest.raises(RefusedCredentialError, match="none of 'alice'"):
        log_in(OTHER, [ENTRY], hash_name=hash_name)


@pytest.mark.parametrize("password", [TOKEN, OTHER])
def test_each_of_several_tokens_of_a_principal_is_a_password(password: str) -> None:
    entries = [ENTRY, new_entry(OTHER, "alice", ["ops"], WallMs(1), SALT)]
    entry, _ = log_in(password, entries)
    assert entry is entries[password == OTHER]


def test_a_token_of_another_salt_than_the_newest_is_none() -> None:
    entries = [new_entry(OTHER, "alice", [], None, b"another salt, 16"), ENTRY]
    assert log_in(TOKEN, entries)[0] is ENTRY
    with pytest.raises(RefusedCredentialError, match="none of 'alice'"):
        log_in(OTHER, entries)


def test_another_password_is_refused() -> None:
    with pytest.raises(RefusedCredentialError, match="none of 'alice'"):
        log_in(OTHER, [ENTRY])


def test_nobody_learns_whether_a_name_is_known() -> None:
    def challenge(name: str, secret: bytes = SECRET) -> bytes:
        return ScramExchange(f"n,,n={name},r=abc".encode(), "xyz").challenge([], secret)

    said = challenge("nobody")
    assert said.split(b",s=")[0] == b"r=abcxyz"
    assert len(said) == len(ScramExchange(b"n,,n=alice,r=abc", "xyz").challenge([ENTRY], SECRET))
    assert challenge("nobody") == said  # As a salt that is kept would.
    assert challenge("nobody", b"t" * 32) != said
    assert challenge("noone!") != said
    with pytest.raises(RefusedCredentialError, match="none of 'alice'"):
        log_in(TOKEN, [])


def test_names_may_have_commas_and_equals_signs() -> None:
    assert ScramExchange(b"n,,n=a=2Cb=3Dc,r=x", "y").name == "a,b=c"


@pytest.mark.parametrize("first", ["n,,n=alice,r=abc,tokenauth=false", "y,,n=alice,r=abc"])
def test_extensions_and_other_headers_are_taken(first: str) -> None:
    header, bare = first[:3], first[3:]
    assert log_in(TOKEN, [ENTRY], bare=bare, header=header)[0] is ENTRY


def test_a_client_may_say_that_it_acts_as_itself() -> None:
    assert log_in(TOKEN, [ENTRY], header="n,a=alice,")[0] is ENTRY


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n,,",
        b"n,,n=alice",
        b"n,,n=,r=abc",
        b"n,,r=abc,n=alice",
        b"n,,m=x,n=alice,r=abc",
        b"n,,n=alice,r=",
        b"n,,n=alice,r=a b",
        b"n,,n=ali=ce,r=abc",
        b"p=tls-unique,,n=alice,r=abc",
        b"n,a=bob,n=alice,r=abc",
        b"n,,n=\xff,r=abc",
        b"n,,n=alice,r=" + b"a" * MESSAGE_BYTES_MAX,
        b"n,,n=alice,r=abc" + b",a=" * 1300 + b",1",
    ],
)
def test_what_is_no_beginning_is_refused(first: bytes) -> None:
    with pytest.raises(RefusedCredentialError):
        ScramExchange(first, "xyz")


@pytest.mark.parametrize(
    "unproved",
    [
        "c=biws,r=abcxy",
        "c=biws,r=xyz",
        "c=eSws,r=abcxyz",
        "c=,r=abcxyz",
        "r=abcxyz,c=biws",
        "m=1,c=biws,r=abcxyz",
    ],
)
def test_an_end_that_does_not_fit_the_beginning_is_refused(unproved: str) -> None:
    with pytest.raises(RefusedCredentialError):
        log_in(TOKEN, [ENTRY], unproved=unproved)


@pytest.mark.parametrize(
    "final",
    [
        b"",
        b"c=biws,r=abcxyz",
        b"c=biws,r=abcxyz,p=",
        b"c=biws,r=abcxyz,p=AAAA",
        b"c=biws,r=abcxyz,p=A",
        b"c=biws,r=abcxyz,p=!",
        b"\xff",
        b"c=biws,r=abcxyz,p=" + b"A" * MESSAGE_BYTES_MAX,
    ],
)
def test_what_is_no_proof_is_refused(final: bytes) -> None:
    exchange = ScramExchange(b"n,,n=alice,r=abc", "xyz")
    exchange.challenge([ENTRY], SECRET)
    with pytest.raises(RefusedCredentialError):
        exchange.finish(final)
