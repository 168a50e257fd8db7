"""A file of tokens: whom each one proves. It has no token, only what recognises one.

A line of JSON for each:

    {"principal": "shop-orders", "groups": ["shop"], "sha256": "<64 hex digits>",
     "expires_at": 1800000000000, "scram_sha_256": {"salt": ..., "iterations": 4096,
     "stored_key": ..., "server_key": ...}, "scram_sha_512": ...}

A principal may have several tokens, so that a new one can be given out before the old one is
removed. Tokens are random and long, so a plain hash is enough; a look-up by the hash tells a
guesser nothing, and what is found is compared in constant time. The verifiers are for log-ins by
SCRAM, with the token as password (RFC 5802, RFC 7677, `scram`): without the token they could not be
made later. A client that logs in says its name before its password, and is told one salt. So all
tokens of a principal have the same one, and each of them fits.
"""

import hashlib
import hmac
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from millrace.core.errors import InvalidConfigError
from millrace.core.guard.identity import Identity, principal_problem
from millrace.core.ids import WallMs
from millrace.core.json_objects import unique_members
from millrace.core.problems import problem_text, told

TOKENS_MAX: Final = 10_000
TOKENS_BYTES_MAX: Final = 16 << 20
TOKEN_CHARACTERS_MAX: Final = 4_096
"""A token of Kubernetes has about a thousand."""
SCRAM_HASHES: Final = ("sha256", "sha512")
"""The hash functions for which a token has a verifier, by `hashlib`'s names."""
SCRAM_ITERATIONS: Final = 4_096
"""As many as RFC 7677 asks for: more help only against guesses, and a token is random."""
SCRAM_SALT_BYTES: Final = 16

_TOKEN: Final = re.compile(rf"[A-Za-z0-9._~+/-]{{16,{TOKEN_CHARACTERS_MAX}}}={{0,2}}", re.ASCII)
_GROUPS_MAX: Final = 100
_ID_CHARACTERS: Final = 8
_VERIFIERS: Final = {f"scram_sha_{name.removeprefix('sha')}": name for name in SCRAM_HASHES}
_MEMBERS: Final = frozenset({"principal", "groups", "sha256", "expires_at", *_VERIFIERS})


@dataclass(frozen=True, slots=True)
class ScramVerifier:
    """What recognises a password in SCRAM, and proves this to the client."""

    hash_name: str
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """One token of the file.

    Attributes:
        principal: whom it proves.
        groups: of the principal.
        digest: SHA-256 of the token.
        expires_at: when it ends; None: never.
        scram: for logging in by password, one for each of `SCRAM_HASHES`.
    """

    principal: str
    groups: tuple[str, ...]
    digest: bytes
    expires_at: WallMs | None
    scram: tuple[ScramVerifier, ...]

    def verifier(self, hash_name: str) -> ScramVerifier:
        """Return the one of a hash function."""
        return self.scram[SCRAM_HASHES.index(hash_name)]

    @property
    def token_id(self) -> str:
        """What people call the token by."""
        return self.digest.hex()[:_ID_CHARACTERS]

    @property
    def identity(self) -> Identity:
        """Whom it proves."""
        return Identity(self.principal, frozenset(self.groups), self.expires_at)


def token_problem(token: str) -> str:
    """Return what is wrong with a text that should be a token; empty: nothing is.

    The text is a secret: nothing of it is repeated.
    """
    if _TOKEN.fullmatch(token):
        return ""
    return f"a token is one word of 16 to {TOKEN_CHARACTERS_MAX} letters, digits and . _ ~ + / - ="


def digest_of(token: str) -> bytes:
    """Return what a token is known by."""
    return hashlib.sha256(token.encode()).digest()


def new_entry(
    token: str, principal: str, groups: Sequence[str], expires_at: WallMs | None, salt: bytes
) -> TokenEntry:
    """Return the entry of a new token.

    Args:
        token: random.
        principal: whom it proves.
        groups: of the principal.
        expires_at: when it ends; None: never.
        salt: that of the principal's other tokens; random bytes if this is the first one.
    """
    verifiers = tuple(new_verifier(name, token, salt) for name in SCRAM_HASHES)
    return TokenEntry(principal, tuple(groups), digest_of(token), expires_at, verifiers)


def new_verifier(hash_name: str, password: str, salt: bytes) -> ScramVerifier:
    """Return what recognises a password (RFC 5802, section 3)."""
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, SCRAM_ITERATIONS)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    return ScramVerifier(
        hash_name,
        salt,
        SCRAM_ITERATIONS,
        hashlib.new(hash_name, client_key).digest(),
        hmac.digest(salted, b"Server Key", hash_name),
    )


class Tokens:
    """The tokens of a file.

    Args:
        entries: all of them.

    Attributes:
        entries: as given.
        salt_secret: from which the salts of names without a token follow (`scram`). It follows from
            the first entry: so all brokers with the file have the same one, also after a restart,
            and while other tokens come and go.
    """

    def __init__(self, entries: Iterable[TokenEntry]) -> None:
        self.entries = tuple(entries)
        first = self.entries[0].digest if self.entries else b""
        self.salt_secret = hmac.digest(first, b"salts of names without a token", "sha256")
        self._by_digest = {entry.digest: entry for entry in self.entries}
        self._by_principal: dict[str, list[TokenEntry]] = {}
        for entry in self.entries:
            self._by_principal.setdefault(entry.principal, []).append(entry)

    def find(self, digest: bytes) -> TokenEntry | None:
        """Return the entry of a token, which may have ended; None: there is none."""
        entry = self._by_digest.get(digest)
        if entry is None or not hmac.compare_digest(entry.digest, digest):
            return None
        return entry

    def of(self, principal: str) -> Sequence[TokenEntry]:
        """Return the tokens of a principal in the order of the file; some may have ended."""
        return self._by_principal.get(principal, ())


def parse_tokens(text: str) -> Tokens:
    """Return the tokens of a file.

    Raises:
        InvalidConfigError: names each mistake with its line, and repeats no secret.
    """
    entries: list[TokenEntry] = []
    problems: list[str] = []
    seen: dict[bytes, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = _entry(json.loads(line, object_pairs_hook=unique_members))
        except (ValueError, RecursionError) as error:
            problems.append(f"line {number}: {error}")
            continue
        if (first := seen.setdefault(entry.digest, number)) != number:
            problems.append(f"line {number}: the token is in line {first} already: remove one")
        entries.append(entry)
    if len(entries) > TOKENS_MAX:
        problems.append(f"{len(entries)} tokens: at most {TOKENS_MAX} may be")
    if problems:
        raise InvalidConfigError(problem_text(problems))
    return Tokens(entries)


def tokens_to_text(entries: Iterable[TokenEntry]) -> str:
    """Return the text of a file."""
    return "".join(json.dumps(_to_json(entry)) + "\n" for entry in entries)


def _entry(said: Any) -> TokenEntry:
    if not isinstance(said, dict):
        raise ValueError("each line is one JSON object, as `millrace token new` writes it")
    if unknown := set(said) - _MEMBERS:
        raise ValueError(f"{told(min(unknown))!r} is nothing that a token has")
    if missing := _MEMBERS - {"expires_at", "groups"} - set(said):
        raise ValueError(f"{min(missing)!r} is missing: make a new token")
    principal, groups = said["principal"], said.get("groups", [])
    if not isinstance(principal, str):
        raise ValueError("principal: a text is wanted")
    if not isinstance(groups, list) or not all(isinstance(group, str) for group in groups):
        raise ValueError("groups: a list of texts is wanted")
    if len(groups) > _GROUPS_MAX:
        raise ValueError(f"groups: at most {_GROUPS_MAX} may be")
    for name in (principal, *groups):
        if problem := principal_problem(name):
            raise ValueError(problem)
    expires_at = said.get("expires_at")
    if expires_at is not None and (type(expires_at) is not int or not 0 <= expires_at < 1 << 62):
        raise ValueError("expires_at: milliseconds since 1970 are wanted")
    digest = _digest(said["sha256"])
    return TokenEntry(
        principal,
        tuple(groups),
        digest,
        None if expires_at is None else WallMs(expires_at),
        tuple(_verifier(member, said[member]) for member in _VERIFIERS),
    )


def _digest(said: object) -> bytes:
    if not isinstance(said, str) or not re.fullmatch(r"[0-9a-f]{64}", said):
        raise ValueError("sha256: 64 hexadecimal digits are wanted")
    return bytes.fromhex(said)


def _verifier(member: str, said: Any) -> ScramVerifier:
    hash_name = _VERIFIERS[member]
    size = hashlib.new(hash_name).digest_size
    try:
        iterations = said["iterations"]
        keys = [
            b64decode(said[name], validate=True) for name in ("salt", "stored_key", "server_key")
        ]
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{member}: it is damaged: make a new token") from None
    salt, stored_key, server_key = keys
    if (
        type(iterations) is not int
        or not SCRAM_ITERATIONS <= iterations <= 1_000_000
        or not (len(salt) >= 8 and len(stored_key) == len(server_key) == size)
    ):
        raise ValueError(f"{member}: it is damaged: make a new token")
    return ScramVerifier(hash_name, salt, iterations, stored_key, server_key)


def _to_json(entry: TokenEntry) -> Mapping[str, Any]:
    said: dict[str, Any] = {
        "principal": entry.principal,
        "groups": list(entry.groups),
        "sha256": entry.digest.hex(),
    }
    for member, hash_name in _VERIFIERS.items():
        verifier = entry.verifier(hash_name)
        said[member] = {
            "salt": b64encode(verifier.salt).decode(),
            "iterations": verifier.iterations,
            "stored_key": b64encode(verifier.stored_key).decode(),
            "server_key": b64encode(verifier.server_key).decode(),
        }
    if entry.expires_at is not None:
        said["expires_at"] = entry.expires_at
    return said
