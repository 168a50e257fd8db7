"""`millrace positions`: readers' positions on the brokers, under a name."""

import sys

import click

from millrace.cli.cluster import connect_admin, say_unknown, suggestions, try_offsets
from millrace.cli.command import Command, Group, bootstrap_option, output_option
from millrace.cli.failures import ExitCode, Failure
from millrace.cli.output import print_json, print_result, say
from millrace.core.errors import MillraceError
from millrace.core.topics import PartitionName


def _complete_name(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    return suggestions(context, lambda admin: admin.position_names(), incomplete)


@click.group(
    "positions",
    cls=Group,
    examples="""
    millrace positions list
    millrace positions show hourly-report        # how far it has read, and its lag
    millrace positions delete hourly-report
    """,
)
def command() -> None:
    """Positions that readers keep under a name, such as those of Spark queries."""


@command.command("list", cls=Command, examples="millrace positions list")
@bootstrap_option
@output_option
def list_(bootstrap: str, output: str) -> None:
    """List the names under which positions are kept."""
    with connect_admin(bootstrap) as admin:
        names = admin.position_names()
    print_result(output, names, ["NAME"], [[name] for name in names])


@command.command(
    "show",
    cls=Command,
    examples="""
    millrace positions show hourly-report
    millrace positions show hourly-report --output json
    """,
)
@click.argument("name", shell_complete=_complete_name)
@bootstrap_option
@output_option
def show(name: str, bootstrap: str, output: str) -> None:
    """Show how far a reader is: the next record that it reads, and how many there are from there.

    Where it has not committed anything yet it is where it began (`initial`).
    """
    with connect_admin(bootstrap) as admin:
        initial = admin.fetch_positions(name, kind="initial")
        committed = admin.fetch_positions(name)
        if not initial and not committed:
            raise _not_found(name)
        kept = {**initial, **committed}
        ends: dict[PartitionName, int] = {}
        unknown: dict[PartitionName, MillraceError] = {}
        for topic in sorted({place[0] for place in kept}):
            partitions = [place[1] for place in kept if place[0] == topic]
            for partition, found in try_offsets(admin, topic, "end", partitions).items():
                if isinstance(found, MillraceError):
                    unknown[topic, partition] = found
                else:
                    ends[topic, partition] = found.offset
    document = [
        {
            "topic": topic,
            "partition": partition,
            "kind": "committed" if (topic, partition) in committed else "initial",
            "position": position.offset,
            "end": ends.get((topic, partition)),
            "lag": max(0, ends[topic, partition] - position.offset)
            if (topic, partition) in ends
            else None,
            "leader_epoch": position.leader_epoch,
            "metadata": position.metadata,
        }
        for (topic, partition), position in sorted(kept.items(), key=lambda each: each[0])
    ]
    columns = ["topic", "partition", "kind", "position", "end", "lag"]
    rows = [[each[column] for column in columns] for each in document]
    print_result(output, document, [column.upper() for column in columns], rows)
    say_unknown(unknown)


@command.command(
    "delete", cls=Command, writes=True, examples="millrace positions delete hourly-report --yes"
)
@click.argument("name", shell_complete=_complete_name)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@bootstrap_option
@output_option
def delete(name: str, yes: bool, bootstrap: str, output: str) -> None:
    """Forget all positions of NAME. A reader of that name begins again, by its settings."""
    with connect_admin(bootstrap) as admin:
        if name not in admin.position_names():
            raise _not_found(name)
        if not yes:
            _confirm(name)
        admin.delete_positions(name)
    if output == "json":
        print_json({"deleted": name})
    say(f"deleted the positions of {name}")


def _confirm(name: str) -> None:
    if not sys.stdin.isatty():
        raise Failure("deleting needs a yes, and there is no terminal to ask on", "add --yes")
    if not click.confirm(f"Delete all positions of {name}?", err=True):
        raise Failure("nothing was deleted")


def _not_found(name: str) -> Failure:
    return Failure(
        f"no positions are kept under the name {name!r}",
        "list the names with `millrace positions list`",
        exit_code=ExitCode.NOT_FOUND,
    )
