"""SaslHandshake and SaslAuthenticate: a client proves who it is, with a token.

| mechanism | the token | where |
|---|---|---|
| `PLAIN` | is the password; the user name is its principal | with TLS alone |
| `OAUTHBEARER` | is the bearer token, also that of a ServiceAccount | with TLS alone |
| `SCRAM-SHA-256`, `-512` | is the password, and is not sent | where brokers have a file of tokens |

By SCRAM no ServiceAccount logs in: nobody has verifiers of its tokens.

What is proved is the same credential as that of a call over gRPC, and it is checked again while the
connection lasts. The broker tells the client when the credential ends. The client logs in again
before that time, as the same principal (KIP-368, K10). A client that is refused is not told why,
and its connection ends; the audit log has the reason.

Version 0 of SaslHandshake is followed by the mechanism's own messages, each behind its length,
instead of SaslAuthenticate.

Source: KIP-43, KIP-84, KIP-152, KIP-255, KIP-368; RFC 4616, RFC 5802, RFC 7628.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

from millrace.broker.guard.credentials import Credential
from millrace.broker.guard.guard import NOT_ACCEPTED, Guard
from millrace.broker.kafka.parts import KafkaParts
from millrace.broker.kafka.requests import ApiKey, KafkaConnectionState, Request, Served
from millrace.broker.kafka.wire.errors import NO_ERROR, Code
from millrace.core.errors import AuthenticationFailedError
from millrace.core.guard.identity import RefusedCredentialError
from millrace.core.guard.scram import MESSAGE_BYTES_MAX, ScramExchange
from millrace.core.guard.token_file import TOKEN_CHARACTERS_MAX
from millrace.runtime import host
from millrace.runtime.clock import wall_now

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
SCRAM: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""The mechanisms of SCRAM, and the hash function of each."""
_SENT_MAX: Final = MESSAGE_BYTES_MAX + TOKEN_CHARACTERS_MAX
"""Bytes of what a client sends in one step."""
_NONCE_BYTES: Final = 18
_BEARER: Final = re.compile(
    rb"n,(?:a=[^,\x01]*)?,\x01(?P<pairs>(?:[A-Za-z]+=[^\x01]*\x01)+)\x01", re.DOTALL
)
_PLAIN_PARTS: Final = 3
_METHOD: Final = "SaslAuthenticate"


class _Exchange:
    """What a connection has proved, or is about to.

    Attributes:
        mechanism: that the client chose; empty: none.
        scram: its log-in by SCRAM, once it has begun.
    """

    def __init__(self) -> None:
        self.mechanism = ""
        self.scram: ScramExchange | None = None


class AuthenticationRequests:
    """Answers SaslHandshake and SaslAuthenticate."""

    def __init__(self, parts: KafkaParts) -> None:
        self._calls = parts.calls
        self._steps: Mapping[str, Callable[[Guard, Request, bytes], Any]] = {
            PLAIN: self._plain,
            OAUTHBEARER: self._bearer,
            **dict.fromkeys(SCRAM, self._scram),
        }

    def served(self) -> Mapping[int, Served]:
        """Implement `RequestModule`."""
        return {
            ApiKey.SASL_HANDSHAKE: Served(range(2), self._handshake, is_for_strangers=True),
            ApiKey.SASL_AUTHENTICATE: Served(range(3), self._authenticate, is_for_strangers=True),
        }

    def _mechanisms(self, connection: KafkaConnectionState) -> Sequence[str]:
        """Return the mechanisms that a client may choose."""
        guard = self._calls.guard
        if guard is None:
            return []  # Nobody is asked.
        found = [PLAIN, OAUTHBEARER] if connection.is_encrypted else []
        return found if guard.tokens_of("") is None else [*found, *SCRAM]

    async def _handshake(self, request: Request) -> Any:
        exchange, mechanism = request.connection.of(_Exchange), request.message.mechanism
        offered = self._mechanisms(request.connection)
        exchange.mechanism, exchange.scram = "", None
        code = NO_ERROR
        if self._calls.guard is None:
            code = Code.ILLEGAL_SASL_STATE
        elif mechanism not in offered:
            code = Code.UNSUPPORTED_SASL_MECHANISM
        else:
            exchange.mechanism = mechanism
            if request.version == 0:
                request.connection.take_raw = lambda sent: self._raw(request, sent)
        return SaslHandshakeResponse(
            version=request.version, error_code=code, mechanisms=list(offered)
        )

    async def _authenticate(self, request: Request) -> Any:
        connection = request.connection
        guard, exchange = self._calls.guard, connection.of(_Exchange)
        if guard is None or not exchange.mechanism:
            return _answer(request, Code.ILLEGAL_SASL_STATE, "SaslHandshake comes first")
        try:
            said = await self._step(guard, request, bytes(request.message.auth_bytes or b""))
        except AuthenticationFailedError as error:
            connection.is_refused = True
            return _answer(request, Code.SASL_AUTHENTICATION_FAILED, error.message)
        lifetime_ms = 0
        credential = connection.credential
        if not exchange.mechanism and credential is not None:
            expires_at = credential.identity.expires_at
            lifetime_ms = 0 if expires_at is None else max(1, expires_at - wall_now())
        return _answer(request, NO_ERROR, None, said, lifetime_ms)

    async def _raw(self, request: Request, sent: bytes) -> bytes:
        """Answer a step of a client that does not wrap it.

        Raises:
            AuthenticationFailedError: it proves nothing.
        """
        guard, exchange = self._calls.guard, request.connection.of(_Exchange)
        assert guard is not None, "a mechanism was offered"
        said = await self._step(guard, request, sent)
        if not exchange.mechanism:
            request.connection.take_raw = None
        return said

    async def _step(self, guard: Guard, request: Request, sent: bytes) -> bytes:
        """Take a step of the mechanism, and return what the client is told.

        Raises:
            AuthenticationFailedError: the client proves nothing; it is recorded.
        """
        connection = request.connection
        exchange = connection.of(_Exchange)
        try:
            if len(sent) > _SENT_MAX:
                raise RefusedCredentialError(f"the client sends {len(sent)} bytes")
            credential, said = await self._steps[exchange.mechanism](guard, request, sent)
            if credential is None:
                return bytes(said)
            before = connection.credential
            if before is not None and before.identity.principal != credential.identity.principal:
                raise RefusedCredentialError(
                    f"the connection is that of {before.identity.principal!r}, and now proves to "
                    f"be that of {credential.identity.principal!r}"
                )
        except RefusedCredentialError as error:
            exchange.mechanism, exchange.scram = "", None
            if not guard.is_enforced:
                self._calls.refusals.on_rehearsed(request.caller, _METHOD, str(error))
                return b""
            self._calls.audit.on_unknown(request.caller, _METHOD, str(error))
            raise AuthenticationFailedError(NOT_ACCEPTED) from None
        connection.credential = credential
        exchange.mechanism, exchange.scram = "", None
        return bytes(said)

    # --- The mechanisms: each returns what is proved, if it is already, and what is said -------

    async def _plain(
        self, guard: Guard, request: Request, sent: bytes
    ) -> tuple[Credential | None, bytes]:
        parts = _text(sent).split("\0")
        if len(parts) != _PLAIN_PARTS:
            raise RefusedCredentialError("what the client sends is no name and password")
        other, name, token = parts
        if other not in ("", name):
            raise RefusedCredentialError("the client wants to log in as somebody else")
        credential = await self._proved(guard, request, token)
        if credential.identity.principal != name:
            raise RefusedCredentialError(
                f"the token is that of {credential.identity.principal!r}, and the client calls "
                f"itself {name[:40]!r}"
            )
        return credential, b""

    async def _bearer(
        self, guard: Guard, request: Request, sent: bytes
    ) -> tuple[Credential | None, bytes]:
        found = _BEARER.fullmatch(sent)
        if found is None:
            raise RefusedCredentialError("what the client sends has no bearer token")
        pairs = [pair.partition(b"=") for pair in found["pairs"].split(b"\x01")[:-1]]
        said = [value for key, _, value in pairs if key == b"auth"]
        if len(said) != 1 or said[0][:7].lower() != b"bearer ":
            raise RefusedCredentialError("what the client sends has no bearer token")
        return await self._proved(guard, request, _text(said[0][7:]).strip()), b""

    async def _scram(
        self, guard: Guard, request: Request, sent: bytes
    ) -> tuple[Credential | None, bytes]:
        exchange = request.connection.of(_Exchange)
        if exchange.scram is None:
            nonce = host.current.random_bytes(_NONCE_BYTES).hex()
            exchange.scram = ScramExchange(sent, nonce, SCRAM[exchange.mechanism])
            entries = guard.tokens_of(exchange.scram.name) or ()
            return None, exchange.scram.challenge(entries, guard.salt_secret())
        entry, said = exchange.scram.finish(sent)
        credential = Credential(entry.identity, entry.digest)
        guard.check(credential)  # It may have been taken back meanwhile.
        return credential, said

    async def _proved(self, guard: Guard, request: Request, token: str) -> Credential:
        """Return what a token proves.

        Raises:
            RefusedCredentialError: nothing.
            AccessUndecidedError: nobody can be asked now; the connection ends, and the client
                tries again.
        """
        shown = (("authorization", f"Bearer {token}"),)
        source = request.connection.address.rpartition(":")[0]
        _, credential = await guard.prove(shown, "", source)
        assert credential is not None, "a token is shown"
        return credential


def _text(sent: bytes) -> str:
    """Return the text that a client sends.

    Raises:
        RefusedCredentialError: it is none.
    """
    try:
        return sent.decode()
    except UnicodeDecodeError:
        raise RefusedCredentialError("what the client sends is no text") from None


def _answer(
    request: Request, code: int, message: str | None, said: bytes = b"", lifetime_ms: int = 0
) -> Any:
    return SaslAuthenticateResponse(
        version=request.version,
        error_code=code,
        error_message=message,
        auth_bytes=said,
        session_lifetime_ms=lifetime_ms,
    )
