"""The output of brokers when they are ready: their addresses, and what to try next."""

import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from millrace.cli.cluster import DEFAULT_BOOTSTRAP
from millrace.cli.console.output import announce_json, announce_line

if TYPE_CHECKING:
    from millrace.broker.app import BrokerAddress
    from millrace.cli.local.local_cluster import Ready


class Login(NamedTuple):
    """What clients on this machine need beside an address; an empty name: not that.

    Attributes:
        tls_ca_file: the authority that signs for the brokers, which speak TLS.
        token_file: has the token of who may do everything.
    """

    tls_ca_file: str = ""
    token_file: str = ""

    @property
    def lessons(self) -> list[str]:
        """What to do in a terminal."""
        return [
            f"export MILLRACE_{name.upper()}={shlex.quote(path)}"
            for name, path in self._asdict().items()
            if path
        ]

    @property
    def facts(self) -> dict[str, str | None]:
        """The same for programs."""
        return {name: path or None for name, path in self._asdict().items()}


OPEN: Final = Login()
"""Clients need nothing."""


def announce(
    output: str, *, data: str, teach: bool, web_address: str = "", login: Login = OPEN
) -> "Callable[[BrokerAddress], None]":
    """Return the function to call when the broker is ready.

    Args:
        output: `json` prints one line for programs, anything else a greeting.
        data: where the data is, for the reader.
        teach: whether to suggest what to try next.
        web_address: of the web page; empty: there is none.
        login: what clients need.
    """

    def on_ready(address: "BrokerAddress") -> None:
        if output == "json":
            facts = {
                "address": address.address,
                "outside_address": address.outside_address or None,
                "drpc_address": address.drpc_address or None,
                "tls_address": address.tls_address or None,
                "kafka_address": address.kafka_address or None,
                "metrics_address": address.metrics_address or None,
                "web_address": web_address or None,
                **login.facts,
                "cluster_id": address.cluster_id,
                "broker_id": address.broker_id,
                "data": data,
                "pid": os.getpid(),
            }
            announce_json(facts)
        else:
            announce_line(
                greeting(address, data, teach=teach, web_address=web_address, login=login)
            )

    return on_ready


def greeting(
    address: "BrokerAddress",
    data: str,
    *,
    teach: bool,
    web_address: str = "",
    login: Login = OPEN,
) -> str:
    """Return the text for a person."""
    lines = [f"Millrace is up at {address.address}, its data in {data}. Ctrl-C stops it."]
    if address.outside_address:
        lines.append(f"Clients outside: {address.outside_address}")
    if address.kafka_address:
        lines.append(f"Clients of Kafka: bootstrap.servers={address.kafka_address}")
    if address.metrics_address:
        lines.append(f"Metrics: http://{address.metrics_address}/metrics")
    if web_address:
        lines.append(f"Web page: {web_address}")
    if teach:
        lines += ["", *_try([*login.lessons, *_lessons(address)])]
    return "\n".join(lines)


def _lessons(address: "BrokerAddress") -> list[str]:
    lessons = [
        "millrace topic create greetings",
        "echo hello | millrace produce greetings",
        "millrace consume greetings",
    ]
    if address.address != DEFAULT_BOOTSTRAP:
        lessons.insert(0, f"export MILLRACE_BOOTSTRAP={address.address}")
    return lessons


def cluster_greeting(
    brokers: "Sequence[Ready]", data: str, web_address: str = "", login: Login = OPEN
) -> str:
    """Return the text for a person who started several brokers."""
    lines = [f"Millrace is up, its data in {data}. Ctrl-C stops it."]
    for broker in brokers:
        lines.append(f"  {broker.name} at {broker.address}, process {broker.pid}")
        if broker.metrics_address:
            lines.append(f"    metrics: http://{broker.metrics_address}/metrics")
    kafka = [broker.kafka_address for broker in brokers if broker.kafka_address]
    if kafka:
        lines.append(f"Clients of Kafka: bootstrap.servers={','.join(kafka)}")
    if web_address:
        lines.append(f"Web page: {web_address}")
    addresses = ",".join(broker.address for broker in brokers)
    lessons = ["millrace topic create greetings", "millrace cluster describe"]
    bootstrap = f"export MILLRACE_BOOTSTRAP={addresses}"
    return "\n".join([*lines, "", *_try([bootstrap, *login.lessons, *lessons])])


def _try(lessons: Iterable[str]) -> list[str]:
    return ["Try in another terminal:", *(f"  {line}" for line in lessons)]
