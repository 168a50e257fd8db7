"""`millrace operator`: the Kubernetes operator."""

import click

from millrace.cli.command import Command
from millrace.cli.console.failures import ExitCode, Failure, importing_the_operator
from millrace.cli.console.stop_signals import stop_signals


@click.command(
    "operator",
    cls=Command,
    examples="""
    millrace operator --image registry.example.org/millrace:0.2.0
    millrace operator --check
    """,
)
@click.option(
    "--image",
    envvar="MILLRACE_OPERATOR_IMAGE",
    default="millrace",
    show_default=True,
    help="Image of the brokers, where a Cluster names none.",
)
@click.option(
    "--namespace",
    envvar="MILLRACE_OPERATOR_NAMESPACE",
    help="Where the operator keeps its Lease.  [default: the pod's, or `default`]",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    envvar="MILLRACE_OPERATOR_LOG_LEVEL",
    default="info",
    show_default=True,
    help="The least level that is logged: for people on a terminal, JSON lines elsewhere.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Only look whether the API server has the definitions, and whether an operator acts.",
)
def command(image: str, namespace: str | None, log_level: str, check: bool) -> None:
    """Keep clusters and topics as their resources in Kubernetes say.

    In a pod it uses the service account, elsewhere the current context of the kubeconfig. It needs
    what `pip install '.[operator]'` installs in the checkout. Several may run: one of them acts.
    """
    with importing_the_operator():
        from millrace.broker.telemetry.logs import configure_logging
        from millrace.core.broker_config import LoggingConfig, LogLevel
        from millrace.operator import app, installation
    config = app.config_from_environment(image, namespace)
    if not check:
        configure_logging(LoggingConfig(level=LogLevel(log_level)))
        app.run(config, stop_signals())
        return
    problem = installation.problem(config.namespace)
    if problem is not None:
        raise Failure(problem, exit_code=ExitCode.UNHEALTHY)
    click.echo("the definitions are there, and an operator acts", err=True)
