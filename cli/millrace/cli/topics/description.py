"""A topic as tables and as a document: its partitions, logs, compaction and tiers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from millrace.cli.console.output import document_of, ids_text, print_table, put, say
from millrace.cli.topics.damage import damage_document, offline_on, print_damage
from millrace.core.words import count, size

if TYPE_CHECKING:
    from millrace.client import DamagedReplica, LogDescription, TopicDescription


@dataclass(frozen=True, slots=True)
class Found:
    """What brokers say about a topic."""

    description: "TopicDescription"
    logs: "list[LogDescription]"
    damaged: "list[DamagedReplica]"

    def document(self) -> dict[str, Any]:
        """Return it for a program."""
        return {
            **document(self.description),
            "logs": [_log_document(log) for log in self.logs],
            "damaged": [damage_document(replica) for replica in self.damaged],
        }


def print_description(found: Found) -> None:
    """Print the tables of a topic, and what to do next."""
    description, damaged = found.description, found.damaged
    logs = {(log.partition, log.broker_id): log for log in found.logs}
    damaged_on = offline_on(damaged)
    rows = []
    for partition in description.partitions:
        offline = damaged_on.get(partition.partition, set()).union(partition.offline_replicas)
        rows.append(
            [
                partition.partition,
                None if partition.leader < 0 or partition.leader in offline else partition.leader,
                partition.leader_epoch,
                ids_text(partition.replicas),
                ids_text(partition.isr),
                ids_text(partition.elr) or None,
                ids_text(sorted(offline)) or None,
                *_amount(logs.get((partition.partition, partition.leader))),
                _lag(logs.get((partition.partition, partition.leader))),
            ]
        )
    put(f"{description.name} (id {description.topic_id.hex()})")
    print_table(
        [
            *("PARTITION", "LEADER", "EPOCH", "REPLICAS", "IN SYNC", "ELIGIBLE", "OFFLINE"),
            *("RECORDS", "SIZE", "LAG"),
        ],
        rows,
    )
    if any(log.compaction is not None for log in found.logs):
        put()
        print_table(
            ["PARTITION", "BROKER", "COMPACTED TO", "DIRTY", "LAST COMPACTED", "PROBLEM"],
            [_compaction_row(log) for log in found.logs],
        )
    if any(log.tier is not None for log in found.logs):
        put()
        print_table(
            ["PARTITION", "BROKER", "ON SSD", "ON HDD", "HDD TO OFFSET", "PROBLEM"],
            [_tier_row(log) for log in found.logs],
        )
    print_damage(damaged)
    for line in _misplaced(description.misplaced(logs.values()), description.media):
        say(line)
    put()
    print_table(
        ["SETTING", "VALUE", "FROM"],
        [[name, entry.value, entry.source] for name, entry in description.config.items()],
    )
    for line in next_steps(description, is_damaged=bool(damaged_on)):
        say(line)


def _misplaced(logs: "Sequence[LogDescription]", media: str) -> Iterator[str]:
    """Yield the replicas on another media than the topic asks for, a line for each broker."""
    by_broker: dict[tuple[int, str], list[int]] = {}
    for log in logs:
        by_broker.setdefault((log.broker_id, str(log.media)), []).append(log.partition)
    for (broker_id, lies_on), partitions in sorted(by_broker.items()):
        found = ids_text(partitions)
        yield f"on {lies_on} and not on {media}: partitions {found} on broker {broker_id}"


def next_steps(description: "TopicDescription", *, is_damaged: bool) -> Iterator[str]:
    """Yield further commands to look at, if something is going on."""
    if is_damaged or any(
        partition.leader < 0 or partition.offline_replicas for partition in description.partitions
    ):
        yield "\nwhat is missing, and what to do about it: `millrace cluster health`"
    moving = sum(partition.is_reassigning for partition in description.partitions)
    if moving:
        yield f"\n{count(moving, 'partition')} being reassigned: `millrace reassign status`"


def _amount(log: "LogDescription | None") -> tuple[int | None, str | None]:
    """Return the records and the size of a leader's log, if it answered."""
    if log is None:
        return None, None
    return log.high_watermark - log.log_start_offset, size(log.size_bytes)


def _lag(log: "LogDescription | None") -> str | None:
    """Return how far each follower is behind: `1: 0, 2: 35 (1.2 s)`, a `?` if it is unknown."""
    if log is None or not log.followers:
        return None
    return ", ".join(
        f"{follower.broker_id}: ?"
        if follower.log_end_offset < 0
        else f"{follower.broker_id}: {log.log_end_offset - follower.log_end_offset:,}"
        + (f" ({follower.behind_ms / 1000:.1f} s)" if follower.behind_ms else "")
        for follower in log.followers
    )


def _compaction_row(log: "LogDescription") -> list[object]:
    compaction = log.compaction
    if compaction is None:
        return [log.partition, log.broker_id, None, None, None, None]
    at = compaction.compacted_at
    return [
        log.partition,
        log.broker_id,
        compaction.cleaner_point,
        f"{compaction.dirty_ratio:.0%}",
        "never" if at is None else f"{datetime.fromtimestamp(at // 1000, UTC):%Y-%m-%d %H:%M:%SZ}",
        compaction.problem or None,
    ]


def _tier_row(log: "LogDescription") -> list[object]:
    tier = log.tier
    if tier is None:
        return [log.partition, log.broker_id, size(log.size_bytes), None, None, None]
    return [
        log.partition,
        log.broker_id,
        size(log.size_bytes - tier.size_bytes),
        size(tier.size_bytes),
        tier.end_offset,
        tier.problem or None,
    ]


def _log_document(log: "LogDescription") -> dict[str, Any]:
    return {
        **document_of(log, ["topic", "appended_bytes", "fetched_bytes"], broker_id="broker"),
        "followers": [
            document_of(follower, broker_id="broker", is_in_sync="in_sync")
            for follower in log.followers
        ],
    }


def document(topic: "TopicDescription") -> dict[str, Any]:
    """Return a topic with its settings for a program."""
    return {
        "name": topic.name,
        "topic_id": topic.topic_id.hex(),
        "internal": topic.is_internal,
        "partitions": [
            document_of(partition, ["partition_epoch"]) for partition in topic.partitions
        ],
        "config": {
            name: document_of(entry, ["documentation"]) for name, entry in topic.config.items()
        },
    }
