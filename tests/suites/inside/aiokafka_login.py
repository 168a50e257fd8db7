"""aiokafka logs in, writes, and reads in a group: what it read is its last line.

It is called with the brokers, a topic, a mechanism, a name, a token, and the file of the authority
of the broker's certificate; without a file it comes in plain text.
"""

import asyncio
import json
import sys
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.helpers import create_ssl_context

VALUES = [b"one", b"two", b"three"]
WAIT_S = 40


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """Gives one token."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


async def main() -> None:
    """Write, and read."""
    bootstrap, topic, mechanism, name, token, ca = sys.argv[1:]
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SASL_SSL" if ca else "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
    }
    if ca:
        settings["ssl_context"] = create_ssl_context(cafile=ca)
    if mechanism == "OAUTHBEARER":
        settings["sasl_oauth_token_provider"] = Tokens(token)
    else:
        settings |= {"sasl_plain_username": name, "sasl_plain_password": token}
    async with asyncio.timeout(WAIT_S):
        async with AIOKafkaProducer(**settings) as producer:
            for value in VALUES:
                await producer.send_and_wait(topic, value)
        group = f"{topic}-aiokafka"
        consumer = AIOKafkaConsumer(topic, group_id=group, auto_offset_reset="earliest", **settings)
        async with consumer:
            found = [(await consumer.getone()).value.decode() for _ in VALUES]
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
