"""Advice about the problems of a cluster, the worst first."""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from millrace.cli.topics.trash import IN_TRASH
from millrace.core.words import count, listed

if TYPE_CHECKING:
    from millrace.client import ClusterHealth, PartitionHealth

_CURES: Final = {
    "slow disk": "Look at its disk, and at what else uses that",
    "full disk": (
        "Lower the retention, delete topics, or move replicas to other brokers. What was deleted "
        f"or moved away {IN_TRASH}"
    ),
    "new address": "It has just started, and clients may look for it at a former address",
}


def advice(found: "ClusterHealth") -> list[str]:
    """Return one line for each possible action; none: there is nothing to do."""
    gone = set(found.fenced_brokers)
    lines = []
    if not found.has_controller:
        lines.append(
            found.controller_problem
            or "no controller: another broker takes over within seconds; if none does, the "
            "brokers' logs say why (the coordination store does not answer?)"
        )
    if found.unreachable_brokers:
        lines.append(
            f"{_brokers(found.unreachable_brokers)}: no answer here. If it has just gone, others "
            "lead what it led within seconds, then look again; else it is paused or overloaded, or "
            "there is no way from here to its address: `millrace cluster describe` shows that"
        )
    if found.offline:
        lines.append(_about_offline(found.offline, gone))
    led = [partition for partition in found.under_replicated if partition.leader >= 0]
    late = sorted(_missing(led) - gone)
    if late:
        topic = next(
            partition.topic for partition in led if set(partition.missing).intersection(late)
        )
        lines.append(
            f"{_brokers(late)}: there, and not in sync yet; `millrace topic describe {topic}` "
            "shows how far (LAG)"
        )
    if gone:
        lines.append(_about_gone(found, gone))
    for reason in sorted({broker.reluctance for broker in found.reluctant_brokers}):
        numbers = [
            broker.broker_id for broker in found.reluctant_brokers if broker.reluctance == reason
        ]
        stay = sum(partition.leader in numbers for partition in found.badly_led)
        but = f", but {count(stay, 'partition')} that no other can lead" if stay else ""
        lines.append(
            f"{_brokers(numbers)}: {reason}: others lead what they can for it, until that is "
            f"over{but}. {_CURES.get(reason, 'Its log says more')}"
        )
    if found.recovering:
        places = listed((partition.topic, partition.partition) for partition in found.recovering)
        lines.append(
            f"recovering: {places} settle by themselves; their leaders' logs say what went"
        )
    if found.few_replicas:
        lines.append(_about_few(found.few_replicas))
    return lines


def _about_few(few: "Sequence[PartitionHealth]") -> str:
    first = few[0]
    places = listed((partition.topic, partition.partition) for partition in few)
    return (
        f"few replicas: {places}: fewer than a topic gets by default now. If nobody wanted it so: "
        f"`millrace reassign plan {first.topic} --replication-factor {first.replicas_wanted} | "
        "millrace reassign apply -`"
    )


def _about_offline(offline: "Sequence[PartitionHealth]", gone: Collection[int]) -> str:
    first = offline[0]
    unclean = (
        f"`millrace elect-leaders --unclean {first.topic}:{first.partition}` goes on without the "
        "records that only they have"
    )
    if gone:
        needed = _missing(offline).intersection(gone) or gone
        return (
            f"offline: start {_brokers(needed)}, and they come back by themselves. Where those are "
            f"gone for good, {unclean}"
        )
    return (
        "offline: all brokers are there, so a log directory that held the last replica in sync is "
        f"not, or its log cannot be opened: the log of {_brokers(_missing(offline))} says why. Put "
        f"it back and start the broker again. If it is gone for good, {unclean}"
    )


def _about_gone(found: "ClusterHealth", gone: Collection[int]) -> str:
    number = min(gone)
    held = [partition for partition in found.under_replicated if number in partition.missing]
    needed = max((len({*partition.isr, *partition.missing}) for partition in held), default=0)
    left = len(found.usable_brokers)
    first = ""
    if needed > left:  # Each replica needs a broker of its own.
        first = f"start another broker first, or add `--replication-factor-max {max(left, 1)}`: "
    return (
        f"{_brokers(gone)}: not there. To bring one back, start it; to do without it, {first}"
        f"`millrace cluster drain {number}`, `millrace reassign plan --remove-broker {number} | "
        f"millrace reassign apply -`, then `millrace cluster unregister {number}`"
    )


def _missing(partitions: "Iterable[PartitionHealth]") -> set[int]:
    return {int(broker) for partition in partitions for broker in partition.missing}


def _brokers(numbers: Iterable[int]) -> str:
    return "broker " + ", ".join(map(str, sorted(numbers)))
