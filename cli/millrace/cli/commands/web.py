"""`millrace web`: the read-only web page of a cluster."""

import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from millrace.cli.command import Command, bootstrap_option, instead_of_profile, output_option
from millrace.cli.console import parent_process
from millrace.cli.console.failures import ExitCode, Failure, importing_the_operator
from millrace.cli.console.output import announce_json, announce_line
from millrace.cli.console.stop_signals import stop_signals
from millrace.core.addresses import PORT_MAX
from millrace.core.errors import ConnectionFailedError

if TYPE_CHECKING:
    from millrace.web.clusters import Clusters

_PORT_DEFAULT = 7098


@click.command(
    "web",
    cls=Command,
    examples="""
    millrace web                                   # open what it prints in a browser
    millrace web --profile staging --port 8080
    millrace web --port 0 --output json            # any free port, the address as JSON
    """,
)
@click.option(
    "--port",
    type=click.IntRange(0, PORT_MAX),
    default=_PORT_DEFAULT,
    show_default=True,
    help="Port of the page, on this machine only; 0: any that is free.",
)
@click.option(
    "--kubernetes",
    is_flag=True,
    is_eager=True,
    callback=instead_of_profile,
    help="Show all Clusters of the Kubernetes cluster in which this runs, in the place of "
    "--bootstrap and of any profile.",
)
@click.option(
    "--listen-fd",
    type=click.IntRange(0),
    hidden=True,
    help="Serve on this open socket, and stop when standard input ends; `millrace up` does so.",
)
@bootstrap_option
@output_option
def command(
    port: int, kubernetes: bool, listen_fd: int | None, bootstrap: str, output: str
) -> None:
    """Serve a web page that shows a cluster, until Ctrl-C.

    It shows brokers, topics, records, groups with their lag, and quotas, and changes nothing. Only
    this machine reaches it. Where brokers ask who calls, the page asks each visitor for a token,
    and shows what that may see: it has none itself. `millrace up` serves the same page by itself.
    """
    import asyncio

    from millrace.web.clusters import Clusters
    from millrace.web.listening import LOOPBACK, listening_socket

    with ExitStack() as endings:
        clusters = _on_kubernetes(endings) if kubernetes else Clusters.one(bootstrap)
        if listen_fd is not None:
            parent_process.stop_when_it_ends()
            asyncio.run(_serve(socket.socket(fileno=listen_fd), clusters))
            return
        try:
            listening = listening_socket(port)
        except OSError as error:
            raise Failure(
                f"the page cannot be served on {LOOPBACK}:{port}: {error.strerror}",
                "--port takes another port; 0: any that is free",
            ) from error
        address = f"http://{LOOPBACK}:{listening.getsockname()[1]}"
        if output == "json":
            announce_json({"web_address": address})
        else:
            announce_line(f"The page is at {address}. Ctrl-C stops it.")
        asyncio.run(_serve(listening, clusters))


async def _serve(listening: socket.socket, clusters: "Clusters") -> None:
    """Serve until a signal."""
    import asyncio

    from millrace.runtime.page_server import PageServer
    from millrace.web.site import CONNECTIONS_MAX, Site

    stopped = asyncio.Event()
    for number in stop_signals():
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    site = Site(clusters)
    server = await PageServer.serve(listening, site, CONNECTIONS_MAX)
    try:
        await stopped.wait()
    finally:
        await server.close()
        await site.close()


def _on_kubernetes(endings: ExitStack) -> "Clusters":
    with importing_the_operator():
        from millrace.operator.bootstraps import Bootstraps
    from millrace.cli.local.places import Places
    from millrace.web.clusters import Clusters

    try:
        places = Places(Bootstraps().find)
    except ConnectionFailedError as error:
        raise Failure(
            error.message,
            "run it in a pod, or set KUBECONFIG",
            code_name=error.name(),
            exit_code=ExitCode.UNREACHABLE,
        ) from error
    endings.callback(places.close)
    return Clusters(places.find)
