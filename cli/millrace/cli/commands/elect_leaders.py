"""`millrace elect-leaders`: elects preferred leaders, or any live replica."""

import click

from millrace.cli.arguments.partition_names import parse, resolve, say_refused
from millrace.cli.cluster import connect_admin
from millrace.cli.command import Command, bootstrap_option, output_option
from millrace.cli.console.confirmation import confirm
from millrace.cli.console.failures import Failure
from millrace.cli.console.output import print_json, say
from millrace.cli.explanations import exit_code_of
from millrace.core.words import count, listed


@click.command(
    "elect-leaders",
    cls=Command,
    writes=True,
    examples="""
    millrace elect-leaders                       # preferred leaders, wherever they are in sync
    millrace elect-leaders flights orders:3
    millrace elect-leaders --unclean orders:3    # may lose records
    """,
)
@click.argument("partitions", metavar="[TOPIC[:PARTITION]]...", nargs=-1)
@click.option(
    "--unclean",
    is_flag=True,
    help="Without a leader, let any live replica lead. Acknowledged records that only others "
    "have are lost; name each partition as TOPIC:PARTITION.",
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask before an unclean election.")
@bootstrap_option
@output_option
def command(
    *, partitions: tuple[str, ...], unclean: bool, yes: bool, bootstrap: str, output: str
) -> None:
    """Elect the preferred leaders of partitions: the ones named, or all.

    Leaderships return by themselves once a broker is in sync again; this does not wait. With
    --unclean: bring back partitions that no replica can lead. Records that the new leader lacks are
    lost. `millrace offsets` shows where its log ends.
    """
    if unclean:
        vague = [name for name in partitions if parse(name)[1] is None]
        if vague or not partitions:
            raise click.UsageError(
                "an unclean election may lose records: name each partition as TOPIC:PARTITION"
                + (f", not {vague[0]!r}" if vague else "")
            )
    with connect_admin(bootstrap) as admin:
        places = resolve(admin, partitions) if partitions else None
        if unclean and not yes:
            question = f"Let any replica lead {listed(places or ())}, and lose what it lacks?"
            confirm(question, "an unclean election")
        outcomes = admin.elect_leaders(places, kind="unclean" if unclean else "preferred")
    refused = {place: error for place, error in outcomes.items() if error is not None}
    if output == "json":
        print_json(
            [
                {
                    "topic": topic,
                    "partition": partition,
                    "error": None if error is None else error.name(),
                    "message": None if error is None else error.message,
                }
                for (topic, partition), error in sorted(
                    outcomes.items(), key=lambda answer: answer[0]
                )
            ]
        )
    say_refused(refused)
    if refused:
        raise Failure(
            f"{count(len(refused), 'partition')} of {len(outcomes):,} not led as wanted",
            "`millrace cluster health` shows which replicas are missing",
            exit_code=exit_code_of(refused.values()),
        )
    if outcomes:
        say(f"{count(len(outcomes), 'partition')} led as wanted")
    else:
        say("every partition is led by its preferred leader already")
