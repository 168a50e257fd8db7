"""`millrace profile`: names for clusters."""

import os

import click

from millrace.cli import profiles
from millrace.cli.command import Group, complete_profile, literal_bootstrap_option, output_option
from millrace.cli.console.output import print_json, print_result, say


@click.group(
    "profile",
    cls=Group,
    examples="""
    millrace profile set staging --bootstrap broker-0.staging:7092
    millrace profile use staging                 # from now on
    millrace topic list --profile production     # once
    """,
)
def command() -> None:
    """Name clusters, and choose the one that commands are about.

    Profiles are in $XDG_CONFIG_HOME/millrace/config.toml, or ~/.config/millrace/config.toml. A
    command takes the first of these that is there: --bootstrap or --profile, MILLRACE_BOOTSTRAP,
    MILLRACE_PROFILE, the profile of `millrace profile use`, 127.0.0.1:7092.
    """


_name_argument = click.argument("name", shell_complete=complete_profile)


@command.command("list", examples="millrace profile list\nmillrace profile list --output json")
@output_option
def list_(output: str) -> None:
    """List all profiles."""
    known = profiles.load()
    document = [
        {"name": name, "bootstrap": profile.bootstrap, "current": name == known.current}
        for name, profile in sorted(known.by_name.items())
    ]
    if not document and output == "table":
        say("no profiles yet: make one with `millrace profile set NAME --bootstrap HOST:PORT`")
        return
    rows = [list(profile.values()) for profile in document]
    print_result(output, document, ["NAME", "BOOTSTRAP", "CURRENT"], rows)


@command.command(
    "set",
    examples="""
    millrace profile set staging --bootstrap broker-0.staging:7092,broker-1.staging:7092
    """,
)
@_name_argument
@literal_bootstrap_option
@output_option
def set_(name: str, bootstrap: str, output: str) -> None:
    """Make the profile NAME, or change it."""
    try:
        profiles.check_name(name)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="NAME") from error
    known = profiles.load()
    known.by_name[name] = profiles.Profile(bootstrap=bootstrap)
    known.store()
    if output == "json":
        print_json({"name": name, "bootstrap": bootstrap, "file": str(known.path)})
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
