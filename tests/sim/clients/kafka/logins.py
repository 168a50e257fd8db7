"""How simulated clients of Kafka log in: by SCRAM, and over connections with TLS by their token.

kafka-python's client of SCRAM has its nonce from the operating system; here it comes from the dice.
"""

from random import Random
from typing import Any, Final, Protocol

from kafka.net.sasl.scram import ScramClient
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.sim.machines.rules_of_brokers import Login
from tests.sim.world import Violation

from millrace.broker.kafka.authentication import OAUTHBEARER, PLAIN, SCRAM
from millrace.broker.kafka.requests import ApiKey
from millrace.broker.kafka.wire.errors import Code
from millrace.core.errors import AuthenticationFailedError

_NOT_OFFERED: Final = "GSSAPI"
_ASKS_FIRST: Final = 0.1
"""How often it asks for a mechanism that no broker offers, to learn which ones there are."""


class Connection(Protocol):
    """The part of a `KafkaConnection` that a log-in needs."""

    @property
    def is_encrypted(self) -> bool: ...
    async def ask(self, key: int, version: int, message: Any, patience_s: float) -> Any: ...
    async def awaited(self, answer: Any, patience_s: float) -> Any: ...
    def send_raw(self, data: bytes) -> Any: ...


async def log_in(connection: Connection, login: Login, dice: Random, patience_s: float) -> None:
    """Log in by a mechanism that the broker offers.

    Raises:
        AuthenticationFailedError: it is refused.
        ConnectionFailedError: the broker does not answer, or ends the connection.
    """
    offered = [PLAIN, OAUTHBEARER] if connection.is_encrypted else []
    if login.has_password:
        offered += SCRAM
    if dice.random() < _ASKS_FIRST:
        asked = SaslHandshakeRequest(mechanism=_NOT_OFFERED)
        answer = await connection.ask(ApiKey.SASL_HANDSHAKE, 1, asked, patience_s)
        if answer.error_code != Code.UNSUPPORTED_SASL_MECHANISM:
            raise Violation(f"{_NOT_OFFERED} is answered with {answer}")
        if {*answer.mechanisms} != {*offered}:
            raise Violation(f"{answer.mechanisms} are offered")
    mechanism, version = dice.choice(offered), dice.choice((0, 1))
    asked = SaslHandshakeRequest(mechanism=mechanism)
    answer = await connection.ask(ApiKey.SASL_HANDSHAKE, version, asked, patience_s)
    if answer.error_code:
        raise Violation(f"{mechanism} is answered with {answer}")
    steps = _Steps(connection, dice, patience_s, is_wrapped=version > 0)
    if mechanism == PLAIN:
        await steps.take(f"\0{login.name}\0{login.token}".encode())
    elif mechanism == OAUTHBEARER:
        await steps.take(f"n,,\1auth=Bearer {login.token}\1\1".encode())
    else:
        scram = ScramClient(login.name, login.token, mechanism)
        scram.nonce = dice.randbytes(16).hex().encode()
        scram.process_server_first_message(await steps.take(scram.first_message()))
        scram.process_server_final_message(await steps.take(scram.final_message()))


class _Steps:
    """The steps of a mechanism, in requests of Kafka's, or each behind its length alone."""

    def __init__(
        self, connection: Connection, dice: Random, patience_s: float, *, is_wrapped: bool
    ) -> None:
        self._connection = connection
        self._dice = dice
        self._patience_s = patience_s
        self._is_wrapped = is_wrapped

    async def take(self, sent: bytes) -> bytes:
        """Return what the broker says to a step.

        Raises:
            AuthenticationFailedError: it refuses the client.
            ConnectionFailedError: it does not answer; also when it refuses steps without requests.
        """
        connection = self._connection
        if not self._is_wrapped:
            said: bytes = await connection.awaited(connection.send_raw(sent), self._patience_s)
            return said
        asked = SaslAuthenticateRequest(auth_bytes=sent)
        version = self._dice.choice((0, 1, 2))
        answer: Any = await connection.ask(
            ApiKey.SASL_AUTHENTICATE, version, asked, self._patience_s
        )
        if answer.error_code == Code.SASL_AUTHENTICATION_FAILED:
            raise AuthenticationFailedError(answer.error_message)
        if answer.error_code:
            raise Violation(f"a step of a log-in is answered with {answer}")
        return bytes(answer.auth_bytes)
