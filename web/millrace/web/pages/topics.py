"""The topics, and one of them with its partitions and settings."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from millrace.client import (
    ClusterHealth,
    ConfigValue,
    LogDescription,
    PartitionDescription,
    TopicDescription,
)
from millrace.core.words import count
from millrace.web.markup import Child, Markup, element
from millrace.web.pages.layout import (
    Page,
    Visit,
    allowed,
    bytes_of,
    facts,
    number,
    pager,
    prose,
    table,
)

TOPICS_MAX: Final = 100
"""Topics on a page."""
PARTITIONS_MAX: Final = 200
"""Partitions on a page."""
_LOGS_MAX: Final = 2_000
"""With more partitions the list of topics has no sizes: each broker would describe all its logs."""


async def page(visit: Visit) -> Page:
    """Return the page of all topics, or of those whose names have some part."""
    admin = visit.cluster.admin
    topics, health = await asyncio.gather(admin.describe_topics(), allowed(admin.describe_health()))
    part = visit.text("find").strip()
    with_internal = visit.text("internal") == "yes"
    found = [
        topic
        for name, topic in sorted(topics.items())
        if part.lower() in name.lower() and (with_internal or not topic.is_internal)
    ]
    first, shown = visit.part(found, TOPICS_MAX)
    has_sizes = sum(len(topic.partitions) for topic in topics.values()) <= _LOGS_MAX
    logs = await allowed(admin.describe_logs()) if has_sizes else None
    return Page(
        "Topics",
        [
            _form(visit, part, with_internal=with_internal),
            _table(visit, shown, logs, health, part),
            pager(visit, first, len(shown), len(found), TOPICS_MAX),
        ],
    )


def _form(visit: Visit, part: str, *, with_internal: bool) -> Markup:
    return element(
        "form",
        element("label", "Name has", element("input", type="search", name="find", value=part)),
        element(
            "label",
            element("input", type="checkbox", name="internal", value="yes", checked=with_internal),
            " with internal topics",
        ),
        element("button", "Find"),
        action=visit.address("/topics"),
        role="search",
    )


def _table(
    visit: Visit,
    topics: Sequence[TopicDescription],
    logs: Sequence[LogDescription] | None,
    health: ClusterHealth | None,
    part: str,
) -> Markup:
    led: dict[str, list[LogDescription]] = {}
    for log in logs or ():
        if log.leads:
            led.setdefault(log.topic, []).append(log)
    problems = {} if health is None else health.problems_by_topic
    rows: list[list[Child]] = [
        [
            visit.link(topic.name, "/topic", name=topic.name),
            len(topic.partitions),
            topic.replication_factor,
            sum(_records(log) for log in led.get(topic.name, ())) if logs is not None else None,
            bytes_of(sum(log.size_bytes for log in led.get(topic.name, ())))
            if logs is not None
            else None,
            _value(topic.config, "cleanup.policy"),
            element("span", problems[topic.name], class_="state bad")
            if topic.name in problems
            else "",
            visit.link("records", "/records", topic=topic.name),
        ]
        for topic in topics
    ]
    return table(
        "Topics",
        [
            *("Topic", number("Partitions"), number("Replicas"), number("Records")),
            *(number("Size"), "Policy", "Problem", "Read"),
        ],
        rows,
        f"No name of a topic has {part!r}." if part else "There is no topic yet.",
        is_titled=False,
    )


async def topic(visit: Visit) -> Page:
    """Return the page of one topic."""
    admin, name = visit.cluster.admin, visit.text("name")
    found, logs = await asyncio.gather(admin.describe_topic(name), admin.describe_logs(name))
    led = {log.partition: log for log in logs if log.leads}
    first, shown = visit.part(found.partitions, PARTITIONS_MAX)
    lacking = len(found.partitions) - len(led)
    unknown = f" ({count(lacking, 'partition')} unknown)" if lacking > 0 else ""
    return Page(
        found.name,
        [
            facts(
                ("Partitions", len(found.partitions)),
                ("Replicas", found.replication_factor),
                ("Records", f"{sum(map(_records, led.values())):,}{unknown}"),
                ("Size", f"{bytes_of(sum(log.size_bytes for log in led.values()))}{unknown}"),
                ("Media", str(found.media)),
                ("Id", element("code", found.topic_id.hex())),
            ),
            element("p", visit.link("Read its records", "/records", topic=found.name)),
            _partitions(visit, found, shown, led),
            pager(visit, first, len(shown), len(found.partitions), PARTITIONS_MAX),
            _settings(found.config),
        ],
        above="/topics",
    )


def _partitions(
    visit: Visit,
    topic: TopicDescription,
    partitions: Sequence[PartitionDescription],
    led: Mapping[int, LogDescription],
) -> Markup:
    rows = []
    for partition in partitions:
        log = led.get(partition.partition)
        late = [broker for broker in partition.replicas if broker not in partition.isr]
        rows.append(
            [
                visit.link(
                    partition.partition, "/records", topic=topic.name, partition=partition.partition
                ),
                element("span", "none", class_="state bad")
                if partition.leader < 0
                else partition.leader,
                ", ".join(map(str, partition.replicas)),
                ", ".join(map(str, partition.isr)),
                element("span", ", ".join(map(str, late)), class_="state bad") if late else "",
                *(
                    (None, None, None, None)
                    if log is None
                    else (
                        log.log_start_offset,
                        log.log_end_offset,
                        _records(log),
                        bytes_of(log.size_bytes),
                    )
                ),
            ]
        )
    return table(
        "Partitions",
        [
            *("Partition", number("Leader"), "Replicas", "In sync", "Not in sync"),
            *map(number, ("Start", "End", "Records", "Size")),
        ],
        rows,
        "It has no such partitions.",
    )


def _settings(config: Mapping[str, ConfigValue]) -> Markup:
    return table(
        "Settings",
        ["Setting", "Value", "From", "Meaning"],
        [
            [
                element("code", name),
                setting.value or None,
                setting.source,
                prose(setting.documentation),
            ]
            for name, setting in sorted(config.items())
        ],
        "None is known.",
    )


def _records(log: LogDescription) -> int:
    """Return the number of offsets; where a topic is compacted, there are fewer records."""
    return log.log_end_offset - log.log_start_offset


def _value(config: Mapping[str, ConfigValue], name: str) -> str | None:
    found = config.get(name)
    return None if found is None else found.value
