"""What a broker says on standard output when it is ready: its address, and what to try next."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from millrace.cli.command import DEFAULT_BOOTSTRAP
from millrace.cli.output import print_json

if TYPE_CHECKING:
    from millrace.broker.app import BrokerAddress


def announce(output: str, *, data: str, teach: bool) -> "Callable[[BrokerAddress], None]":
    """Return what to do when the broker is ready.

    Args:
        output: `json` prints one line for programs, anything else a greeting.
        data: where the data is, for the reader.
        teach: whether to say what to try next.
    """

    def on_ready(address: "BrokerAddress") -> None:
        if output == "json":
            facts = {
                "address": address.address,
                "metrics_address": address.metrics_address or None,
                "cluster_id": address.cluster_id,
                "broker_id": address.broker_id,
                "data": data,
                "pid": os.getpid(),
            }
            print_json(facts, indent=None)
        else:
            click.echo(greeting(address, data, teach=teach))

    return on_ready


def greeting(address: "BrokerAddress", data: str, *, teach: bool) -> str:
    """Return the text for a person."""
    lines = [f"Millrace is up at {address.address}, its data in {data}. Ctrl-C stops it."]
    if address.metrics_address:
        lines.append(f"Metrics: http://{address.metrics_address}/metrics")
    if teach:
        lines += ["", "Try in another terminal:", *(f"  {line}" for line in _lessons(address))]
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
