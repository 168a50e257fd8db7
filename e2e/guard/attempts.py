"""What brokers answer to callers: a program for a pod, `python -c SOURCE WHAT`.

It is asked by a line of JSON on standard input, and answers by one:

    rights       [[TOKEN, [[VERB, TOPIC], ...]], ...]
                 for each attempt `yes`, or the name of the error
    tokens       {CLIENT_ID: TOKEN, ...}
                 for each `ok`, or the status and the text that the caller is given
    handshakes   {"host": NAME, "ports": [...], "shown": {NAME: [CERTIFICATE, KEY] or []}}
                 for each port and certificate `open`, or how it was refused
    served       {"hosts": [...], "port": PORT}
                 for each the certificate that it shows, as PEM
    outage       {"known": TOKEN, "new": TOKEN, "topic": TOPIC, "seconds": S}
                 how often each of the two got what, after a line that says `ready`

`MILLRACE_BOOTSTRAP` and `MILLRACE_TLS_CA_FILE` say where the brokers are, and whom to trust.
"""

import json
import os
import socket
import ssl
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import grpc

from millrace.client import SyncAdmin, SyncConsumer, SyncProducer
from millrace.core.errors import MillraceError
from millrace.proto.v1 import common_pb2

_SECONDS = 30
_UNDECIDED_SECONDS_MAX = 90
_HELLO = "/millrace.proto.v1.Cluster/Hello"
_ALERT = 21
"""First byte of an alert of TLS."""


class Caller:
    """A caller with a token, as the client's library has it."""

    def __init__(self, token: str, closing: ExitStack) -> None:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory()))
        file = folder / "token"
        file.write_text(token)
        self._settings: dict[str, Any] = {"token_file": str(file)}
        self._admin = closing.enter_context(SyncAdmin(_bootstrap(), **self._settings))
        self._producer = closing.enter_context(SyncProducer(_bootstrap(), **self._settings))

    def attempt(self, verb: str, topic: str) -> str:
        """Do what a verb is about, and as little as possible; return `yes` or the error's name."""
        try:
            match verb:
                case "describe":
                    self._admin.describe_topic(topic)
                case "create":
                    self._admin.create_topic(topic, partitions=1, validate_only=True)
                case "alter":
                    change = {"retention.ms": "86400000"}
                    self._admin.alter_topic(topic, set_config=change, validate_only=True)
                case "delete":  # Records before the first one: none.
                    (outcome,) = self._admin.delete_records({(topic, 0): 0}).values()
                    if isinstance(outcome, MillraceError):
                        raise outcome
                case "produce":
                    self._producer.send(topic, b"an attempt").result(_SECONDS)
                case "consume":
                    with self.consumer(topic, "beginning") as consumer:
                        return _read(consumer)
                case _:
                    return "no such verb"
        except MillraceError as error:
            if (verb, error.name()) == ("create", "TOPIC_ALREADY_EXISTS"):
                return "yes"
            return error.name()
        return "yes"

    def consumer(self, topic: str, start: Literal["beginning", "end"]) -> SyncConsumer:
        """Return a reader of a topic."""
        made = SyncConsumer(_bootstrap(), **self._settings)
        try:
            made.assign([topic], start=start)
        except MillraceError:
            made.close()
            raise
        return made


def _read(consumer: SyncConsumer) -> str:
    return "yes" if consumer.poll(_SECONDS * 1000) else "nothing to read"


def rights(question: list[Any]) -> list[list[str]]:
    """Return what each caller may do."""
    answers = []
    for token, attempts in question:
        with ExitStack() as closing:
            caller = Caller(token, closing)
            answers.append([caller.attempt(verb, topic) for verb, topic in attempts])
    return answers


def tokens(question: dict[str, str]) -> dict[str, str]:
    """Return what callers get that send any token, as the client's library does not."""
    return {client_id: _decided(token, client_id) for client_id, token in question.items()}


def _decided(token: str, client_id: str) -> str:
    """Return what a token gets, at the latest when brokers may ask for keys again, every 30 s."""
    ends = time.monotonic() + _UNDECIDED_SECONDS_MAX
    while (said := _hello(token, client_id)).startswith("UNAVAILABLE") and time.monotonic() < ends:
        time.sleep(2)
    return said


def _hello(token: str, client_id: str, address: str = "") -> str:
    """Return what a token gets.

    Args:
        token: to be sent; empty: none.
        client_id: to be sent.
        address: of the brokers, without a name to be asked for.
    """
    host, _, port = _bootstrap().rpartition(":")
    where = f"{address}:{port}" if address else _bootstrap()
    options = [("grpc.ssl_target_name_override", host)]
    ca = Path(os.environ["MILLRACE_TLS_CA_FILE"]).read_bytes()
    proof = (("authorization", f"Bearer {token}"),) if token else ()
    metadata: tuple[tuple[str, str | bytes], ...] = (("millrace-client-id", client_id), *proof)
    with grpc.secure_channel(where, grpc.ssl_channel_credentials(ca), options) as channel:
        call = channel.unary_unary(
            _HELLO,
            request_serializer=common_pb2.HelloRequest.SerializeToString,
            response_deserializer=common_pb2.HelloResponse.FromString,
        )
        try:
            call(common_pb2.HelloRequest(), metadata=metadata, timeout=_SECONDS)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
    return "ok"


def handshakes(question: dict[str, Any]) -> dict[str, str]:
    """Return how far somebody gets who shows some certificate, or speaks plain text."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for port in question["ports"]:
            where = (question["host"], port)
            found[f"{port} plain text"] = _plain(where)
            for name, pair in question["shown"].items():
                context = ssl.create_default_context(cafile=os.environ["MILLRACE_TLS_CA_FILE"])
                context.set_alpn_protocols(["h2"])
                if pair:
                    certificate, key = (Path(folder, f"{name}.{end}") for end in ("crt", "key"))
                    certificate.write_text(pair[0])
                    key.write_text(pair[1])
                    context.load_cert_chain(certificate, key)
                found[f"{port} {name}"] = _encrypted(where, context)
    return found


def _plain(where: tuple[str, int]) -> str:
    with socket.create_connection(where, 10) as connection:
        connection.settimeout(10)
        try:
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(64))
            said = connection.recv(100)
        except TimeoutError:
            return "open"
        except OSError as error:
            return f"refused: {error.strerror}"
    return "refused: closed" if not said or said[0] == _ALERT else "open"


def _encrypted(where: tuple[str, int], context: ssl.SSLContext) -> str:
    try:
        with (
            socket.create_connection(where, 10) as connection,
            context.wrap_socket(connection, server_hostname=where[0]) as encrypted,
        ):
            encrypted.settimeout(5)
            # In TLS 1.3 a client hears only now what its certificate was worth.
            said = encrypted.recv(100)
    except TimeoutError:
        return "open"
    except OSError as error:
        return f"refused: {error.strerror or error}"
    return "open" if said else "refused: closed"


def served(question: dict[str, Any]) -> dict[str, str]:
    """Return the certificates that are shown to clients who trust the cluster's authorities."""
    found = {}
    for host in question["hosts"]:
        context = ssl.create_default_context(cafile=os.environ["MILLRACE_TLS_CA_FILE"])
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection((host, question["port"]), 10) as connection,
            context.wrap_socket(connection, server_hostname=host) as encrypted,
        ):
            shown = encrypted.getpeercert(binary_form=True)
        assert shown is not None
        found[host] = ssl.DER_cert_to_PEM_cert(shown)
    return found


def outage(question: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Go on for some seconds with what is known and what is new; count what each gets."""
    found: dict[str, Counter[str]] = {"known": Counter(), "new": Counter()}
    topic = question["topic"]
    # DNS may be without an API server, too.
    address = socket.gethostbyname(_bootstrap().rpartition(":")[0])
    with ExitStack() as closing:
        caller = Caller(question["known"], closing)
        reader = closing.enter_context(caller.consumer(topic, "end"))

        def go_on() -> Iterator[str]:
            yield caller.attempt("describe", topic)
            yield caller.attempt("produce", topic)
            try:
                yield _read(reader)
            except MillraceError as error:
                yield error.name()

        assert set(go_on()) == {"yes"}
        _say("ready")
        ends = time.monotonic() + question["seconds"]
        while time.monotonic() < ends:
            found["known"].update(go_on())
            if time.monotonic() > ends - question["seconds"] / 2:
                found["new"][_hello(question["new"], "new-in-an-outage", address)] += 1
            time.sleep(1)
    return {name: dict(counts) for name, counts in found.items()}


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _bootstrap() -> str:
    return os.environ["MILLRACE_BOOTSTRAP"]


if __name__ == "__main__":
    WHAT: dict[str, Callable[[Any], Any]] = {
        "rights": rights,
        "tokens": tokens,
        "handshakes": handshakes,
        "served": served,
        "outage": outage,
    }
    _say(json.dumps(WHAT[sys.argv[1]](json.loads(sys.stdin.readline()))))
