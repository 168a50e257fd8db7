"""`millrace profile`: names for clusters."""

import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import click

from millrace.cli import profiles
from millrace.cli.command import Group, complete_profile, literal_bootstrap_option, output_option
from millrace.cli.console.output import print_json, print_result, rows_of, say
from millrace.cli.credentials import absolute


@click.group(
    "profile",
    cls=Group,
    examples="""
    millrace profile set staging --bootstrap broker-0.staging:7092
    millrace profile set staging --tls-ca-file staging.crt --token-file staging.token
    millrace profile use staging                 # from now on
    millrace topic list --profile production     # once
    """,
)
def command() -> None:
    """Name clusters, and choose the one that commands are about.

    Profiles are in $XDG_CONFIG_HOME/millrace/config.toml, or ~/.config/millrace/config.toml. A
    command takes the first of these that is there: --bootstrap or --profile, MILLRACE_BOOTSTRAP,
    MILLRACE_PROFILE, the profile of `millrace profile use`, 127.0.0.1:7092.

    A profile also has the TLS files and the token for its cluster. With it no variable counts, such
    as MILLRACE_TOKEN_FILE: what is for one cluster is not sent to another one. Options go before.
    """


_name_argument = click.argument("name", shell_complete=complete_profile)


@command.command("list", examples="millrace profile list\nmillrace profile list --output json")
@output_option
def list_(output: str) -> None:
    """List all profiles."""
    known = profiles.load()
    document = [
        {
            "name": name,
            "bootstrap": profile.bootstrap,
            **{file: path or None for file, path in profile.credentials._asdict().items()},
            "current": name == known.current,
        }
        for name, profile in sorted(known.by_name.items())
    ]
    if not document and output == "table":
        say("no profiles yet: make one with `millrace profile set NAME --bootstrap HOST:PORT`")
        return
    columns = ["name", "bootstrap", "tls_ca_file", "token_file", "current"]
    rows = rows_of(document, columns)
    names = [column.upper().replace("_", " ") for column in columns]
    print_result(output, document, names, rows)


def _file_option(name: str, help: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        f"--{name}",
        metavar="FILE",
        callback=lambda _, __, value: value if value is None else absolute(value, Path.cwd()),
        help=f"{help}; an empty name: none any more.",
    )


@command.command(
    "set",
    examples="""
    millrace profile set staging --bootstrap broker-0.staging:7092,broker-1.staging:7092
    millrace profile set staging --tls-ca-file staging.crt --token-file staging.token
    """,
)
@_name_argument
@literal_bootstrap_option
@_file_option("tls-ca-file", "Speak TLS, and trust the authorities in this PEM file, or `system`")
@_file_option("tls-certificate-file", "Certificate to show to brokers that ask for one")
@_file_option("tls-key-file", "Its key")
@_file_option("token-file", "File with the token that tells brokers who calls")
@output_option
def set_(name: str, bootstrap: str | None, output: str, **files: str | None) -> None:
    """Make the profile NAME, or change it: what is not given stays."""
    try:
        profiles.check_name(name)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="NAME") from error
    known = profiles.load()
    before = known.by_name.get(name)
    given = {key: value for key, value in files.items() if value is not None}
    if bootstrap is not None:
        given["bootstrap"] = bootstrap
    elif before is None:
        raise click.UsageError(f"{name} is new: say where its brokers are, with --bootstrap")
    profile = profiles.Profile(**given) if before is None else replace(before, **given)
    known.by_name[name] = profile
    known.store()
    if output == "json":
        shown = {key: value or None for key, value in asdict(profile).items()}
        print_json({"name": name, **shown, "file": str(known.path)})
    say(f"{name} is in {known.path}")


@command.command("use", examples="millrace profile use staging\nmillrace profile use --none")
@click.argument("name", required=False, shell_complete=complete_profile)
@click.option("--none", "no_profile", is_flag=True, help="Use none from now on.")
@output_option
def use(name: str | None, no_profile: bool, output: str) -> None:
    """Make NAME the profile of all commands that do not name another one."""
    if (name is None) is not no_profile:
        raise click.UsageError("name a profile, or say --none")
    known = profiles.load()
    if name is not None:
        known.find(name)
    known.current = name
    known.store()
    if output == "json":
        print_json({"current": name})
    say(f"commands are about {name}" if name else "commands are about no profile")
    for variable in ("MILLRACE_BOOTSTRAP", "MILLRACE_PROFILE"):
        if os.environ.get(variable):
            say(f"but {variable} is set, and goes before it")


@command.command("delete", examples="millrace profile delete staging")
@_name_argument
@output_option
def delete(name: str, output: str) -> None:
    """Delete the profile NAME; the cluster is not touched."""
    known = profiles.load()
    known.find(name)
    del known.by_name[name]
    if known.current == name:
        known.current = None
    known.store()
    if output == "json":
        print_json({"deleted": name})
    say(f"deleted the profile {name}")
