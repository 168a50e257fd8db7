"""`millrace reassign`: moves replicas to other brokers, by a plan that a person can look at."""

from collections import Counter
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, BinaryIO

import click

from millrace.cli import assignment_file
from millrace.cli.cluster import connect_admin
from millrace.cli.command import Group, bootstrap_option, output_option
from millrace.cli.failures import ExitCode, Failure
from millrace.cli.moves import Copy, copies, partitions_of, wait_options, wait_until
from millrace.cli.output import print_json, print_table, say
from millrace.cli.places import Place, count, listed, resolve, say_refused, shown
from millrace.cli.progress import Bars

if TYPE_CHECKING:
    from millrace.client import BrokerInfo, ClusterDescription, PartitionDescription, SyncAdmin
    from millrace.core.errors import MillraceError
    from millrace.core.ids import BrokerId

_AT_ONCE = 500
"""Partitions in one request."""


@click.group(
    "reassign",
    cls=Group,
    examples="""
    millrace reassign plan > plan.json           # look at it, edit it
    millrace reassign apply plan.json
    millrace reassign status
    """,
)
def command() -> None:
    """Move replicas to other brokers: plan, look, apply.

    New replicas copy the log first; the old ones go once all new ones are in sync. So a partition
    never has fewer replicas than before, and can be written and read all the time.
    """


def _broker_ids(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> list[int] | None:
    if value is None:
        return None
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise click.BadParameter(f"{value!r}: write broker ids with commas, such as 0,1,2")
    return [int(part) for part in parts]


@command.command(
    "plan",
    examples="""
    millrace reassign plan > plan.json                       # even out all brokers and zones
    millrace reassign plan flights --brokers 0,1,3 > plan.json
    millrace reassign plan --remove-broker 2 > plan.json     # before broker 2 goes for good
    millrace reassign plan flights --replication-factor 3 > plan.json
    """,
)
@click.argument("partitions", metavar="[TOPIC[:PARTITION]]...", nargs=-1)
@click.option(
    "--brokers",
    callback=_broker_ids,
    metavar="ID,ID,...",
    help="The brokers that are to hold them.  [default: all that are alive and not drained]",
)
@click.option(
    "--remove-broker",
    "removed",
    type=click.IntRange(0),
    multiple=True,
    help="A broker that is to hold none of them; may be repeated.",
)
@click.option(
    "--replication-factor",
    type=click.IntRange(1),
    help="How many replicas each is to have.  [default: as many as it has]",
)
@bootstrap_option
def plan(
    *,
    partitions: tuple[str, ...],
    brokers: list[int] | None,
    removed: tuple[int, ...],
    replication_factor: int | None,
    bootstrap: str,
) -> None:
    """Print, as JSON, where replicas should go: of the partitions named, or of all.

    Nothing is changed. The plan moves as little as it can: off the brokers that are not to hold
    any, over zones, then until each broker has its share. A line for each partition that changes,
    with the brokers that are to hold it, the preferred leader first.
    """
    from millrace.core.metadata.placement import Candidate
    from millrace.core.metadata.reassignment_plan import planned

    with connect_admin(bootstrap) as admin:
        cluster = admin.describe_cluster()
        chosen = set(resolve(admin, partitions)) if partitions else None
        topics = list(admin.describe_topics().values())
    candidates = _candidates(cluster, brokers, removed)
    before: dict[Place, tuple[BrokerId, ...]] = {}
    other_replicas: Counter[BrokerId] = Counter()
    other_leaders: Counter[BrokerId] = Counter()
    under_way = []
    for place, partition in partitions_of(topics):
        if chosen is not None and place not in chosen:
            other_replicas.update(partition.target_replicas)
            other_leaders[partition.preferred_leader] += 1
            continue
        before[place] = partition.target_replicas
        if partition.is_reassigning:
            under_way.append(place)
    for place in chosen or ():
        if place not in before:
            raise Failure(f"there is no partition {shown(place)}", exit_code=ExitCode.NOT_FOUND)
    if under_way:
        raise Failure(
            f"{count(len(under_way), 'partition')} are being reassigned: {listed(under_way)}",
            "wait for them: `millrace reassign status --wait`, or `millrace reassign cancel`",
        )
    after = planned(
        before,
        [Candidate(each.broker_id, each.rack) for each in candidates],
        replication_factor=replication_factor,
        other_replicas=other_replicas,
        other_leaders=other_leaders,
    )
    click.echo(assignment_file.text(assignment_file.document(after, before)))
    copied = sum(len(set(replicas) - set(before[place])) for place, replicas in after.items())
    if after:
        say(
            f"{count(len(after), 'partition')} would change, {count(copied, 'replica')} be copied; "
            "`millrace reassign apply FILE` does it"
        )
    else:
        say("nothing to move: each broker has its share")


def _candidates(
    cluster: "ClusterDescription", brokers: list[int] | None, removed: tuple[int, ...]
) -> "list[BrokerInfo]":
    usable: dict[int, BrokerInfo] = {
        each.broker_id: each for each in cluster.brokers if each.state == "alive"
    }
    known = {each.broker_id for each in cluster.brokers}
    for each in [*(brokers or ()), *removed]:
        if each not in known:
            raise Failure(
                f"there is no broker {each}",
                "see `millrace cluster describe`",
                exit_code=ExitCode.NOT_FOUND,
            )
    unusable = [each for each in brokers or () if each not in usable]
    if unusable:
        raise Failure(
            f"broker {unusable[0]} cannot take replicas now",
            "it is not there, or drained: see `millrace cluster describe`",
        )
    chosen = [each for each in brokers or sorted(usable) if each not in removed]
    if not chosen:
        raise Failure("no broker is left to hold anything", "name some with --brokers")
    return [usable[each] for each in chosen]


@command.command(
    "apply",
    examples="""
    millrace reassign apply plan.json
    millrace reassign apply plan.json --no-wait && millrace reassign status --wait
    millrace reassign plan --remove-broker 2 | millrace reassign apply -
    """,
)
@click.argument("file", type=click.File("rb", lazy=True))
@wait_options(3600)
@bootstrap_option
def apply(file: BinaryIO, timeout_s: float, no_wait: bool, bootstrap: str) -> None:
    """Move replicas as the plan in FILE says; `-` for standard input.

    The command waits until all of it is done, and shows how far each new replica is. When it is
    interrupted the moves go on: `millrace reassign status --wait` waits for them again.
    """
    wanted = assignment_file.parse(file.read(), file.name)
    if not wanted:
        say("the plan is empty: nothing to move")
        return
    with connect_admin(bootstrap) as admin:
        refused = _request(admin, wanted)
        say_refused(refused)
        begun = len(wanted) - len(refused)
        if begun and no_wait:
            say(f"{count(begun, 'partition')} being reassigned: `millrace reassign status`")
        elif begun:
            _wait(admin, timeout_s, wanted.keys() - refused.keys())
            say(f"{count(begun, 'partition')} reassigned")
    if refused:
        raise Failure(
            f"{count(len(refused), 'partition')} of {len(wanted):,} refused; why is said above",
            "correct the plan and apply it again: what is done already stays as it is",
        )


def _request(
    admin: "SyncAdmin", wanted: "Mapping[Place, list[int] | None]"
) -> "dict[Place, MillraceError]":
    """Ask for reassignments; return what was refused."""
    refused: dict[Place, MillraceError] = {}
    places = list(wanted)
    for start in range(0, len(places), _AT_ONCE):
        part = {place: wanted[place] for place in places[start : start + _AT_ONCE]}
        for place, error in admin.reassign_partitions(part).items():
            if error is not None:
                refused[place] = error
    return refused


def _wait(admin: "SyncAdmin", timeout_s: float, places: Set[Place] | None = None) -> None:
    """Wait until partitions are not being reassigned any more, and show how far each is.

    Args:
        admin: a client for administration.
        timeout_s: how long.
        places: which; None: all.

    Raises:
        Failure: some still are when the time is over.
    """
    left: dict[Place, list[Copy]] = {}
    with Bars() as bars:
        total = 0
        seen: dict[str, Copy] = {}

        def look() -> bool:
            nonlocal left, total
            moving = _copies(admin)
            left = {each: moving[each] for each in moving if places is None or each in places}
            total = max(total, len(left))
            if total:
                bars.show("all", 1 - len(left) / total, f"{len(left):,} of {total:,} to go")
            now = {_name(copy): copy for each in left.values() for copy in each}
            for name, copy in now.items():
                bars.show(name, copy.share, _note(copy))
            for name in seen.keys() - now.keys():
                bars.show(name, 1.0, "done")
            seen.update(now)
            return not left

        is_done = wait_until(look, timeout_s)
    if not is_done:
        raise Failure(
            f"{count(len(left), 'partition')} still being reassigned after {timeout_s:g} s: "
            f"{listed(left)}",
            "they go on: `millrace reassign status --wait`, or `millrace reassign cancel`",
            exit_code=ExitCode.TIMED_OUT,
        )


def _name(copy: Copy) -> str:
    return f"{shown(copy.place)} to {copy.broker_id}"


def _note(copy: Copy) -> str:
    return "in sync" if copy.is_in_sync else f"{copy.copied:,} of {copy.total:,} records"


def _copies(admin: "SyncAdmin") -> dict[Place, list[Copy]]:
    topics = list(admin.describe_topics().values())
    moving = {topic.name for topic in topics if any(p.is_reassigning for p in topic.partitions)}
    logs = [log for name in sorted(moving) for log in admin.describe_logs(name)]
    return copies(topics, logs)


@command.command(
    "status",
    examples="""
    millrace reassign status
    millrace reassign status --wait --timeout 600
    """,
)
@click.option("--wait", is_flag=True, help="Wait until all are done, with a bar for each replica.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0),
    default=3600.0,
    show_default=True,
    metavar="SECONDS",
    help="How long --wait waits at the most.",
)
@bootstrap_option
@output_option
def status(wait: bool, timeout_s: float, bootstrap: str, output: str) -> None:
    """Show which partitions are being reassigned, and how far each new replica is."""
    with connect_admin(bootstrap) as admin:
        if wait:
            _wait(admin, timeout_s)
        moving = _copies(admin)
        described = dict(partitions_of(admin.describe_topics().values())) if moving else {}
    document = [
        {
            "topic": place[0],
            "partition": place[1],
            "replicas": list(described[place].target_replicas),
            "removing": list(described[place].removing_replicas),
            "adding": [
                {
                    "broker": copy.broker_id,
                    "in_sync": copy.is_in_sync,
                    "records": copy.copied,
                    "records_total": copy.total,
                }
                for copy in each
            ],
        }
        for place, each in moving.items()
        if place in described
    ]
    if output == "json":
        print_json(document)
    elif not moving:
        say("nothing is being reassigned")
    else:
        print_table(
            ["PARTITION", "NEW REPLICA ON", "COPIED", "RECORDS", "OF", "LEAVES"],
            [row for place, each in moving.items() for row in _rows(place, each, described)],
        )


def _rows(
    place: Place, each: list[Copy], described: "Mapping[Place, PartitionDescription]"
) -> list[list[object]]:
    partition = described.get(place)
    leaves = ", ".join(map(str, partition.removing_replicas)) if partition else ""
    if not each:
        return [[shown(place), None, None, None, None, leaves or None]]
    return [
        [
            shown(place),
            copy.broker_id,
            "in sync" if copy.is_in_sync else f"{copy.share:.1%}",
            copy.copied,
            copy.total,
            leaves or None,
        ]
        for copy in each
    ]


@command.command(
    "cancel",
    examples="""
    millrace reassign cancel flights:0
    millrace reassign cancel                     # everything that is under way
    """,
)
@click.argument("partitions", metavar="[TOPIC[:PARTITION]]...", nargs=-1)
@bootstrap_option
def cancel(partitions: tuple[str, ...], bootstrap: str) -> None:
    """Take back reassignments that are not done: the old replicas stay, the new ones go."""
    with connect_admin(bootstrap) as admin:
        moving = _copies(admin)
        chosen = set(resolve(admin, partitions)) if partitions else set(moving)
        wanted: dict[Place, list[int] | None] = dict.fromkeys(
            each for each in moving if each in chosen
        )
        if not wanted:
            say("nothing of that is being reassigned")
            return
        refused = _request(admin, wanted)
    say_refused(refused)
    if refused:
        raise Failure(f"{count(len(refused), 'reassignment')} could not be taken back")
    say(f"{count(len(wanted), 'reassignment')} taken back")
