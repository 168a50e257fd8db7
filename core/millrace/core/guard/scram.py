"""Log-in by SCRAM: the server's side of one exchange, against the verifiers of tokens.

The client says a name and a nonce; the server adds its own, and says with which salt and how often
the password is to be hashed; the client proves that it has the password, and the server that it
knows what recognises it. Neither the password nor anything that can be used again is sent.

The password is a token. A name may have several, so that one can be given out before another is
removed. They have the same salt then (`token_file`), and the one that fits is found at the end.

A name that nobody has is answered like any other, with a salt that follows from the name and a
secret. The salt of a real name is in the token file, and the same at all brokers and at all times;
so the secret follows from that file, too (`Tokens.salt_secret`). A stranger who compares salts sees
a difference only over a change of the file: where a name got its first token or lost its last one,
or where the first token of the file was removed, by which the salts of all other names change. The
holder of that first token could compute them; it is no stranger.

The hash function is SHA-256, or SHA-512, which Strimzi's users have. The channel of TLS is not
bound (`SCRAM-SHA-256-PLUS`): Kafka's clients cannot.

Source: RFC 5802, RFC 7677; KIP-84.
"""

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Final

from millrace.core.guard.identity import RefusedCredentialError
from millrace.core.guard.token_file import (
    SCRAM_ITERATIONS,
    SCRAM_SALT_BYTES,
    ScramVerifier,
    TokenEntry,
)

MESSAGE_BYTES_MAX: Final = 4_096
"""Of what a client sends: a name, a nonce and some extensions."""
_NOT_UNDERSTOOD: Final = "the SCRAM exchange of the client cannot be understood"
_FIRST: Final = re.compile(
    r"(?P<header>[ny],(?:a=(?P<other>(?:[^,=]|=2C|=3D)*))?,)"
    r"(?P<bare>n=(?P<name>(?:[^,=]|=2C|=3D)+),r=(?P<nonce>[!-+\--~]+)(?:,[A-Za-z]+=[^,]*)*)"
)
_FINAL: Final = re.compile(
    r"(?P<unproved>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[!-+\--~]+)(?:,[A-Za-z]+=[^,]*)*)"
    r",p=(?P<proof>[A-Za-z0-9+/]+={0,2})"
)


class ScramExchange:
    """One log-in.

    Args:
        client_first: what the client begins with.
        nonce: random printable characters, without a comma.
        hash_name: one of `SCRAM_HASHES`.

    Raises:
        RefusedCredentialError: it cannot be understood.

    Attributes:
        name: that the client logs in by.
    """

    def __init__(self, client_first: bytes, nonce: str, hash_name: str = "sha256") -> None:
        found = _FIRST.fullmatch(_text(client_first))
        if found is None:
            raise RefusedCredentialError(_NOT_UNDERSTOOD)
        if found["other"] not in (None, "", found["name"]):
            raise RefusedCredentialError("the client wants to log in as somebody else")
        self.name = found["name"].replace("=2C", ",").replace("=3D", "=")
        self._binding = b64encode(found["header"].encode()).decode()
        self._client_first = found["bare"]
        self._nonce = found["nonce"] + nonce
        self._server_first = ""
        self._hash_name = hash_name
        self._known: list[tuple[TokenEntry, ScramVerifier]] = []

    def challenge(self, entries: Sequence[TokenEntry], secret: bytes) -> bytes:
        """Return what the server says first.

        Args:
            entries: the tokens of the name, the newest one last; none: nobody has the name.
            secret: from which the salts of such names follow, the same at all brokers.
        """
        salt, iterations = _salt_of_nobody(self.name, secret), SCRAM_ITERATIONS
        known = [(entry, entry.verifier(self._hash_name)) for entry in entries]
        if known:
            salt, iterations = known[-1][1].salt, known[-1][1].iterations
        self._known = [
            (entry, verifier)
            for entry, verifier in known
            if (verifier.salt, verifier.iterations) == (salt, iterations)
        ]
        said = f"r={self._nonce},s={b64encode(salt).decode()},i={iterations}"
        self._server_first = said
        return said.encode()

    def finish(self, client_final: bytes) -> tuple[TokenEntry, bytes]:
        """Return the token whose owner the client is, and what proves this server to the client.

        Raises:
            RefusedCredentialError: it is nobody's.
        """
        found = _FINAL.fullmatch(_text(client_final))
        if found is None:
            raise RefusedCredentialError(_NOT_UNDERSTOOD)
        if found["binding"] != self._binding or not hmac.compare_digest(
            found["nonce"], self._nonce
        ):
            raise RefusedCredentialError("the end of the SCRAM exchange does not fit its beginning")
        try:
            proof = b64decode(found["proof"], validate=True)
        except ValueError:
            raise RefusedCredentialError(_NOT_UNDERSTOOD) from None
        signed = f"{self._client_first},{self._server_first},{found['unproved']}".encode()
        for entry, verifier in self._known:
            if _proves(proof, verifier, signed):
                signature = hmac.digest(verifier.server_key, signed, verifier.hash_name)
                return entry, b"v=" + b64encode(signature)
        raise RefusedCredentialError(f"the password is none of {self.name[:40]!r}")


def _text(message: bytes) -> str:
    """Return the text of a message.

    Raises:
        RefusedCredentialError: it is none.
    """
    if len(message) > MESSAGE_BYTES_MAX:
        raise RefusedCredentialError(_NOT_UNDERSTOOD)
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise RefusedCredentialError(_NOT_UNDERSTOOD) from None


def _salt_of_nobody(name: str, secret: bytes) -> bytes:
    return hmac.digest(secret, name.encode(), "sha256")[:SCRAM_SALT_BYTES]


def _proves(proof: bytes, verifier: ScramVerifier, signed: bytes) -> bool:
    """Whether a proof was made with the password that a verifier recognises."""
    signature = hmac.digest(verifier.stored_key, signed, verifier.hash_name)
    if len(proof) != len(signature):
        return False
    client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
    return hmac.compare_digest(
        hashlib.new(verifier.hash_name, client_key).digest(), verifier.stored_key
    )
