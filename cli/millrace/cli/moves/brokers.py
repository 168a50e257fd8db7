"""Brokers as users name them on a command line: by their number, or by their name."""

from typing import TYPE_CHECKING

import click

from millrace.cli.cluster import completed
from millrace.cli.console.failures import ExitCode, Failure

if TYPE_CHECKING:
    from millrace.client import ClusterDescription
    from millrace.core.ids import BrokerId


def find(cluster: "ClusterDescription", word: str) -> "BrokerId":
    """Return the number of a broker; the word is a name if no broker has that number.

    Raises:
        Failure: there is no such broker.
    """
    for broker in cluster.brokers:
        if word == str(broker.broker_id):
            return broker.broker_id
    for broker in cluster.brokers:
        if word == broker.name:
            return broker.broker_id
    there = ", ".join(f"{broker.broker_id} ({broker.name})" for broker in cluster.brokers)
    raise Failure(
        f"there is no broker {word}",
        f"there are: {there}; see `millrace cluster describe`",
        code_name="BROKER_ID_NOT_REGISTERED",
        exit_code=ExitCode.NOT_FOUND,
    )


complete_broker = completed(
    lambda admin: [broker.name for broker in admin.describe_cluster().brokers]
)
broker_argument = click.argument("broker", shell_complete=complete_broker)
