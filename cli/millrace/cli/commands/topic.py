"""`millrace topic`: topics, their partitions and their settings."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from millrace.cli.arguments.partition_names import partitions_option, refused_documents, say_refused
from millrace.cli.arguments.read_start import FORMS, Position, position_value, show_time
from millrace.cli.cluster import connect_admin, topic_argument
from millrace.cli.command import Group, bootstrap_option, output_option
from millrace.cli.console.confirmation import confirm
from millrace.cli.console.failures import ExitCode, Failure, did_you_mean
from millrace.cli.console.output import print_json, print_result, put, say
from millrace.cli.explanations import exit_code_of
from millrace.cli.topics.description import Found, document, next_steps, print_description
from millrace.cli.topics.topic_selection import matching, selected, topics_argument
from millrace.cli.topics.trash import UNTIL_GONE
from millrace.cli.topics.trimming import find_cuts
from millrace.core.errors import MillraceError, UnknownTopicOrPartitionError
from millrace.core.words import count

if TYPE_CHECKING:
    from millrace.client import TopicDescription
    from millrace.core.ids import TopicId


@click.group(
    "topic",
    cls=Group,
    examples="""
    millrace topic create flights --partitions 4
    millrace topic list
    millrace topic alter flights --set retention.ms=86400000
    """,
)
def command() -> None:
    """Create, list, describe, alter, delete and undelete topics.

    A topic is `namespace/name`; `default/` may be left out.
    """


def _settings_value(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    settings = {}
    for value in values:
        name, equals, settings[name] = value.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{value!r}: write NAME=VALUE, such as retention.ms=86400000")
    return settings


def _complete_setting(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    from millrace.core.metadata.topic_config import SETTINGS

    end = "=" if parameter.name == "settings" else ""
    return [name + end for name in SETTINGS if name.startswith(incomplete)]


def _topic_id_value(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> "TopicId | None":
    from millrace.core.ids import TOPIC_ID_BYTES, TopicId

    if value is None:
        return None
    try:
        topic_id = bytes.fromhex(value)
    except ValueError:
        topic_id = b""
    if len(topic_id) != TOPIC_ID_BYTES:
        raise click.BadParameter(
            f"{value!r} is no id of a topic, which has {2 * TOPIC_ID_BYTES} digits from 0 to f"
        )
    return TopicId(topic_id)


_set_option = click.option(
    "--set",
    "settings",
    callback=_settings_value,
    metavar="NAME=VALUE",
    multiple=True,
    shell_complete=_complete_setting,
    help="A setting, such as retention.ms=86400000; may be repeated.",
)
_validate_option = click.option(
    "--validate-only", is_flag=True, help="Check everything, change nothing."
)


@command.command(
    "create",
    writes=True,
    examples="""
    millrace topic create greetings
    millrace topic create flights --partitions 4 --set retention.ms=-1
    millrace topic create metrics/cpu metrics/disk --set durability=replicated
    """,
)
@topic_argument("topics", nargs=-1, required=True, complete=False)
@click.option(
    "--partitions",
    type=click.IntRange(1),
    help="How many partitions each gets.  [default: the cluster's]",
)
@click.option(
    "--replication-factor",
    type=click.IntRange(1),
    help="How many brokers hold each partition.  [default: the cluster's]",
)
@_set_option
@_validate_option
@bootstrap_option
@output_option
def create(
    *,
    topics: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    settings: dict[str, str],
    validate_only: bool,
    bootstrap: str,
    output: str,
) -> None:
    """Create TOPICS, all with the same settings.

    Of several ones none is created unless all can be. With --output json, several are a list.
    """
    names = list(dict.fromkeys(topics))
    with connect_admin(bootstrap) as admin:

        def create_one(name: str, *, validate_only: bool) -> "TopicDescription":
            return admin.create_topic(
                name,
                partitions=partitions,
                replication_factor=replication_factor,
                config=settings,
                validate_only=validate_only,
            )

        if validate_only or len(names) > 1:
            checked = [create_one(name, validate_only=True) for name in names]
        if validate_only:
            _print_changes("would create", checked, output)
        else:
            _print_changes(
                "created", (create_one(name, validate_only=False) for name in names), output
            )


@command.command(
    "list",
    examples="""
    millrace topic list
    millrace topic list --regex 'metrics/.*' --output json
    millrace topic list --deleted
    """,
)
@topics_argument(required=False)
@click.option("--internal", is_flag=True, help="Also the topics of the cluster itself.")
@click.option("--deleted", is_flag=True, help="Deleted topics that can be brought back.")
@bootstrap_option
@output_option
def list_(
    *,
    topics: tuple[str, ...],
    is_regex: bool,
    internal: bool,
    deleted: bool,
    bootstrap: str,
    output: str,
) -> None:
    """List all topics, or TOPICS.

    With --deleted, list deleted topics, the latest deletion last. Until GONE AT
    `millrace topic undelete` brings each of them back.
    """
    if deleted:
        _list_deleted(topics, is_regex=is_regex, bootstrap=bootstrap, output=output)
        return
    with connect_admin(bootstrap) as admin:
        wanted = selected(admin, topics, is_regex=is_regex, internal=internal) if topics else None
        described = admin.describe_topics(wanted)
    shown = [described[name] for name in sorted(described)]
    shown = [topic for topic in shown if internal or wanted or not topic.is_internal]
    if not shown and output == "table":
        say("no topics yet: make one with `millrace topic create NAME`")
        return
    rows = [[topic.name, len(topic.partitions), topic.replication_factor] for topic in shown]
    document = [
        dict(zip(("name", "partitions", "replication_factor"), row, strict=True)) for row in rows
    ]
    print_result(output, document, ["TOPIC", "PARTITIONS", "REPLICATION FACTOR"], rows)


def _list_deleted(topics: Sequence[str], *, is_regex: bool, bootstrap: str, output: str) -> None:
    with connect_admin(bootstrap) as admin:
        found = admin.list_deleted_topics()
        if topics:
            known = [topic.name for topic in found]
            names = matching(topics, known) if is_regex else selected(admin, topics, is_regex=False)
            found = [topic for topic in found if topic.name in names]
    if not found and output == "table":
        say("no deleted topic can be brought back")
        return
    document = [{**asdict(topic), "topic_id": topic.topic_id.hex()} for topic in found]
    rows = [
        [*names_and_counts, show_time(deleted_at_ms), show_time(gone_at_ms)]
        for *names_and_counts, deleted_at_ms, gone_at_ms in map(dict.values, document)
    ]
    columns = ["TOPIC", "ID", "PARTITIONS", "REPLICATION FACTOR", "DELETED AT", "GONE AT"]
    print_result(output, document, columns, rows)


@command.command(
    "describe",
    examples="""
    millrace topic describe flights
    millrace topic describe flights --output json | jq .config
    millrace topic describe --regex 'metrics/.*' --output json | jq '.[].name'
    """,
)
@topics_argument()
@bootstrap_option
@output_option
def describe(topics: tuple[str, ...], is_regex: bool, bootstrap: str, output: str) -> None:
    """Show partitions of TOPICS, and their settings with where each value comes from.

    IN SYNC have everything that was acknowledged; so have ELIGIBLE ones, which may lead when no
    in-sync one is left. OFFLINE: on a broker that is down, or with a damaged or lost log;
    an offline leader does not lead. LAG: how many records each follower is behind its leader, and
    for how long. Of a compacted topic a second table shows each replica: up to which offset it is
    compacted, and which part of what may be compacted is not. Of a tiered topic a table shows how
    much of each replica lies on an SSD and on an HDD, and why nothing moves. Replicas that lie on
    another media than the topic asks for are named below. With --output json, several topics are
    a list.
    """
    with connect_admin(bootstrap) as admin:
        found = [
            Found(
                admin.describe_topic(topic),
                admin.describe_logs(topic),
                admin.describe_damage(topic),
            )
            for topic in selected(admin, topics, is_regex=is_regex)
        ]
    if output == "json":
        documents = [description.document() for description in found]
        print_json(documents if is_regex or len(topics) > 1 else documents[0])
        return
    for number, description in enumerate(found):
        if number:
            put()
        print_description(description)


@command.command(
    "alter",
    writes=True,
    examples="""
    millrace topic alter flights --set retention.ms=86400000 --set retention.bytes=-1
    millrace topic alter flights --unset retention.ms             # back to the default
    millrace topic alter flights --partitions 8 --validate-only
    """,
)
@topic_argument()
@_set_option
@click.option(
    "--unset",
    metavar="NAME",
    multiple=True,
    shell_complete=_complete_setting,
    help="Back to the default; may be repeated.",
)
@click.option("--partitions", type=click.IntRange(1), help="The new number; it can only grow.")
@_validate_option
@bootstrap_option
@output_option
def alter(
    *,
    topic: str,
    settings: dict[str, str],
    unset: tuple[str, ...],
    partitions: int | None,
    validate_only: bool,
    bootstrap: str,
    output: str,
) -> None:
    """Change settings of TOPIC, or the number of its partitions.

    With more partitions, keys go to other partitions than before: the order of a key's records is
    then only kept among the old ones and among the new ones.
    """
    if not settings and not unset and partitions is None:
        raise click.UsageError("nothing to change: use --set, --unset or --partitions")
    with connect_admin(bootstrap) as admin:
        altered = admin.alter_topic(
            topic,
            set_config=settings,
            unset_config=unset,
            partitions=partitions,
            validate_only=validate_only,
        )
    _print_changes("would alter" if validate_only else "altered", [altered], output)


@command.command(
    "delete",
    writes=True,
    examples="""
    millrace topic delete greetings
    millrace topic delete old-flights older-flights --yes
    millrace topic delete --regex 'trial-.*'                   # names them, and asks
    """,
)
@topics_argument()
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@bootstrap_option
@output_option
def delete(topics: tuple[str, ...], is_regex: bool, yes: bool, bootstrap: str, output: str) -> None:
    """Delete TOPICS with all their records.

    `millrace topic undelete` brings them back for cluster.deleted_topic_retention_ms, a day by
    default. Their files stay on the brokers' disks until then; `millrace topic purge` frees the
    space at once.

    A regular expression never matches the topics of the cluster itself. A topic whose setting
    deletion.protection is true is refused, and then none is deleted.
    """
    with connect_admin(bootstrap) as admin:
        known = admin.list_topics(internal=True)
        names = selected(admin, topics, is_regex=is_regex)
        for name in names:  # Check all names before the first deletion.
            if name not in known:
                raise Failure(
                    f"there is no topic {name}",
                    did_you_mean(name, known, "`millrace topic list` shows what there is"),
                    code_name=UnknownTopicOrPartitionError.name(),
                    exit_code=ExitCode.NOT_FOUND,
                )
        if not yes:
            listed = ", ".join(names)
            records = "all their records" if len(names) > 1 else "all its records"
            confirm(f"Delete {listed} with {records}?", f"deleting {listed}", "deleted")
        for name in names:  # One that is protected, for example, ends it here.
            admin.delete_topic(name, validate_only=True)
        for name in names:
            admin.delete_topic(name)
            say(f"deleted {name}")
    if output == "json":
        print_json({"deleted": names})
    say(f"what was deleted {UNTIL_GONE}")


_id_option = click.option(
    "--id",
    "topic_id",
    callback=_topic_id_value,
    metavar="ID",
    help="Which one, if several deleted topics have the name: see `millrace topic list --deleted`.",
)


@command.command(
    "undelete",
    writes=True,
    examples="""
    millrace topic list --deleted
    millrace topic undelete orders
    millrace topic undelete orders --id 5e47b91fd37252ef8b5a143ba27a27bf
    """,
)
@topic_argument(complete=False)
@_id_option
@bootstrap_option
@output_option
def undelete(*, topic: str, topic_id: "TopicId | None", bootstrap: str, output: str) -> None:
    """Bring a deleted TOPIC back, with its records, settings and positions of groups.

    It is the same topic, with the same id: readers go on where they were. This is possible for
    cluster.deleted_topic_retention_ms after the deletion, a day by default, and while no other
    topic has the name. Records that are older by then than the topic's retention allows go as
    usual.
    """
    with connect_admin(bootstrap) as admin, _saying_what_is_deleted():
        back = admin.undelete_topic(topic, topic_id=topic_id)
    _print_changes("brought back", [back], output)
    for line in next_steps(back, is_damaged=False):
        say(line)


@command.command(
    "purge",
    writes=True,
    examples="""
    millrace topic purge orders --yes
    millrace topic purge orders --id 5e47b91fd37252ef8b5a143ba27a27bf
    """,
)
@topic_argument(complete=False)
@_id_option
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@bootstrap_option
@output_option
def purge(
    *, topic: str, topic_id: "TopicId | None", yes: bool, bootstrap: str, output: str
) -> None:
    """Let a deleted TOPIC be gone for good, to have its space. There is no way back.

    Brokers delete its files with the next look at their retention
    (storage.retention_check_interval_ms), or storage.trash_delay_ms after the deletion of the
    topic, if that is longer than cluster.deleted_topic_retention_ms.
    """
    with connect_admin(bootstrap) as admin, _saying_what_is_deleted():
        if not yes:
            confirm(f"Give up the deleted {topic} for good?", f"purging {topic}", "purged")
        admin.purge_topic(topic, topic_id=topic_id)
    if output == "json":
        print_json({"purged": topic})
    say(f"purged {topic}")


@command.command(
    "trim",
    writes=True,
    examples="""
    millrace topic trim flights --before 30d       # what is older than 30 days
    millrace topic trim flights --before -1000     # all but the last 1000 of each partition
    millrace topic trim flights --before 1200 --partition 0 --yes
    millrace topic trim flights --before end --validate-only
    """,
)
@topic_argument()
@click.option(
    "--before",
    callback=position_value,
    metavar="POSITION",
    required=True,
    help=f"Records before it go: {FORMS}.",
)
@partitions_option
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@_validate_option
@bootstrap_option
@output_option
def trim(
    *,
    topic: str,
    before: Position,
    partitions: tuple[int, ...],
    yes: bool,
    validate_only: bool,
    bootstrap: str,
    output: str,
) -> None:
    """Delete the oldest records of TOPIC, up to an offset or a time. There is no way back.

    When it is done the records are gone on all replicas that may lead. With a time, a partition
    keeps everything from its first record of that time on. Space is free when whole segments are
    gone. Readers with an earlier position go on where their own settings say.
    """
    with connect_admin(bootstrap) as admin:
        cuts = find_cuts(admin, topic, sorted(set(partitions)), before)
        records = count(sum(cut.records for cut in cuts.values()), "record")
        among = count(sum(cut.records > 0 for cut in cuts.values()), "partition")
        wanted = {
            (topic, partition): cut.before_offset for partition, cut in cuts.items() if cut.records
        }
        if wanted and not (yes or validate_only):
            confirm(f"Delete {records} of {among} of {topic}?", "deleting records", "deleted")
        outcomes = {} if validate_only or not wanted else admin.delete_records(wanted)
    rows = []
    for partition, cut in cuts.items():
        outcome = outcomes.get((topic, partition), cut.before_offset)
        left = cut.start_offset if isinstance(outcome, MillraceError) else outcome
        rows.append([partition, left, left - cut.start_offset])
    names = ("partition", "earliest", "deleted")
    refused = {
        at: outcome for at, outcome in outcomes.items() if isinstance(outcome, MillraceError)
    }
    document = {
        "partitions": [dict(zip(names, row, strict=True)) for row in rows],
        "refused": refused_documents(refused),
    }
    print_result(output, document, [name.upper() for name in names], rows)
    say_refused(refused)
    if refused:
        raise Failure(
            f"not deleted, or not for certain, in {count(len(refused), 'partition')}",
            "it is safe to repeat the command"
            if any(error.retriable for error in refused.values())
            else f"see which offsets there are with `millrace offsets {topic}`",
            exit_code=exit_code_of(refused.values()),
        )
    say(f"{'would delete' if validate_only else 'deleted'} {records} of {among}")


@contextmanager
def _saying_what_is_deleted() -> Iterator[None]:
    """Turn the error that no such topic was deleted into a failure with the right hint."""
    try:
        yield
    except UnknownTopicOrPartitionError as error:
        raise Failure(
            error.message,
            "`millrace topic list --deleted` shows what can be brought back",
            code_name=error.name(),
            exit_code=ExitCode.NOT_FOUND,
        ) from error


def _print_changes(verb: str, topics: "Iterable[TopicDescription]", output: str) -> None:
    """Print topics as they are changed, one after another."""
    documents = []
    for topic in topics:
        documents.append(document(topic))
        if output != "json":
            say(
                f"{verb} {topic.name}: {count(len(topic.partitions), 'partition')}, "
                f"replication factor {topic.replication_factor}"
            )
    if output == "json":
        print_json(documents if len(documents) > 1 else documents[0])
