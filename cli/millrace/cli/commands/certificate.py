"""`millrace certificate`: an authority in a folder, and certificates for brokers and clients."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from millrace.cli.command import Group, output_option
from millrace.cli.console.failures import ExitCode, Failure
from millrace.cli.console.output import print_json, say
from millrace.cli.files import certificate_files
from millrace.cli.files.certificate_files import AUTHORITY, AUTHORITY_DAYS, CERTIFICATE_DAYS
from millrace.core.broker_names import BrokerName

if TYPE_CHECKING:
    from millrace.runtime.certificates import Issued, Names


@click.group(
    "certificate",
    cls=Group,
    examples="""
    millrace certificate authority pki
    millrace certificate broker pki broker-0 --host broker-0.example.org --host 10.0.0.5
    millrace certificate client pki billing
    """,
)
def command() -> None:
    """Make certificates for TLS: an authority, and what it signs for brokers and clients.

    They are PEM files in a folder. Keys are readable by their owner alone, and nothing that is
    there is overwritten. docs/security.md has the rest.
    """


_folder_argument = click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
_name_argument = click.argument("name")


def _days_option(days: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        "--days",
        type=click.FloatRange(min=0, min_open=True, max=36_500),
        default=days,
        show_default=True,
        help="How long it counts.",
    )


@command.command("authority", examples="millrace certificate authority pki")
@_folder_argument
@click.option("--name", default="millrace", show_default=True, help="Its name, for people.")
@_days_option(AUTHORITY_DAYS)
@output_option
def authority(folder: Path, name: str, days: float, output: str) -> None:
    """Make an authority in FOLDER: ca.crt, which others trust, and ca.key, which signs.

    Keep ca.key where no broker and no client runs.
    """
    from millrace.runtime.certificates import new_authority

    _check_absent(folder, AUTHORITY)
    _store(folder, AUTHORITY, new_authority(name, days=days), output)


@command.command(
    "broker",
    examples="""
    millrace certificate broker pki broker-0 --host broker-0.example.org --host 10.0.0.5
    """,
)
@_folder_argument
@_name_argument
@click.option(
    "--host",
    "hosts",
    multiple=True,
    required=True,
    metavar="NAME",
    help="A name or an address that others connect to; may be given several times.",
)
@click.option("--cluster", default="millrace", show_default=True, help="Of the broker.")
@click.option("--namespace", default="default", show_default=True, help="Of the cluster.")
@click.option("--trust-domain", default="millrace", show_default=True, help="Of the SPIFFE id.")
@_days_option(CERTIFICATE_DAYS)
@output_option
def broker(
    folder: Path,
    name: str,
    *,
    hosts: tuple[str, ...],
    cluster: str,
    namespace: str,
    trust_domain: str,
    days: float,
    output: str,
) -> None:
    """Make the certificate of the broker NAME, signed by the authority in FOLDER.

    NAME is the broker's `node.name`: by it brokers know each other. Whatever brokers and clients
    connect to has to be given with --host.
    """
    from millrace.runtime.certificates import Names

    try:
        uri = BrokerName(trust_domain, namespace, cluster, name).uri
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    _sign(folder, name, Names(common=name, hosts=hosts, uri=uri), days, output)


@command.command("client", examples="millrace certificate client pki billing")
@_folder_argument
@_name_argument
@_days_option(CERTIFICATE_DAYS)
@output_option
def client(folder: Path, name: str, days: float, output: str) -> None:
    """Make the certificate of the client NAME, signed by the authority in FOLDER.

    NAME is its principal at brokers that ask for certificates.
    """
    from millrace.runtime.certificates import Names

    _sign(folder, name, Names(common=name), days, output)


def _sign(folder: Path, name: str, names: "Names", days: float, output: str) -> None:
    from millrace.runtime.certificates import issue

    if name == AUTHORITY or "/" in name or name.startswith("."):
        raise click.BadParameter(f"{name!r} cannot be the name of a file", param_hint="NAME")
    _check_absent(folder, name)
    try:
        authority = certificate_files.load(folder, AUTHORITY)
    except OSError as error:
        raise Failure(
            f"{error.filename}: {error.strerror}",
            f"make an authority first: `millrace certificate authority {folder}`",
            exit_code=ExitCode.NOT_FOUND,
        ) from error
    _store(folder, name, issue(authority, names, days=days), output)


def _check_absent(folder: Path, name: str) -> None:
    for path in certificate_files.paths(folder, name):
        if path.exists():
            raise Failure(
                f"{path} is there already, and is not overwritten",
                "remove it, or use another folder",
            )


def _store(folder: Path, name: str, made: "Issued", output: str) -> None:
    certificate_files.store(folder, name, made)
    certificate, key = certificate_files.paths(folder, name)
    if output == "json":
        print_json({"certificate": str(certificate), "key": str(key)})
    say(f"the certificate is {certificate}, its key {key}")
