"""`millrace transaction`: transactional ids, and transactions that readers wait for."""

from typing import TYPE_CHECKING, Any

import click

from millrace.cli.arguments.partition_names import parse
from millrace.cli.arguments.read_start import show_time
from millrace.cli.cluster import completed, connect_admin
from millrace.cli.command import Group, bootstrap_option, output_option
from millrace.cli.console.confirmation import confirm
from millrace.cli.console.failures import ExitCode, Failure, did_you_mean
from millrace.cli.console.output import document_of, print_json, print_result, print_table, put, say
from millrace.core.topics import parse_topic_name
from millrace.core.words import count, duration

if TYPE_CHECKING:
    from millrace.client import HangingTransaction, SyncAdmin, TransactionDescription


_STATES = (
    "empty",
    "ongoing",
    "prepare_commit",
    "prepare_abort",
    "complete_commit",
    "complete_abort",
)

_complete_id = completed(
    lambda admin: [found.transactional_id for found in admin.list_transactions()]
)


@click.group(
    "transaction",
    cls=Group,
    examples="""
    millrace transaction list --state ongoing
    millrace transaction describe billing        # its partitions, and what it waits for
    millrace transaction abort billing
    millrace transaction hanging                 # what holds readers of committed records up
    """,
)
def command() -> None:
    """Show transactional ids and their transactions, and end those that hold readers up.

    Readers of committed records wait for the oldest open transaction of a partition. Its
    coordinator ends it by its time-out.
    """


@command.command(
    "list",
    examples="""
    millrace transaction list
    millrace transaction list --state ongoing --state prepare_commit
    millrace transaction list --producer-id 4711 --output json
    """,
)
@click.option(
    "--state",
    "states",
    type=click.Choice(_STATES),
    multiple=True,
    help="Only those in this state; may be repeated.",
)
@click.option("--producer-id", type=click.IntRange(0), help="Only the one of this producer.")
@bootstrap_option
@output_option
def list_(states: tuple[str, ...], producer_id: int | None, bootstrap: str, output: str) -> None:
    """List transactional ids.

    OPEN: how long the transaction has been open, or decided and not written everywhere. The states:
    `empty`: no transaction yet; `ongoing`; `prepare_commit` and `prepare_abort`: decided;
    `complete_commit` and `complete_abort`: the last one is over.
    """
    with connect_admin(bootstrap) as admin:
        found: Any = states
        listings = admin.list_transactions(found, producer_id=producer_id)
    if not listings and output == "table":
        say("no transactional id, in these states" if states else "no transactional id yet")
        return
    rows: list[list[object]] = [
        [
            listing.transactional_id,
            listing.state,
            None if listing.is_shared else listing.producer_id,
            None if listing.is_shared else listing.producer_epoch,
            _time(listing.open_ms),
        ]
        for listing in listings
    ]
    columns = ["TRANSACTIONAL ID", "STATE", "PRODUCER", "EPOCH", "OPEN"]
    print_result(output, [document_of(listing) for listing in listings], columns, rows)


@command.command(
    "describe",
    examples="""
    millrace transaction describe billing
    millrace transaction describe billing --output json
    """,
)
@click.argument("transactional_id", metavar="ID", shell_complete=_complete_id)
@bootstrap_option
@output_option
def describe(transactional_id: str, bootstrap: str, output: str) -> None:
    """Show the transaction of ID: its partitions and groups, and what it waits for.

    PENDING: the transaction is decided, and the partition or group does not have the decision yet;
    PROBLEM says why. Topics and groups that you may not describe are hidden.
    """
    with connect_admin(bootstrap) as admin:
        found = _found(admin, transactional_id)
    if output == "json":
        print_json(document_of(found))
        return
    put(f"{found.transactional_id}: {found.state}, {_owner(found)}")
    if found.open_ms:
        put(f"  open for {duration(found.open_ms)}")
    if found.last_end is not None:
        put(f"  the last one that was decided: {found.last_end}")
    if not found.parts:
        return
    put()
    rows: list[list[object]] = [
        [
            "group" if part.partition is None else "topic",
            part.name or ("(hidden)" if part.is_hidden else "(deleted)"),
            part.partition,
            "yes" if part.is_owed else None,
            part.problem or None,
        ]
        for part in found.parts
    ]
    print_table(["KIND", "NAME", "PARTITION", "PENDING", "PROBLEM"], rows)


def _owner(found: "TransactionDescription") -> str:
    if not found.is_shared:
        return (
            f"producer {found.producer_id} epoch {found.producer_epoch}, time-out "
            f"{duration(found.timeout_ms)}"
        )
    version = found.version
    done = "no version"
    if version is not None:
        origin = ", ".join(text for text in (version.query_id, version.checkpoint) if text)
        done = f"version {version.number}" + (f" ({origin})" if origin else "")
    return (
        f"transaction {found.number} of run {found.run_id}, "
        f"{count(len(found.participants), 'participant')}, {done}"
    )


def _found(admin: "SyncAdmin", transactional_id: str) -> "TransactionDescription":
    found = admin.describe_transaction(transactional_id)
    if found is None:
        names = [listing.transactional_id for listing in admin.list_transactions()]
        raise Failure(
            f"nothing is known of the transactional id {transactional_id!r}",
            did_you_mean(
                transactional_id, names, "`millrace transaction list` shows what there is"
            ),
            exit_code=ExitCode.NOT_FOUND,
        )
    return found


@command.command(
    "abort",
    writes=True,
    examples="""
    millrace transaction abort billing
    millrace transaction abort billing --yes
    """,
)
@click.argument("transactional_id", metavar="ID", shell_complete=_complete_id)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@bootstrap_option
@output_option
def abort(transactional_id: str, yes: bool, bootstrap: str, output: str) -> None:
    """Abort the open transaction of ID. Its producer is told, and may begin another one."""
    with connect_admin(bootstrap) as admin:
        found = _found(admin, transactional_id)
        if found.state != "ongoing":
            raise Failure(f"no transaction of {transactional_id} is open: it is {found.state}")
        if not yes:
            confirm(
                f"Abort the transaction of {transactional_id}, open for {duration(found.open_ms)}, "
                f"with {count(len(found.parts), 'partition or group', 'partitions and groups')}?",
                "aborting a transaction",
                "aborted",
            )
        admin.abort_transaction(transactional_id)
    if output == "json":
        print_json({"aborted": transactional_id})
    say(f"aborted the transaction of {transactional_id}")


@command.command(
    "forget-version",
    writes=True,
    examples="""
    millrace transaction forget-version etl@orders
    millrace transaction forget-version etl@orders --yes
    """,
)
@click.argument("transactional_id", metavar="ID", shell_complete=_complete_id)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@bootstrap_option
@output_option
def forget_version(transactional_id: str, yes: bool, bootstrap: str, output: str) -> None:
    """Forget the last version of an application, which writes with many processes.

    After that another query, or one with a new checkpoint, may go on under the ID. A version that
    was committed before may then be written again.
    """
    with connect_admin(bootstrap) as admin:
        found = _found(admin, transactional_id)
        if found.version is None:
            raise Failure(f"{transactional_id} has no version")
        if not yes:
            confirm(
                f"Forget that {transactional_id} has committed version {found.version.number}?",
                "forgetting a version",
                "forgotten",
            )
        admin.forget_version(transactional_id)
    if output == "json":
        print_json({"forgotten": transactional_id})
    say(f"forgot version {found.version.number} of {transactional_id}")


@command.command(
    "hanging",
    writes=True,
    examples="""
    millrace transaction hanging
    millrace transaction hanging orders payments --output json
    millrace transaction hanging orders --abort
    millrace transaction hanging orders:3 --abort --yes
    """,
)
@click.argument("topics", nargs=-1, metavar="[TOPIC[:PARTITION]]...")
@click.option("--abort", "aborts", is_flag=True, help="End them: their records do not count.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@bootstrap_option
@output_option
def hanging(topics: tuple[str, ...], aborts: bool, yes: bool, bootstrap: str, output: str) -> None:
    """Find transactions that are open in partitions, and known to no coordinator.

    Readers of committed records wait for them for ever. There should be none; --abort ends them in
    each partition. SINCE: when the first batch came there.
    """
    named = [parse(topic) for topic in topics]
    wanted = [(str(parse_topic_name(topic)), partition) for topic, partition in named]
    with connect_admin(bootstrap) as admin:
        found = [
            hanging
            for hanging in admin.find_hanging_transactions(
                sorted({topic for topic, _ in wanted}) or None
            )
            if not wanted or any(_is_in(hanging, topic, partition) for topic, partition in wanted)
        ]
        if output == "json":
            print_json([_document(hanging) for hanging in found])
        elif found:
            print_table(
                ["TOPIC", "PARTITION", "PRODUCER", "EPOCH", "OFFSET", "SINCE"], _rows(found)
            )
        else:
            say("no transaction hangs")
        if not aborts or not found:
            return
        if not yes:
            confirm(
                f"End {count(len(found), 'transaction')}, so that the records do not count?",
                "ending transactions",
                "ended",
            )
        for hanging in found:
            admin.abort_open_transaction(
                (hanging.topic, hanging.partition),
                hanging.transaction.producer_id,
                hanging.transaction.first_offset,
            )
    say(f"ended {count(len(found), 'transaction')}")


def _is_in(hanging: "HangingTransaction", topic: str, partition: int | None) -> bool:
    return hanging.topic == topic and partition in {None, hanging.partition}


def _document(hanging: "HangingTransaction") -> dict[str, Any]:
    return {
        "topic": hanging.topic,
        "partition": hanging.partition,
        **document_of(hanging.transaction),
    }


def _rows(found: "list[HangingTransaction]") -> list[list[object]]:
    return [
        [
            hanging.topic,
            hanging.partition,
            hanging.transaction.producer_id,
            hanging.transaction.producer_epoch,
            hanging.transaction.first_offset,
            show_time(hanging.transaction.began_at),
        ]
        for hanging in found
    ]


def _time(milliseconds: int) -> str | None:
    return duration(milliseconds) if milliseconds else None
