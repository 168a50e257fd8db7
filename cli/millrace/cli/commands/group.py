"""`millrace group`: consumer groups, and other readers that keep positions under a name."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from millrace.cli.arguments.partition_names import parse, say_refused
from millrace.cli.cluster import completed, connect_admin, ranges_of
from millrace.cli.command import Group, bootstrap_option, interval_option, output_option
from millrace.cli.console.confirmation import confirm
from millrace.cli.console.failures import ExitCode, Failure, did_you_mean, nearest
from millrace.cli.console.output import print_json, print_result, print_table, put, say, table_lines
from millrace.cli.console.standard_streams import wait
from millrace.cli.groups.group_lag import (
    LAG_COLUMNS,
    PartitionLag,
    lag_cells,
    lag_document,
    lags_of,
    lags_of_groups,
    total_of,
)
from millrace.cli.groups.group_reset import Reset, plan_reset, read_positions
from millrace.core.errors import GroupNotEmptyError, MillraceError
from millrace.core.topics import PartitionName
from millrace.core.words import count

if TYPE_CHECKING:
    from millrace.client import GroupDescription, MemberDescription, Position, SyncAdmin


_complete_name = completed(lambda admin: [group.name for group in admin.list_groups()])


@click.group(
    "group",
    cls=Group,
    examples="""
    millrace group list
    millrace group describe billing                  # members, positions and lag
    millrace group lag --watch                       # how far all groups are behind, live
    millrace group reset billing --to 2h --dry-run
    millrace group forget billing orders-of-last-year
    millrace group delete billing
    """,
)
def command() -> None:
    """Show and change consumer groups, Spark queries and other readers: members, positions, lag.

    The kind of a group is `consumer`: consumers joined it; `spark`: a Spark query, or another
    reader that stored where it began; `standalone`: a reader that commits on its own.
    """


@command.command("list", examples="millrace group list")
@bootstrap_option
@output_option
def list_(bootstrap: str, output: str) -> None:
    """List all groups."""
    with connect_admin(bootstrap) as admin:
        groups = admin.list_groups()
    document = [
        {"name": group.name, "kind": group.kind, "members": group.members} for group in groups
    ]
    rows = [
        [group.name, group.kind, group.members if group.kind == "consumer" else None]
        for group in groups
    ]
    print_result(output, document, ["NAME", "KIND", "MEMBERS"], rows)


@command.command(
    "describe",
    examples="""
    millrace group describe billing
    millrace group describe hourly-report --output json
    """,
)
@click.argument("name", shell_complete=_complete_name)
@bootstrap_option
@output_option
def describe(name: str, bootstrap: str, output: str) -> None:
    """Show the members of a group, and its position and lag in each partition.

    POSITION is the next record that the group reads: the committed one, or where it began; a dash:
    it has committed none, and all records count as unread. TIME is the age of the oldest unread
    records. PENDING, where there is one: a transaction that has not ended commits this position,
    and members that begin there wait for it. Another dash stands for what is not known.
    """
    with connect_admin(bootstrap) as admin:
        group = _found(admin, name)
        lags = lags_of(admin, group)
    if output == "json":
        print_json(_document(group, lags))
    else:
        _print(group, lags)
    say_refused(_errors(lags))


def _print(group: "GroupDescription", lags: Sequence[PartitionLag]) -> None:
    total = total_of(lags)
    put(", ".join(filter(None, [f"{group.name}: {group.kind}", *_facts(group)])))
    owners, pending = group.owners, group.pending
    rows = [
        [
            *(row.place),
            row.position,
            *_pending_cells(pending, row.place),
            None if row.lag is None else row.lag.end_offset,
            *lag_cells(row.lag),
            _short(owners[row.place]) if row.place in owners else None,
        ]
        for row in lags
    ]
    put()
    columns = ["POSITION", *(["PENDING"] if pending else []), "END", *LAG_COLUMNS, "MEMBER"]
    print_table(["TOPIC", "PARTITION", *columns], rows)
    if group.members:
        put()
        columns = ["MEMBER", "INSTANCE", "CLIENT", "ADDRESS", "ZONE", "PARTITIONS", "STATE"]
        print_table(columns, [_member_row(member) for member in group.members])
    if total.lost:
        say(f"retention has deleted {count(total.lost, 'record')} that the group has not read")


def _pending_cells(
    pending: "Mapping[PartitionName, Position]", place: PartitionName
) -> list[object]:
    """Return the cell of the column, which is there if there is any position to show."""
    if not pending:
        return []
    return [pending[place].offset if place in pending else None]


def _facts(group: "GroupDescription") -> list[str]:
    if group.kind != "consumer":
        return []
    members = count(len(group.members), "member")
    assignor = f"assignor {group.assignor}" if group.assignor else ""
    return [group.state, members, assignor, f"epoch {group.epoch}"]


def _short(member: "MemberDescription") -> str:
    return member.instance_id or member.member_id[:8]


def _member_row(member: "MemberDescription") -> list[object]:
    return [
        _short(member),
        member.instance_id or None,
        member.client_id,
        member.address,
        member.zone or None,
        len(member.assigned),
        _state(member),
    ]


def _state(member: "MemberDescription") -> str:
    if member.is_away:
        return "away"
    if member.revoking:
        return f"gives up {len(member.revoking)}"
    awaited = len(set(member.target) - set(member.assigned))
    if awaited:
        return f"waits for {awaited}"
    if member.is_behind:
        return "takes its assignment"
    return "reads" if member.assigned else "idle"


def _document(group: "GroupDescription", lags: Sequence[PartitionLag]) -> dict[str, Any]:
    owners, total = group.owners, total_of(lags)
    return {
        "name": group.name,
        "kind": group.kind,
        "state": group.state if group.kind == "consumer" else None,
        "epoch": group.epoch,
        "assignor": group.assignor or None,
        **lag_document(total, total.lost),
        "partitions": [
            {
                **_place_document(row.place),
                "kind": "committed" if row.place in group.committed else "initial",
                "position": row.position,
                "pending": group.pending[row.place].offset if row.place in group.pending else None,
                "end": None if row.lag is None else row.lag.end_offset,
                **lag_document(row.lag, row.lost),
                "member_id": owners[row.place].member_id if row.place in owners else None,
                "leader_epoch": _stored(group, row.place, "leader_epoch"),
                "metadata": _stored(group, row.place, "metadata"),
            }
            for row in lags
        ],
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id or None,
                "client_id": member.client_id,
                "address": member.address,
                "zone": member.zone or None,
                "topics": list(member.topics),
                "pattern": member.pattern or None,
                "state": _state(member),
                "partitions": [_place_document(place) for place in member.assigned],
            }
            for member in group.members
        ],
    }


def _stored(group: "GroupDescription", place: PartitionName, what: str) -> Any:
    position = group.committed.get(place, group.initial.get(place))
    return None if position is None else getattr(position, what)


def _place_document(place: PartitionName) -> dict[str, Any]:
    return {"topic": place[0], "partition": place[1]}


def _errors(lags: Iterable[PartitionLag]) -> dict[PartitionName, MillraceError]:
    return {row.place: row.found for row in lags if isinstance(row.found, MillraceError)}


@command.command(
    "lag",
    examples="""
    millrace group lag
    millrace group lag billing hourly-report --output json
    millrace group lag --watch --interval 5
    """,
)
@click.argument("names", nargs=-1, shell_complete=_complete_name)
@click.option("--watch", "-w", is_flag=True, help="Show it again and again, until Ctrl-C.")
@interval_option("Time between two looks of --watch.")
@bootstrap_option
@output_option
def lag(names: tuple[str, ...], watch: bool, interval: float, bootstrap: str, output: str) -> None:
    """Show how far groups are behind; all of them, if none is named.

    RECORDS and BYTES are sums over the partitions, TIME is the age of the oldest unread record.
    Where a group has committed nothing, all records count as unread. A dash stands for a lag that
    is not known in all partitions; UNKNOWN says in how many it is not.
    """
    with connect_admin(bootstrap) as admin:
        if not watch:
            document, rows = _lags(admin, names)
            print_result(output, document, _LAG_TABLE, rows)
            return
        if output == "json":
            while True:
                print_json(_lags(admin, names)[0], indent=None)
                wait(interval)
        _watch(admin, names, interval)


_LAG_TABLE = ["NAME", "KIND", "MEMBERS", "PARTITIONS", "UNKNOWN", *LAG_COLUMNS]


def _lags(
    admin: "SyncAdmin", names: Sequence[str]
) -> tuple[list[dict[str, Any]], list[list[object]]]:
    """Return the lag of each group, for a program and for a person."""
    document, rows = [], []
    if names:
        found = lags_of_groups(admin, names, lambda name: _found(admin, name))
    else:
        found = lags_of_groups(admin, [group.name for group in admin.list_groups()])
    for group, total in found:
        members = len(group.members) if group.kind == "consumer" else None
        document.append(
            {
                "name": group.name,
                "kind": group.kind,
                "members": members,
                "partitions": total.partitions,
                "unknown": total.unknown,
                **lag_document(total, total.lost),
            }
        )
        rows.append(
            [group.name, group.kind, members, total.partitions, total.unknown, *lag_cells(total)]
        )
    return document, rows


def _watch(admin: "SyncAdmin", names: Sequence[str], interval: float) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        raise Failure("--watch needs a terminal", "add --output json for a line every time")
    with Live(console=console, auto_refresh=False) as live:
        while True:
            _, rows = _lags(admin, names)
            lines = table_lines(_LAG_TABLE, rows, console.width)
            room = max(1, console.height - 2)
            hidden = len(lines) - room
            lines = lines[:room] + ([f"... {hidden:,} more"] if hidden > 0 else [])
            live.update(Text("\n".join(lines), no_wrap=True), refresh=True)
            wait(interval)


@command.command(
    "reset",
    writes=True,
    examples="""
    millrace group reset billing --to beginning --dry-run
    millrace group reset billing --to 2013-01-31T10:00Z --topic orders
    millrace group reset billing --shift -100 --topic orders:3 --yes
    millrace group reset billing --file positions.json
    """,
)
@click.argument("name", shell_complete=_complete_name)
@click.option(
    "--to",
    metavar="POSITION",
    help="'beginning', 'end', 'current', an offset (1200), the last records (-10), a time "
    "(2013-01-31T10:00Z), or how long ago (2h).",
)
@click.option("--shift", type=int, metavar="N", help="So many records forward, or back (-100).")
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Positions from a file, as --dry-run --output json prints them.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:PARTITION]",
    help="Only there; may be repeated.  [default: all that the group has read]",
)
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@bootstrap_option
@output_option
def reset(
    *,
    name: str,
    to: str | None,
    shift: int | None,
    file: Path | None,
    topics: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    bootstrap: str,
    output: str,
) -> None:
    """Change where the group NAME reads on. Stop its members first.

    An offset that a partition does not have becomes the nearest one that it has. `current` commits
    again what is committed, for example before retention forgets it.
    """
    if sum(option is not None for option in (to, shift, file)) != 1:
        raise click.UsageError("name one of --to, --shift and --file")
    if file is not None and topics:
        raise click.UsageError("the file names the partitions: leave --topic out")
    with connect_admin(bootstrap) as admin:
        group = admin.describe_group(name)
        if group is not None and group.kind == "spark":
            raise Failure(
                f"{name} is a Spark query: it reads on where its checkpoint says",
                "stop it, remove its checkpoint, and forget it with `millrace group delete`",
            )
        if group is not None and group.members:
            raise Failure(
                f"the group {name} has {count(len(group.members), 'member')}, which would go on "
                "where they are",
                "stop them first",
            )
        offsets = None if file is None else read_positions(file.read_bytes(), str(file))
        named = list(offsets) if offsets is not None else _named(group, topics)
        plan = plan_reset(admin, group, _ranges(admin, named), offsets=offsets, to=to, shift=shift)
        if not plan:
            raise Failure(
                f"{name} has no positions to change",
                "name topics with --topic",
                exit_code=ExitCode.NOT_FOUND,
            )
        _print_plan(plan, output)
        if dry_run:
            say("nothing was changed: this was a dry run")
            return
        if not yes:
            confirm(f"Change the positions of {name}?", "changing positions")
        admin.commit_positions(name, {change.place: change.position for change in plan})
    say(f"changed {count(len(plan), 'position')} of {name}")


def _named(group: "GroupDescription | None", topics: Sequence[str]) -> list[tuple[str, int | None]]:
    """Return what the user named, else all topics that the group has read; None: all partitions."""
    if topics:
        return [parse(topic) for topic in topics]
    return [] if group is None else [(topic, None) for topic, _ in group.positions]


def _ranges(
    admin: "SyncAdmin", named: Iterable[tuple[str, int | None]]
) -> dict[PartitionName, tuple[int, int]]:
    """Return log start offset and end offset of partitions, in order."""
    by_topic: dict[str, set[int | None]] = {}
    for topic, partition in named:
        by_topic.setdefault(topic, set()).add(partition)
    ranges = {}
    for topic, numbers in sorted(by_topic.items()):
        partitions = (
            [] if None in numbers else sorted(number for number in numbers if number is not None)
        )
        for partition, found in ranges_of(admin, topic, partitions).items():
            ranges[topic, partition] = found
    return ranges


def _print_plan(plan: Sequence[Reset], output: str) -> None:
    document = [
        {
            **_place_document(change.place),
            "before": change.before,
            "position": change.position.offset,
        }
        for change in plan
    ]
    rows = [[*change.place, change.before, change.position.offset] for change in plan]
    print_result(output, document, ["TOPIC", "PARTITION", "BEFORE", "AFTER"], rows)


@command.command(
    "forget",
    writes=True,
    examples="""
    millrace group forget billing orders-of-last-year
    millrace group forget billing clicks views --yes
    millrace group forget billing clicks --dry-run
    """,
)
@click.argument("name", shell_complete=_complete_name)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--dry-run", is_flag=True, help="Show what would be forgotten, and forget nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@bootstrap_option
@output_option
def forget(
    *, name: str, topics: tuple[str, ...], dry_run: bool, yes: bool, bootstrap: str, output: str
) -> None:
    """Forget the positions of the group NAME in topics that it reads no more.

    Its lag there counts no more. A topic to which a member subscribes is not forgotten. A group
    that reads the topic again begins there by its settings.
    """
    with connect_admin(bootstrap) as admin:
        group = _found(admin, name)
        kept = [place for place in group.positions if place[0] in topics]
        for topic in topics:
            if all(known != topic for known, _ in kept):
                match = nearest(topic, sorted({known for known, _ in group.positions}))
                raise Failure(
                    f"{name} has no position in {topic}",
                    f"did you mean {match}?" if match else "`millrace group describe` shows them",
                    exit_code=ExitCode.NOT_FOUND,
                )
        what = f"{count(len(kept), 'position')} of {name} in {', '.join(topics)}"
        if dry_run:
            say(f"would forget {what}")
            return
        if not yes:
            confirm(f"Forget {what}?", f"forgetting {what}", "forgotten")
        admin.forget_topics(name, topics)
        say(f"forgot {what}")
    if output == "json":
        print_json({"name": name, "forgotten": [_place_document(place) for place in kept]})


@command.command(
    "delete",
    writes=True,
    examples="""
    millrace group delete billing
    millrace group delete old-report older-report --yes
    millrace group delete billing --dry-run
    """,
)
@click.argument("names", nargs=-1, required=True, shell_complete=_complete_name)
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and delete nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@bootstrap_option
@output_option
def delete(names: tuple[str, ...], dry_run: bool, yes: bool, bootstrap: str, output: str) -> None:
    """Forget groups with all their positions. A reader of that name begins again, by its settings.

    A group with members is not deleted: stop them first.
    """
    with connect_admin(bootstrap) as admin:
        groups = [_found(admin, name) for name in names]  # All names before the first deletion.
        for group in groups:
            if group.members:
                raise Failure(
                    f"the group {group.name} has {count(len(group.members), 'member')}",
                    "stop them first",
                    code_name=GroupNotEmptyError.name(),
                )
        positions = sum(len(group.positions) for group in groups)
        what = f"{', '.join(names)} with {count(positions, 'position')}"
        if dry_run:
            say(f"would delete {what}")
            return
        if not yes:
            confirm(f"Delete {what}?", f"deleting {what}", "deleted")
        for name in names:
            admin.delete_group(name)
            say(f"deleted {name}")
    if output == "json":
        print_json({"deleted": list(names)})


def _found(admin: "SyncAdmin", name: str) -> "GroupDescription":
    group = admin.describe_group(name)
    if group is None:
        names = [group.name for group in admin.list_groups()]
        raise Failure(
            f"there is no group {name!r}",
            did_you_mean(name, names, "`millrace group list` shows what there is"),
            exit_code=ExitCode.NOT_FOUND,
        )
    return group
