"""The entry of the `millrace` command."""

import os

import click

from millrace.cli.allocator import keep_freed_memory
from millrace.cli.command import CommandModules, Group
from millrace.cli.console.failures import ExitCode
from millrace.cli.console.standard_streams import standard_streams

COMMANDS = CommandModules(
    {
        "up": "millrace.cli.commands.up",
        "broker": "millrace.cli.commands.broker",
        "topic": "millrace.cli.commands.topic",
        "produce": "millrace.cli.commands.produce",
        "consume": "millrace.cli.commands.consume",
        "copy": "millrace.cli.commands.copy",
        "offsets": "millrace.cli.commands.offsets",
        "group": "millrace.cli.commands.group",
        "transaction": "millrace.cli.commands.transaction",
        "quota": "millrace.cli.commands.quota",
        "top": "millrace.cli.commands.top",
        "web": "millrace.cli.commands.web",
        "cluster": "millrace.cli.commands.cluster",
        "reassign": "millrace.cli.commands.reassign",
        "elect-leaders": "millrace.cli.commands.elect_leaders",
        "log": "millrace.cli.commands.log",
        "perf": "millrace.cli.commands.perf",
        "operator": "millrace.cli.commands.operator",
        "profile": "millrace.cli.commands.profile",
        "token": "millrace.cli.commands.token",
        "certificate": "millrace.cli.commands.certificate",
        "completion": "millrace.cli.commands.completion",
    }
)
"""`--help` shows them in this order."""

_EXIT_CODES = "\b\nExit codes:\n" + "\n".join(f"  {code:>3}  {code.meaning}" for code in ExitCode)


@click.group(
    cls=Group,
    commands=COMMANDS,
    epilog=_EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    examples="""
    millrace up                                  # a broker on this machine, Ctrl-C stops it
    millrace topic create greetings
    echo hello | millrace produce greetings
    millrace consume greetings
    """,
)
@click.version_option(package_name="millrace", prog_name="millrace")
def cli() -> None:
    """A durable, partitioned commit log: start brokers, make topics, write and read records.

    Results go to standard output, everything else to standard error. With --output json a result is
    one JSON document, and an error is one line of JSON. Every command explains itself with --help.
    """


def main() -> None:
    """Run the command line and end the process with its exit code."""
    # gRPC's core would write to standard error by itself; real errors come as exceptions.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    keep_freed_memory()
    with standard_streams():
        cli(prog_name="millrace")
