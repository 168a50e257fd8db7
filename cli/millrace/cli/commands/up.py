"""`millrace up`: the embedded broker, everything in one process and one directory."""

from dataclasses import replace
from pathlib import Path

import click

from millrace.cli.announcement import announce
from millrace.cli.command import DEFAULT_BOOTSTRAP, Command, output_option
from millrace.cli.failures import Failure
from millrace.core.errors import InvalidConfigError

_PORT_DEFAULT = int(DEFAULT_BOOTSTRAP.rpartition(":")[2])
_PORT_MAX = 65_535
_SETTINGS_HINT = (
    "--port is listener.port, --metrics-port is metrics.port, --data-dir holds everything else"
)


@click.command(
    "up",
    cls=Command,
    examples="""
    millrace up                                    # data in ./millrace-data
    millrace up --data-dir /var/lib/millrace --port 7192
    millrace up --port 0 --output json             # any free port, the address as JSON
    """,
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False),
    default="millrace-data",
    show_default=True,
    help="Where everything is kept; made when it is not there.",
)
@click.option(
    "--port",
    type=click.IntRange(0, _PORT_MAX),
    default=_PORT_DEFAULT,
    show_default=True,
    help="Port for clients, on this machine only; 0: any that is free.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(-1, _PORT_MAX),
    help="Port of the metrics page; -1: none.  [default: the port after --port]",
)
@click.option("--verbose", "-v", is_flag=True, help="Log all that the broker does.")
@output_option
def command(
    *, data_dir: str, port: int, metrics_port: int | None, verbose: bool, output: str
) -> None:
    """Run a broker on this machine, with no configuration at all.

    One process, data in one directory, clients from this machine only. Every acknowledged record is
    on disk. Ctrl-C stops it gracefully; started again on the same directory, it goes on.
    """
    from millrace.broker import app, config

    if metrics_port is None:
        metrics_port = port + 1 if 0 < port < _PORT_MAX else 0
    settings = config.embedded(data_dir, port=port, metrics_port=metrics_port)
    if not verbose:
        quiet = replace(settings.logging, level=config.LogLevel.WARNING)
        settings = replace(settings, logging=quiet)
    shown = str(Path(data_dir).absolute())
    try:
        exit_code = app.run(settings, announce(output, data=shown, teach=True))
    except InvalidConfigError as error:
        raise Failure(error.message, _SETTINGS_HINT, code_name=error.name()) from error
    raise SystemExit(exit_code)
