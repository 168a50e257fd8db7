"""`millrace reassign`: moves replicas to other brokers, by a plan that a person can look at."""

from typing import TYPE_CHECKING, Any, BinaryIO

import click

from millrace.cli.arguments.partition_names import (
    documents,
    refused_documents,
    resolve,
    say_refused,
)
from millrace.cli.cluster import connect_admin, state_of
from millrace.cli.command import Group, bootstrap_option, output_option
from millrace.cli.console.failures import ExitCode, Failure
from millrace.cli.console.output import print_json, print_table, put, say
from millrace.cli.files.patient_input import standard_input
from millrace.cli.moves import assignment_file
from millrace.cli.moves.brokers import complete_broker, find
from millrace.cli.moves.move_progress import so_far, wait_for_all, work_through
from millrace.cli.moves.moves import Copy, partitions_of, under_way, wait_options
from millrace.cli.moves.reassignment_queue import REQUEST_PARTITIONS_MAX, ReassignmentQueue
from millrace.cli.records.inputs import STDIN
from millrace.core.topics import PartitionName
from millrace.core.words import count, listed, shown

if TYPE_CHECKING:
    from millrace.client import BrokerInfo, ClusterDescription, PartitionDescription
    from millrace.core.errors import MillraceError
    from millrace.core.ids import BrokerId


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
    metavar="BROKER,BROKER,...",
    help="The brokers, by number or name, that are to hold them.  [default: all that are not "
    "drained; but no new replicas for those that are not there, have a bad disk, or are being "
    "stopped]",
)
@click.option(
    "--remove-broker",
    "removed",
    metavar="BROKER",
    multiple=True,
    shell_complete=complete_broker,
    help="A broker that is to hold none of them; may be repeated.",
)
@click.option(
    "--replication-factor",
    type=click.IntRange(1),
    help="How many replicas each is to have.  [default: as many as it has]",
)
@click.option(
    "--replication-factor-max",
    type=click.IntRange(1),
    help="How many replicas each is to have at the most: those with more lose some.",
)
@bootstrap_option
def plan(
    *,
    partitions: tuple[str, ...],
    brokers: str | None,
    removed: tuple[str, ...],
    replication_factor: int | None,
    replication_factor_max: int | None,
    bootstrap: str,
) -> None:
    """Print, as JSON, where replicas should go: of the partitions named, or of all.

    Nothing is changed. The plan moves as little as it can: off the brokers that are not to hold
    any, or lack the topic's media, over zones, then until each broker has its share. A line for
    each partition that changes, with the brokers that are to hold it, the preferred leader first.
    """
    from millrace.client import plan_reassignment

    with connect_admin(bootstrap) as admin:
        cluster = admin.describe_cluster()
        chosen = set(resolve(admin, partitions)) if partitions else None
        # A broker that shall go must not seem to hold nothing more than what the caller may see.
        is_all_asked = bool(removed) and chosen is None
        topics = list(admin.describe_topics(none_hidden=is_all_asked).values())
    candidates, nothing_new = _candidates(
        cluster,
        None
        if brokers is None
        else [find(cluster, broker.strip()) for broker in brokers.split(",")],
        tuple(find(cluster, broker) for broker in removed),
    )
    before: dict[PartitionName, tuple[BrokerId, ...]] = {}
    under_way = []
    for place, partition in partitions_of(topics):
        if chosen is None or place in chosen:
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
    after = plan_reassignment(
        topics,
        candidates,
        partitions=before,
        nothing_new=[broker.broker_id for broker in nothing_new],
        replication_factor=replication_factor,
        replication_factor_max=replication_factor_max,
    )
    put(assignment_file.text(assignment_file.document(after, before)))
    for broker in nothing_new:
        state = state_of(broker, cluster)
        say(f"broker {broker.broker_id}: {state}: it keeps replicas, and gets no new ones")
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
) -> "tuple[list[BrokerInfo], list[BrokerInfo]]":
    """Return the brokers that should hold replicas, and those of them that get no new ones.

    A short problem, such as a restart or a slow disk, is no reason to copy everything elsewhere:
    only drained brokers give up their replicas, and those that are to be removed. A named broker
    gets new replicas even with a bad disk.

    Raises:
        Failure: a broker cannot take replicas, or none is left.
    """
    known = {int(broker.broker_id): broker for broker in cluster.brokers}
    for number in brokers or ():
        if why := _unusable(known[number], cluster):
            raise Failure(
                f"broker {number} cannot take replicas now: {why}",
                "see `millrace cluster describe`",
            )
    chosen = [
        known[number]
        for number in brokers or sorted(known)
        if number not in removed and not known[number].is_drained
    ]
    if not chosen:
        raise Failure("no broker is left to hold anything", "name some with --brokers")
    return chosen, [] if brokers else [
        broker for broker in chosen if state_of(broker, cluster) != "alive"
    ]


def _unusable(broker: "BrokerInfo", cluster: "ClusterDescription") -> str:
    """Return why a broker cannot hold replicas; empty: it can."""
    if broker.is_fenced:
        return "it is not there"
    if broker.is_drained:
        return "it is drained"
    return "it does not answer" if broker.broker_id in cluster.unreachable else ""


@command.command(
    "apply",
    writes=True,
    examples="""
    millrace reassign apply plan.json
    millrace reassign apply plan.json            # again, after Ctrl-C: it goes on where it was
    millrace reassign apply plan.json --at-once 20
    millrace reassign plan --remove-broker 2 | millrace reassign apply -
    """,
)
@click.argument("file", type=click.File("rb", lazy=True))
@click.option(
    "--at-once",
    type=click.IntRange(1),
    metavar="N",
    help="How many partitions of the plan to move at a time: fewer leave more of disks and network "
    "to clients.  [default: as many as cluster.reassigning_partitions_max allows]",
)
@wait_options(86_400)
@bootstrap_option
@output_option
def apply(
    *,
    file: BinaryIO,
    at_once: int | None,
    timeout_s: float,
    no_wait: bool,
    bootstrap: str,
    output: str,
) -> None:
    """Move replicas as the plan in FILE says; `-` for standard input.

    The command waits until all of it is done, and shows how far it is. What is more than the
    cluster moves at a time is begun as soon as others are done. When the command ends before, by
    Ctrl-C or --timeout, what has begun goes on by itself; run the same command again for the rest.
    Partitions that are where the plan wants them stay as they are.
    """
    contents = standard_input() if file.name == STDIN else file
    wanted = assignment_file.parse(contents.read(), file.name)
    waves = ReassignmentQueue(wanted, at_once)
    with connect_admin(bootstrap) as admin:
        try:
            if no_wait:
                waves.go_on(admin)
            else:
                work_through(admin, waves, timeout_s)
        except KeyboardInterrupt:
            say(f"\n{so_far(waves)}; run the same command again to go on")
            raise
    if output == "json":
        print_json(_outcome(waves))
    _report(waves, timeout_s, no_wait=no_wait)


def _outcome(waves: ReassignmentQueue) -> dict[str, Any]:
    return {
        "partitions": waves.total,
        "done": documents(waves.done),
        "under_way": documents(waves.under_way),
        "not_begun": documents(waves.waiting),
        "refused": refused_documents(waves.refused),
    }


def _report(waves: ReassignmentQueue, timeout_s: float, *, no_wait: bool) -> None:
    """Print the outcome, and fail unless all of it is done, or has begun with --no-wait."""
    say_refused(waves.refused)
    if waves.refused:
        raise Failure(
            f"{count(len(waves.refused), 'partition')} of {waves.total:,} refused; why is said "
            f"above ({so_far(waves)})",
            "correct the plan and apply it again: what is done stays as it is",
        )
    if waves.is_over:
        if waves.total:
            say(f"{count(waves.total, 'partition')} reassigned")
        else:
            say("the plan is empty: nothing to move")
    elif not no_wait:
        raise Failure(
            f"not done after {timeout_s:g} s: {so_far(waves)}",
            "what is under way goes on; run the same command again for the rest. "
            "`millrace reassign status` shows how far each is, `millrace reassign cancel` ends it",
            exit_code=ExitCode.TIMED_OUT,
        )
    elif waves.waiting:
        raise Failure(
            f"more than the cluster moves at a time: {so_far(waves)}",
            "run the same command again when these are done, or without --no-wait",
        )
    else:
        say(f"{so_far(waves)}: see `millrace reassign status`")


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
            wait_for_all(admin, timeout_s)
        topics = admin.describe_topics().values()
        moving = under_way(admin, topics, with_progress=True)
        described = dict(partitions_of(topics))
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
                for copy in copies
            ],
        }
        for place, copies in moving.items()
    ]
    if output == "json":
        print_json(document)
    elif not moving:
        say("nothing is being reassigned")
    else:
        print_table(
            ["PARTITION", "NEW REPLICA ON", "COPIED", "RECORDS", "OF", "LEAVES"],
            [
                row
                for place, copies in moving.items()
                for row in _rows(copies, described[place], place)
            ],
        )


def _rows(
    copies: list[Copy], partition: "PartitionDescription", place: PartitionName
) -> list[list[object]]:
    leaves = ", ".join(map(str, partition.removing_replicas)) or None
    if not copies:
        return [[shown(place), None, None, None, None, leaves]]
    return [
        [
            shown(place),
            copy.broker_id,
            "in sync" if copy.is_in_sync else f"{copy.share:.1%}",
            copy.copied,
            copy.total,
            leaves,
        ]
        for copy in copies
    ]


@command.command(
    "cancel",
    writes=True,
    examples="""
    millrace reassign cancel flights:0
    millrace reassign cancel                     # everything that is under way
    """,
)
@click.argument("partitions", metavar="[TOPIC[:PARTITION]]...", nargs=-1)
@bootstrap_option
@output_option
def cancel(partitions: tuple[str, ...], bootstrap: str, output: str) -> None:
    """Take back reassignments that are not done: the old replicas stay, the new ones go.

    Of the partitions named, or of all. One whose old replicas are not in sync any more is refused:
    let it end. A `reassign apply` that still runs counts what is taken back as refused.
    """
    with connect_admin(bootstrap) as admin:
        topics = admin.describe_topics().values()
        moving = under_way(admin, topics, with_progress=False)
        chosen = set(resolve(admin, partitions)) if partitions else set(moving)
        wanted = [place for place in moving if place in chosen]
        refused: dict[PartitionName, MillraceError] = {}
        for start in range(0, len(wanted), REQUEST_PARTITIONS_MAX):
            part = wanted[start : start + REQUEST_PARTITIONS_MAX]
            outcomes = admin.reassign_partitions(dict.fromkeys(part))
            refused |= {place: error for place, error in outcomes.items() if error is not None}
    if output == "json":
        done = [place for place in wanted if place not in refused]
        print_json({"cancelled": documents(done), "refused": refused_documents(refused)})
    say_refused(refused)
    if refused:
        raise Failure(
            f"{count(len(refused), 'reassignment')} of {len(wanted):,} could not be taken back; "
            "why is said above",
            "`millrace reassign status --wait` waits for them to end",
        )
    if wanted:
        say(f"{count(len(wanted), 'reassignment')} taken back")
    else:
        say("nothing of that is being reassigned")
