"""`millrace cluster`: brokers, problems, and taking brokers out of service or away."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from millrace.cli.advice import advice
from millrace.cli.arguments.partition_names import documents
from millrace.cli.cluster import connect_admin, state_of
from millrace.cli.command import Group, bootstrap_option, output_option
from millrace.cli.console.failures import ExitCode, Failure
from millrace.cli.console.output import (
    document_of,
    ids_text,
    print_json,
    print_table,
    put,
    rows_of,
    say,
)
from millrace.cli.console.progress import Bars
from millrace.cli.moves.brokers import broker_argument, complete_broker, find
from millrace.cli.moves.moves import (
    Handover,
    partitions_of,
    wait_options,
    wait_until,
    yet_to_return,
)
from millrace.cli.topics.damage import damage_document, print_damage
from millrace.core.errors import BrokerInUseError
from millrace.core.topics import PartitionName
from millrace.core.words import count, listed

if TYPE_CHECKING:
    from millrace.client import (
        BrokerInfo,
        ClusterDescription,
        ClusterHealth,
        ConfigValue,
        PartitionHealth,
        SyncAdmin,
        TopicDescription,
    )
    from millrace.core.ids import BrokerId


@click.group(
    "cluster",
    cls=Group,
    examples="""
    millrace cluster describe
    millrace cluster health || echo something is wrong
    millrace cluster drain 2 && echo broker 2 leads nothing any more
    millrace cluster unregister 2                # when it is gone for good
    """,
)
def command() -> None:
    """Show the brokers and problems, take brokers out of service and back, or away for good.

    \b
    To service a broker's machine:   drain, stop it, ..., start it, undrain
    To remove a broker for good:     drain, reassign plan --remove-broker, reassign apply, stop it,
                                     unregister
    """


@command.command(
    "describe",
    examples="""
    millrace cluster describe
    millrace cluster describe --output json | jq '.brokers[] | select(.state != "alive")'
    """,
)
@bootstrap_option
@output_option
def describe(bootstrap: str, output: str) -> None:
    """Show every broker: address, zone, state, and its partitions.

    MEDIA: of its working log directories.
    States: alive; fenced (down, or not caught up: it leads nothing); draining (it is being
    stopped); drained (by `millrace cluster drain`); slow disk, full disk (others lead for it where
    they can, until that is over); unreachable (it does not answer here, but is not fenced
    yet).

    Partitions with fewer replicas than a topic gets by default now are named, too: they were made
    when the cluster was smaller, or somebody wanted it so. All is well with them.

    The command asks all brokers, and shows the newest answer.
    """
    with connect_admin(bootstrap) as admin:
        cluster = admin.describe_cluster()
        topics = list(admin.describe_topics().values())
    rows = [_broker_document(broker, cluster, topics) for broker in cluster.brokers]
    if output == "json":
        print_json(
            {
                "cluster_id": cluster.cluster_id,
                "controller": cluster.controller_id,
                "controller_epoch": cluster.controller_epoch,
                "brokers": rows,
            }
        )
        return
    controller = f"broker {cluster.controller_id}" if cluster.controller_id >= 0 else "none now"
    put(
        f"cluster {cluster.cluster_id}, controller: {controller} (epoch {cluster.controller_epoch})"
    )
    print_table(
        ["BROKER", "NAME", "ADDRESS", "ZONE", "MEDIA", "STATE", "LEADS", "REPLICAS", "EPOCH"],
        rows_of(
            rows,
            [
                *("broker", "name", "address", "rack", "media"),
                *("state", "leads", "replicas", "broker_epoch"),
            ],
        ),
    )


def _broker_document(
    broker: "BrokerInfo", cluster: "ClusterDescription", topics: "list[TopicDescription]"
) -> dict[str, Any]:
    partitions = [partition for topic in topics for partition in topic.partitions]
    broker_id = broker.broker_id
    return {
        "broker": broker_id,
        "name": broker.name,
        "address": broker.address,
        "rack": broker.rack,
        "media": list(broker.media),
        "state": state_of(broker, cluster),
        "is_controller": broker_id == cluster.controller_id,
        "leads": sum(partition.leader == broker_id for partition in partitions),
        "preferred": sum(partition.preferred_leader == broker_id for partition in partitions),
        "replicas": sum(broker_id in partition.replicas for partition in partitions),
        "broker_epoch": broker.broker_epoch,
    }


@command.command(
    "health",
    examples="""
    millrace cluster health
    millrace cluster health --output json
    until millrace cluster health; do sleep 1; done        # after a restart, before the next one
    """,
)
@bootstrap_option
@output_option
def health(bootstrap: str, output: str) -> None:
    """Say whether every partition has a leader and all replicas, and what to do.

    It ends with 0 where all is well, and with 7 where it is not.

    Worst first: offline partitions can neither be written nor read; under min ISR, writes with
    acks=all are refused; badly led ones have a leader with a slow or full disk, and no other can
    lead; recovering ones have lost records in an unclean election; under-replicated ones work,
    but fewer brokers may fail than planned. Damaged replicas are fetched again from the
    leader by themselves, where there is one; the damaged files are kept, and named here.

    The command asks all brokers, and shows the newest answer. One that does not answer, and of
    which the others do not know yet that it is gone, is unreachable: then not all is well either.
    """
    with connect_admin(bootstrap) as admin:
        found = admin.describe_health()
    problems = _problems(found)
    if output == "json":
        print_json(
            {
                "healthy": found.is_healthy,
                "has_controller": found.has_controller,
                "controller_problem": found.controller_problem,
                **{
                    name: [document_of(row, ["replicas_wanted"]) for row in partitions]
                    for name, partitions in problems
                },
                "fenced_brokers": list(found.fenced_brokers),
                "unreachable_brokers": list(found.unreachable_brokers),
                "reluctant_brokers": {
                    broker.broker_id: broker.reluctance for broker in found.reluctant_brokers
                },
                "damaged": [damage_document(replica) for replica in found.damaged],
                "few_replicas": [asdict(row) for row in found.few_replicas],
            }
        )
    else:
        _print_health(found)
    if not found.is_healthy:
        raise click.exceptions.Exit(ExitCode.UNHEALTHY)


def _problems(found: "ClusterHealth") -> "list[tuple[str, tuple[PartitionHealth, ...]]]":
    return [
        ("offline", found.offline),
        ("under_min_isr", found.under_min_isr),
        ("badly_led", found.badly_led),
        ("recovering", found.recovering),
        ("under_replicated", found.under_replicated),
    ]


def _print_health(found: "ClusterHealth") -> None:
    if not found.has_controller:
        put("no broker is the controller: nothing is elected or changed until one is")
    if found.unreachable_brokers:
        put(f"unreachable: broker {ids_text(found.unreachable_brokers)}")
    rows = [
        [
            name.replace("_", " "),
            row.topic,
            row.partition,
            None if row.leader < 0 else row.leader,
            ids_text(row.isr),
            ids_text(row.missing),
            row.min_insync_replicas,
        ]
        for name, partitions in _problems(found)
        for row in partitions
    ]
    if rows:
        print_table(
            ["PROBLEM", "TOPIC", "PARTITION", "LEADER", "IN SYNC", "MISSING", "MIN ISR"], rows
        )
    elif found.is_healthy:
        put("healthy: every partition is led, and all its replicas are in sync")
    print_damage(found.damaged)
    for line in advice(found):
        say(line)


@command.command(
    "settings",
    examples="""
    millrace cluster settings
    millrace cluster settings 2 --changed        # what differs from the defaults on broker 2
    millrace cluster settings --output json | jq '."0"."limits.message_bytes_max"'
    """,
)
@click.argument("brokers", nargs=-1, shell_complete=complete_broker)
@click.option("--changed", is_flag=True, help="Only settings that differ from their defaults.")
@bootstrap_option
@output_option
def settings(brokers: tuple[str, ...], changed: bool, bootstrap: str, output: str) -> None:
    """Show the settings that BROKERS, or all of them, go by now.

    FROM: default; file and environment, of the broker's configuration; command, the one that
    started it, such as `millrace up`; controller, by whose settings of [cluster] all brokers go,
    where the broker's own is another one. Where brokers differ, each value is a row of its own.
    docs/configuration.md says what each setting means. None is a secret.
    """
    with connect_admin(bootstrap) as admin:
        cluster = admin.describe_cluster()
        wanted = [find(cluster, word) for word in brokers]
        found = admin.describe_broker_configs()
    wanted = wanted or [broker.broker_id for broker in cluster.brokers]
    shown = {
        broker: {
            name: entry
            for name, entry in found[broker].items()
            if not changed or entry.source != "default"
        }
        for broker in wanted
        if broker in found
    }
    if output == "json":
        print_json(
            {
                str(broker): {
                    name: document_of(entry, ["documentation"]) for name, entry in config.items()
                }
                for broker, config in shown.items()
            }
        )
    else:
        print_table(["SETTING", "VALUE", "FROM", "BROKERS"], _setting_rows(shown))
    silent = [broker for broker in wanted if broker not in found]
    if silent:
        raise Failure(
            f"no answer from broker {ids_text(silent)}",
            "`millrace cluster describe` says whether it is there",
            exit_code=ExitCode.UNREACHABLE,
        )


def _setting_rows(shown: "Mapping[BrokerId, Mapping[str, ConfigValue]]") -> list[list[object]]:
    """Return a row for each value that a setting has somewhere, with the brokers that have it."""
    names = dict.fromkeys(name for config in shown.values() for name in config)
    rows: list[list[object]] = []
    for name in names:
        brokers: dict[tuple[str, str], list[BrokerId]] = {}
        for broker, config in shown.items():
            if name in config:
                entry = config[name]
                brokers.setdefault((entry.value, entry.source), []).append(broker)
        rows += [
            [name, value or None, source, ids_text(having)]
            for (value, source), having in brokers.items()
        ]
    return rows


@command.command(
    "drain",
    writes=True,
    examples="""
    millrace cluster drain 2                     # before its machine is serviced
    millrace cluster drain broker-2 --timeout 300
    """,
)
@broker_argument
@wait_options(60)
@bootstrap_option
@output_option
def drain(*, broker: str, timeout_s: float, no_wait: bool, bootstrap: str, output: str) -> None:
    """Make BROKER hand over its leaderships, and give it no new replicas.

    It goes on replicating, and stays drained, also when it is restarted, until `undrain`. The
    command ends when others lead everything that they can. To move its replicas too, see `millrace
    reassign plan --remove-broker`.
    """
    with connect_admin(bootstrap) as admin:
        number = find(admin.describe_cluster(), broker)
        before = _handover(admin, number).count
        admin.drain_broker(number)
        left = (
            _handover(admin, number) if no_wait else _until_left(admin, number, before, timeout_s)
        )
    moved = max(before - left.count, 0)
    if output == "json":
        print_json(
            {
                "broker": number,
                "handed_over": moved,
                "still_leads": documents(left.awaited),
                "only_replica": documents(left.alone),
            }
        )
    if no_wait:
        say(f"broker {number} is drained, and leads {count(left.count, 'partition')} yet")
    elif left.awaited:
        raise Failure(
            f"broker {number} is drained, but still leads {count(len(left.awaited), 'partition')} "
            f"after {timeout_s:g} s: {listed(left.awaited)}",
            "no other replica of them is in sync; they move as soon as one is. "
            "`millrace cluster health` shows what is missing",
            exit_code=ExitCode.TIMED_OUT,
        )
    elif left.alone:
        raise Failure(
            f"broker {number} is drained and handed over {count(moved, 'partition')}, but "
            f"{count(len(left.alone), 'partition')} without another replica stay: "
            f"{listed(left.alone)}",
            f"move them: {_move_away(number)}",
        )
    else:
        say(
            f"broker {number} is drained: {count(moved, 'partition')} handed over, it leads nothing"
        )


def _until_left(admin: "SyncAdmin", broker: int, before: int, timeout_s: float) -> Handover:
    """Wait until others lead all that they can; return the rest."""
    left = _handover(admin, broker)
    with Bars() as bars:

        def look() -> bool:
            nonlocal left
            left = _handover(admin, broker)
            total = max(before, left.count, 1)
            note = f"{left.count:,} of {total:,} still led by broker {broker}"
            bars.show("handing over", 1 - left.count / total, note)
            return not left.awaited

        wait_until(look, timeout_s)
    return left


@command.command(
    "undrain",
    writes=True,
    examples="""
    millrace cluster undrain 2
    millrace cluster undrain 2 --no-wait
    """,
)
@broker_argument
@wait_options(60)
@bootstrap_option
@output_option
def undrain(*, broker: str, timeout_s: float, no_wait: bool, bootstrap: str, output: str) -> None:
    """Take BROKER back into service, and wait until it leads again.

    That is: what it should lead by preference, as far as it is in sync.
    """
    with connect_admin(bootstrap) as admin:
        number = find(admin.describe_cluster(), broker)
        admin.undrain_broker(number)
        left = yet_to_return(admin.describe_topics().values(), number)
        if not no_wait:
            left = _until_returned(admin, number, timeout_s)
    if output == "json":
        print_json({"broker": number, "led_by_others": documents(left)})
    if no_wait:
        say(f"broker {number} is back in service; others lead {count(len(left), 'partition')} yet")
    elif left:
        raise Failure(
            f"broker {number} is back in service, but others still lead "
            f"{count(len(left), 'partition')} that it should: {listed(left)}",
            "they return by themselves once it is in sync: `millrace cluster health`",
            exit_code=ExitCode.TIMED_OUT,
        )
    else:
        say(f"broker {number} is back in service and leads what it should")


def _until_returned(admin: "SyncAdmin", broker: int, timeout_s: float) -> list[PartitionName]:
    """Wait until a broker leads what it should; return the partitions that others still lead."""
    left: list[PartitionName] = []
    with Bars() as bars:
        total = 0

        def look() -> bool:
            nonlocal left, total
            left = yet_to_return(admin.describe_topics().values(), broker)
            total = max(total, len(left))
            note = f"{len(left):,} of {total:,} still led by others"
            bars.show("taking back", 1 - len(left) / max(total, 1), note)
            return not left

        wait_until(look, timeout_s)
    return left


@command.command(
    "unregister",
    writes=True,
    examples="""
    millrace cluster drain 2
    millrace reassign plan --remove-broker 2 | millrace reassign apply -
    millrace cluster unregister 2                # once its process is stopped
    """,
)
@broker_argument
@bootstrap_option
@output_option
def unregister(broker: str, bootstrap: str, output: str) -> None:
    """Remove BROKER, which is gone for good, from the cluster.

    Refused while it is alive, or partitions have it as a replica; says which, and how to move them.
    Its id is never given again, and no broker can start on its log directories any more.
    """
    with connect_admin(bootstrap) as admin:
        number = find(admin.describe_cluster(), broker)
        try:
            admin.unregister_broker(number)
        except BrokerInUseError as error:
            hint = _hint_to_unregister(admin, number)
            raise Failure(error.message, hint, code_name=error.name()) from error
    if output == "json":
        print_json({"unregistered": number})
    say(f"broker {number} is unregistered: the cluster does not know it any more")


def _hint_to_unregister(admin: "SyncAdmin", broker: int) -> str:
    known = admin.describe_cluster().broker(broker)
    if known is not None and known.state != "fenced":
        return (
            f"stop its process, best after `millrace cluster drain {broker}`, which hands over "
            "what it leads"
        )
    alone = [
        place
        for place, partition in partitions_of(admin.describe_topics(none_hidden=True).values())
        if set(partition.target_replicas) == {broker}
    ]
    if alone:
        return (
            f"no other broker has {listed(alone)}: start broker {broker} again to move them, or "
            "delete their topics"
        )
    return f"move them: {_move_away(broker)}"


def _move_away(broker: int) -> str:
    return (
        f"`millrace reassign plan --remove-broker {broker} > plan.json`, then "
        "`millrace reassign apply plan.json`"
    )


def _handover(admin: "SyncAdmin", broker: int) -> Handover:
    return Handover.of(admin.describe_topics(none_hidden=True).values(), broker)
