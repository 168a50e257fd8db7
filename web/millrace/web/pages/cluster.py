"""The cluster: what is wrong, what there is, and which partitions have a problem."""

import asyncio
from itertools import islice

from millrace.client import ClusterDescription, ClusterHealth, TopicDescription
from millrace.core.words import count
from millrace.web.markup import Markup, element, joined
from millrace.web.pages.brokers import brokers_table
from millrace.web.pages.layout import (
    Column,
    Page,
    Visit,
    allowed,
    facts,
    left_out,
    number,
    table,
)

_PROBLEMS_MAX = 100


async def page(visit: Visit) -> Page:
    """Return the page."""
    admin = visit.cluster.admin
    health, cluster, topics = await asyncio.gather(
        allowed(admin.describe_health()), admin.describe_cluster(), admin.describe_topics()
    )
    users = [topic for topic in topics.values() if not topic.is_internal]
    return Page(
        "Cluster",
        [
            left_out("Whether all is well", "the cluster and all topics")
            if health is None
            else state(health),
            _facts(visit, cluster, users),
            brokers_table(visit, cluster, list(topics.values())),
            None if health is None else _problems(visit, health),
        ],
    )


def state(health: ClusterHealth) -> Markup:
    """Return whether all is well, and else the problems in words."""
    if health.is_healthy and not health.problems:
        words = "Healthy: every partition is led, and all its replicas are in sync."
        return element("p", words, class_="well", role="status")
    lines = [element("li", problem) for problem in health.problems]
    if health.controller_problem:
        lines.insert(0, element("li", health.controller_problem))
    return element(
        "div",
        element("ul", lines),
        element("p", element("code", "millrace cluster health"), " says what to do."),
        class_="warning" if health.is_healthy else "problem",
        role="status",
    )


def _facts(visit: Visit, cluster: ClusterDescription, topics: list[TopicDescription]) -> Markup:
    controller = cluster.broker(cluster.controller_id)
    up = sum(not broker.is_fenced for broker in cluster.brokers) - len(cluster.unreachable)
    return facts(
        ("Id", element("code", cluster.cluster_id)),
        ("Controller", None if controller is None else controller.name),
        ("Brokers", f"{up} of {len(cluster.brokers)} up"),
        ("Topics", visit.link(len(topics), "/topics")),
        ("Partitions", sum(len(topic.partitions) for topic in topics)),
    )


def _problems(visit: Visit, health: ClusterHealth) -> Markup | None:
    rows = [
        [
            problem,
            visit.link(partition.topic, "/topic", name=partition.topic),
            partition.partition,
            None if partition.leader < 0 else partition.leader,
            ", ".join(map(str, partition.isr)),
            ", ".join(map(str, partition.missing)),
            partition.min_insync_replicas,
        ]
        for problem, partitions in health.partitions_by_problem.items()
        for partition in partitions
    ]
    if not rows:
        return None
    columns: list[Column | str] = [
        *("Problem", "Topic", number("Partition"), number("Leader")),
        *("In sync", "Missing", number("Min ISR")),
    ]
    left_out = len(rows) - _PROBLEMS_MAX
    return joined(
        table("Partitions with a problem", columns, islice(rows, _PROBLEMS_MAX), ""),
        element("p", f"and {count(left_out, 'more partition')}") if left_out > 0 else None,
    )
