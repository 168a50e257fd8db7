"""The brokers, and the settings that one of them goes by."""

import asyncio
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import PurePosixPath

from millrace.client import ClusterDescription, ConfigValue, LogDescription, TopicDescription
from millrace.runtime.page_messages import RefusedError
from millrace.web.markup import Markup, element, joined
from millrace.web.pages.layout import (
    Page,
    Visit,
    allowed,
    bytes_of,
    facts,
    left_out,
    number,
    table,
)

_DOWN = ("fenced", "unreachable")


async def page(visit: Visit) -> Page:
    """Return the page of all brokers."""
    admin = visit.cluster.admin
    cluster, topics, logs = await asyncio.gather(
        admin.describe_cluster(), admin.describe_topics(), allowed(admin.describe_logs())
    )
    return Page(
        "Brokers",
        [
            brokers_table(visit, cluster, list(topics.values())),
            left_out("Log directories") if logs is None else _directories(logs),
        ],
    )


async def broker(visit: Visit) -> Page:
    """Return the page of one broker.

    Raises:
        RefusedError: there is no such broker.
    """
    admin, broker_id = visit.cluster.admin, visit.number("id")
    cluster, configs = await asyncio.gather(
        admin.describe_cluster(), allowed(admin.describe_broker_configs())
    )
    found = None if broker_id is None else cluster.broker(broker_id)
    if found is None:
        raise RefusedError(HTTPStatus.NOT_FOUND, f"there is no broker {visit.text('id')!r}")
    return Page(
        f"Broker {found.broker_id}",
        [
            facts(
                ("Name", found.name),
                ("Address", found.address),
                ("State", state_of(visit, cluster, found.broker_id)),
                ("Zone", found.rack or None),
                ("Media", ", ".join(found.media) or None),
                ("Epoch", found.broker_epoch),
            ),
            left_out("Its settings")
            if configs is None
            else _settings(configs.get(found.broker_id, {})),
        ],
        above="/brokers",
    )


def _settings(config: Mapping[str, ConfigValue]) -> Markup:
    return joined(
        table(
            "Settings that are not defaults",
            ["Setting", "Value", "From"],
            [
                [element("code", name), setting.value or None, setting.source]
                for name, setting in config.items()
                if setting.source != "default"
            ],
            "It goes by the defaults." if config else "It does not answer.",
        ),
        table(
            "Other settings",
            ["Setting", "Value"],
            [
                [element("code", name), setting.value or None]
                for name, setting in config.items()
                if setting.source == "default"
            ],
            "None is known.",
        ),
    )


def brokers_table(
    visit: Visit, cluster: ClusterDescription, topics: Sequence[TopicDescription]
) -> Markup:
    """Return a table of all brokers."""
    partitions = [partition for topic in topics for partition in topic.partitions]
    leads: dict[int, int] = {}
    holds: dict[int, int] = {}
    for partition in partitions:
        leads[partition.leader] = leads.get(partition.leader, 0) + 1
        for replica in partition.replicas:
            holds[replica] = holds.get(replica, 0) + 1
    return table(
        "Brokers",
        [
            *("Broker", "Name", "State", "Address", "Zone", "Media"),
            *(number("Leads"), number("Replicas")),
        ],
        [
            [
                broker.broker_id,
                visit.link(broker.name, "/broker", id=broker.broker_id),
                state_of(visit, cluster, broker.broker_id),
                element("code", broker.address),
                broker.rack or None,
                ", ".join(broker.media) or None,
                leads.get(broker.broker_id, 0),
                holds.get(broker.broker_id, 0),
            ]
            for broker in cluster.brokers
        ],
        "There is no broker.",
    )


def state_of(visit: Visit, cluster: ClusterDescription, broker_id: int) -> Markup:
    """Return the state of a broker; that it is the controller is said with it."""
    found = cluster.broker(broker_id)
    assert found is not None
    state = "unreachable" if broker_id in cluster.unreachable else found.state
    kind = "bad" if state in _DOWN else "good" if state == "alive" else "odd"
    also = ", controller" if broker_id == cluster.controller_id else ""
    return element("span", state + also, class_=f"state {kind}")


def _directories(logs: Sequence[LogDescription]) -> Markup:
    """Return a table of log directories; a log is described with the folder of its own in one."""
    sizes: dict[tuple[int, str, str], list[int]] = {}
    for log in logs:
        directory = str(PurePosixPath(log.log_dir).parent)
        key = (log.broker_id, directory, "" if log.media is None else str(log.media))
        sizes.setdefault(key, []).append(log.size_bytes)
    return table(
        "Log directories",
        ["Broker", "Directory", "Media", number("Replicas"), number("Size")],
        [
            [
                broker_id,
                element("code", path),
                media or None,
                len(replica_sizes),
                bytes_of(sum(replica_sizes)),
            ]
            for (broker_id, path, media), replica_sizes in sorted(sizes.items())
        ],
        "No broker has described its logs.",
    )
