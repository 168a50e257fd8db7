"""Connections of Kafka's protocol that log in by SASL, step by step."""

import base64
import contextlib
import hashlib
import hmac
from typing import Any

from kafka.protocol.admin import CreateTopicsRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.fakes.certificate_files import CertificateFiles
from tests.integration.guarded import token_of
from tests.integration.kafka.by_hand import Hand
from tests.integration.kafka.ends import KAFKA

from millrace.broker.kafka.requests import ApiKey

SETTINGS: dict[str, object] = {**KAFKA, "listeners.clients_kafka.namespace": "team"}
"""Of a guarded broker whose clients connect in plain text."""


def settings_with_tls(certificates: CertificateFiles, name: str = "broker") -> dict[str, object]:
    """Return the settings of one whose clients connect by TLS, with a new certificate."""
    made = certificates.make(name, "localhost", "127.0.0.1")
    return {
        **SETTINGS,
        "listeners.clients.tls_certificate_file": made.certificate,
        "listeners.clients.tls_key_file": made.key,
    }


class Connection(Hand):
    """A connection of somebody, or of nobody yet."""

    def send_bytes(self, data: bytes) -> None:
        """Send bytes; a connection that has ended takes them, too."""
        with contextlib.suppress(OSError):
            super().send_bytes(data)

    def shake(self, mechanism: str, version: int = 1) -> Any:
        """Choose a mechanism."""
        return self.ask(ApiKey.SASL_HANDSHAKE, version, SaslHandshakeRequest(mechanism=mechanism))

    def step(self, sent: bytes, version: int = 2) -> Any:
        """Take a step of the mechanism."""
        message = SaslAuthenticateRequest(auth_bytes=sent)
        return self.ask(ApiKey.SASL_AUTHENTICATE, version, message)

    def log_in(self, name: str, token: str = "", mechanism: str = "PLAIN", version: int = 2) -> Any:
        """Log in; return the last answer."""
        assert self.shake(mechanism).error_code == 0
        token = token or token_of(name)
        if mechanism == "PLAIN":
            return self.step(f"\0{name}\0{token}".encode(), version)
        if mechanism == "OAUTHBEARER":
            return self.step(f"n,,\1auth=Bearer {token}\1\1".encode(), version)
        challenge = self.step(f"n,,n={name},r=abc".encode(), version)
        if challenge is None or challenge.error_code:
            return challenge
        return self.step(proof(token, challenge.auth_bytes, name, mechanism), version)

    def topics(self) -> list[str] | None:
        """Return the topics that it sees; None: the connection has ended."""
        found = self.ask(ApiKey.METADATA, 12, MetadataRequest(topics=None))
        return None if found is None else [topic.name for topic in found.topics]

    def create(self, *names: str) -> list[int]:
        """Create topics; return the numbers of the errors."""
        kind = CreateTopicsRequest.CreatableTopic
        topics = [
            kind(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
            for name in names
        ]
        found = self.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=topics))
        return [topic.error_code for topic in found.topics]


def proof(token: str, challenge: bytes, name: str, mechanism: str = "SCRAM-SHA-256") -> bytes:
    """Return the end of a log-in by SCRAM."""
    used = "sha" + mechanism.rpartition("-")[2]
    said = dict(part.split("=", 1) for part in challenge.decode().split(","))
    salt, iterations = base64.b64decode(said["s"]), int(said["i"])
    salted = hashlib.pbkdf2_hmac(used, token.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", used)
    unproved = f"c=biws,r={said['r']}"
    signed = f"n={name},r=abc,{challenge.decode()},{unproved}".encode()
    signature = hmac.digest(hashlib.new(used, client_key).digest(), signed, used)
    xored = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{unproved},p={base64.b64encode(xored).decode()}".encode()
