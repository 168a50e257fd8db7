"""Output about damaged replicas: those that are offline, and those that were fetched again."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from millrace.cli.console.output import document_of, put

if TYPE_CHECKING:
    from millrace.client import DamagedReplica


def print_damage(replicas: "Iterable[DamagedReplica]") -> None:
    """Print every replica that is or was damaged, and where its files are."""
    for damage in replicas:
        replica = f"{damage.topic}-{damage.partition} on broker {damage.broker_id}"
        if damage.error:
            put(f"offline: {replica}: {damage.error}")
        for path in damage.kept_in:
            put(
                f"damaged: {replica} was fetched again, and the damaged log is kept in {path}: "
                "remove it when it is no longer needed"
            )


def offline_on(replicas: "Iterable[DamagedReplica]") -> dict[int, set[int]]:
    """Return, by partition of one topic, the running brokers on which its log is offline."""
    found: dict[int, set[int]] = {}
    for damage in replicas:
        if damage.error:
            found.setdefault(damage.partition, set()).add(damage.broker_id)
    return found


def damage_document(replica: "DamagedReplica") -> dict[str, Any]:
    """Return a replica for a program."""
    return document_of(replica, broker_id="broker")
