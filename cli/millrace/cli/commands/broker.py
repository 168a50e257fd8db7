"""`millrace broker`: one broker with a configuration of its own."""

import os

import click

from millrace.cli.command import Command, output_option
from millrace.cli.console import parent_process
from millrace.cli.console.output import print_json, say
from millrace.cli.console.stop_signals import stop_signals
from millrace.cli.local.announcement import announce
from millrace.cli.local.insecure import INSECURE, insecure_option


@click.command(
    "broker",
    cls=Command,
    examples="""
    millrace broker --config broker.toml
    MILLRACE_BROKER__LISTENERS__CLIENTS__PORT=7192 millrace broker --config broker.toml
    """,
)
@click.option(
    "--config",
    "path",
    type=click.Path(exists=True, dir_okay=False),
    required=True,
    help="TOML file; docs/configuration.md lists every setting.",
)
@insecure_option
@click.option("--check", is_flag=True, help="Only check the configuration, start nothing.")
@click.option(
    "--stop-with-stdin",
    is_flag=True,
    help="Stop as with SIGTERM when standard input ends: so a broker does not outlive the process "
    "that started it and holds the other end of the pipe. To that one it says as JSON that it is "
    "ready.",
)
@output_option
def command(path: str, insecure: bool, check: bool, stop_with_stdin: bool, output: str) -> None:
    """Run a broker by its configuration file.

    Variables MILLRACE_BROKER__SECTION__NAME override the file. An unknown setting is refused with
    the nearest known name, and all problems are reported at once. SIGTERM and Ctrl-C stop the
    broker gracefully.
    """
    from millrace.broker import config

    settings = config.load(path, os.environ | INSECURE if insecure else os.environ)
    if check:
        if output == "json":
            print_json({"config": path, "correct": True})
        say(f"{path}: correct")
        return
    if stop_with_stdin:
        parent_process.stop_when_it_ends()
    from millrace.broker import process

    form = "json" if stop_with_stdin else output
    on_ready = announce(form, data=", ".join(settings.log_dirs), teach=False)
    raise SystemExit(process.run(settings, on_ready, stop_signals()))
