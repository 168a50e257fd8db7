"""Looks at a cluster of three brokers and two topics, for `millrace top`."""

from collections.abc import Mapping

from millrace.cli.groups.group_lag import TotalLag
from millrace.cli.top.look import Look
from millrace.client import (
    BrokerInfo,
    ClusterDescription,
    GroupDescription,
    LogDescription,
    PartitionDescription,
    TopicDescription,
)
from millrace.client._admin.health import health_of
from millrace.core.ids import (
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    TopicId,
)

BROKERS = (0, 1, 2)


def look(
    at_s: float,
    records: Mapping[str, int],
    *,
    fetched: int = 0,
    lags: Mapping[str, int] | None = None,
    dead: int | None = None,
) -> Look:
    """Return a look at a cluster whose topics have one partition each.

    Args:
        at_s: when it was taken.
        records: in each topic, of ten bytes; `lonely` has one replica, on broker 1.
        fetched: bytes of each topic that consumers took.
        lags: records that groups have not read.
        dead: a broker that is down.
    """
    brokers = tuple(
        BrokerInfo(BrokerId(broker), f"broker-{broker}", f"h:{broker}", "", broker == dead)
        for broker in BROKERS
    )
    cluster = ClusterDescription("c1", BrokerId(0), ControllerEpoch(1), brokers)
    replicas = {name: (1,) if name == "lonely" else BROKERS for name in records}
    alive = {name: [broker for broker in of if broker != dead] for name, of in replicas.items()}
    topics = [
        TopicDescription(name, TopicId(bytes(16)), False, (_partition(replicas[name], live),), {})
        for name, live in alive.items()
    ]
    logs = [
        LogDescription(
            *(name, 0, BrokerId(broker), Offset(0), Offset(count), Offset(count), Offset(count)),
            *(count * 10, 1, f"/data/log/{name.encode().hex()}-0"),
            leads=broker == alive[name][0],
            appended_bytes=count * 10 if broker == alive[name][0] else 0,
            fetched_bytes=fetched if broker == alive[name][0] else 0,
        )
        for name, count in records.items()
        for broker in alive[name]
    ]
    groups = [
        (GroupDescription(name, "consumer", epoch=1), TotalLag(1, 0, lag, lag * 10, lag, 0))
        for name, lag in (lags or {}).items()
    ]
    return Look(
        at_s=at_s,
        cluster=cluster,
        topics=topics,
        health=health_of(cluster, topics),
        logs=logs,
        groups=groups,
    )


def _partition(replicas: tuple[int, ...], alive: list[int]) -> PartitionDescription:
    leader = BrokerId(alive[0] if alive else -1)
    ids = tuple(map(BrokerId, replicas))
    isr = tuple(map(BrokerId, alive)) or ids[:1]
    return PartitionDescription(0, leader, LeaderEpoch(1), "", PartitionEpoch(1), ids, isr, (), ())
