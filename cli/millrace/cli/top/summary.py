"""What `millrace top` shows of a cluster, computed from two looks at it, without a terminal.

A rate is the difference of two counters over the time between the looks. A counter that was not
there before has no rate, nor one that went back because its broker has started again: what is
unknown is never shown as 0.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millrace.cli.advice import advice
from millrace.cli.cluster import state_of
from millrace.cli.console.output import document_of
from millrace.cli.groups.group_lag import TotalLag, lag_document
from millrace.cli.top.look import Look

if TYPE_CHECKING:
    from millrace.client import GroupDescription, LogDescription
    from millrace.core.ids import BrokerId

_LogKey = tuple[str, int, "BrokerId"]


@dataclass(slots=True, frozen=True)
class Rates:
    """What producers appended and consumers fetched, in one second; None: unknown."""

    records: float | None = None
    appended_bytes: float | None = None
    fetched_bytes: float | None = None

    @property
    def bytes(self) -> float:
        """Bytes in and out, for an order by size."""
        return (self.appended_bytes or 0) + (self.fetched_bytes or 0)

    def document(self) -> dict[str, float | None]:
        """Return them for a program."""
        return {
            "records_per_second": _rounded(self.records),
            "appended_bytes_per_second": _rounded(self.appended_bytes),
            "fetched_bytes_per_second": _rounded(self.fetched_bytes),
        }


@dataclass(slots=True, frozen=True)
class BrokerRow:
    """A broker: its size is of all of its logs; None: it does not answer."""

    broker_id: int
    name: str
    zone: str
    state: str
    is_controller: bool
    leads: int
    replicas: int
    rates: Rates
    size_bytes: int | None


@dataclass(slots=True, frozen=True)
class TopicRow:
    """A topic: its size is that of one copy, its leaders'."""

    name: str
    partitions: int
    replication_factor: int
    problem: str
    rates: Rates
    size_bytes: int


@dataclass(slots=True, frozen=True)
class GroupRow:
    """A group, or another reader under a name."""

    name: str
    kind: str
    state: str
    members: int | None
    lag: TotalLag


@dataclass(slots=True, frozen=True, kw_only=True)
class Summary:
    """The figures of `millrace top`. `problems` and `advice` are sentences, the worst first."""

    cluster_id: str
    controller_id: int
    controller_epoch: int
    is_healthy: bool
    seconds: float | None
    """Between the looks; None: there was only one."""
    problems: Sequence[str]
    advice: Sequence[str]
    brokers: Sequence[BrokerRow]
    topics: Sequence[TopicRow]
    groups: Sequence[GroupRow] | None
    """None: unknown, as the coordinators do not answer."""
    groups_left_out: int

    def document(self) -> dict[str, Any]:
        """Return it for a program."""
        return {
            "cluster_id": self.cluster_id,
            "controller": self.controller_id,
            "controller_epoch": self.controller_epoch,
            "healthy": self.is_healthy,
            "seconds": _rounded(self.seconds),
            "problems": list(self.problems),
            "advice": list(self.advice),
            "brokers": [
                {
                    **document_of(broker, ["rates"], broker_id="broker", zone="rack"),
                    **broker.rates.document(),
                }
                for broker in self.brokers
            ],
            "topics": [
                {
                    **document_of(topic, ["rates"]),
                    "problem": topic.problem or None,
                    **topic.rates.document(),
                }
                for topic in self.topics
            ],
            "groups": None
            if self.groups is None
            else [
                {**document_of(group, ["lag"]), **lag_document(group.lag, group.lag.lost)}
                for group in self.groups
            ],
            "groups_left_out": self.groups_left_out,
        }


def summarize(before: Look | None, now: Look, *, by_name: bool = False) -> Summary:
    """Return what there is to show.

    Args:
        before: an earlier look; None: rates are unknown.
        by_name: order topics and groups by their names, and not by rates and lags.
    """
    rates = _Counters(before, now)
    topics = _topics(now, rates)
    groups = None if now.groups is None else [_group(*group) for group in now.groups]
    if not by_name:
        topics.sort(key=lambda topic: (-_magnitude(topic.rates.bytes), topic.name))
        if groups is not None:
            groups.sort(key=lambda group: (-_magnitude(group.lag.records or 0), group.name))
    health = now.health
    return Summary(
        cluster_id=now.cluster.cluster_id,
        controller_id=now.cluster.controller_id,
        controller_epoch=now.cluster.controller_epoch,
        is_healthy=health.is_healthy,
        seconds=rates.seconds,
        problems=health.problems,
        advice=advice(health),
        brokers=_brokers(now, rates),
        topics=topics,
        groups=groups,
        groups_left_out=now.groups_left_out,
    )


def _magnitude(value: float) -> int:
    """Return the order of a value by powers of two: rows that differ less keep their places."""
    return int(math.log2(value + 1))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


class _Counters:
    """The rates of logs between two looks.

    Attributes:
        seconds: between them; None: there was only one.
    """

    def __init__(self, before: Look | None, now: Look) -> None:
        self.seconds = None if before is None else max(now.at_s - before.at_s, 1e-3)
        self._before = {} if before is None else _by_key(before.logs)
        self._ends = {} if before is None else _ends(before.logs)

    def of(self, logs: "Iterable[LogDescription]") -> Rates:
        """Return the sum of the rates of logs; what is unknown of each of them is unknown."""
        pairs = [(self._before.get(_key(log)), log) for log in logs]
        # A counter that went back began again with its broker.
        known = [
            (old, new)
            for old, new in pairs
            if old is not None
            and new.appended_bytes >= old.appended_bytes
            and new.fetched_bytes >= old.fetched_bytes
        ]
        if self.seconds is None or (pairs and not known):
            return Rates()
        # The end of a partition goes on counting when its leader changes.
        ended = [
            (self._ends[place], new.log_end_offset)
            for _, new in pairs
            if new.leads and (place := (new.topic, new.partition)) in self._ends
        ]
        return Rates(
            sum(max(new - old, 0) for old, new in ended) / self.seconds,
            sum(new.appended_bytes - old.appended_bytes for old, new in known) / self.seconds,
            sum(new.fetched_bytes - old.fetched_bytes for old, new in known) / self.seconds,
        )


def _key(log: "LogDescription") -> _LogKey:
    return log.topic, log.partition, log.broker_id


def _by_key(logs: "Iterable[LogDescription]") -> "dict[_LogKey, LogDescription]":
    return {_key(log): log for log in logs}


def _ends(logs: "Iterable[LogDescription]") -> dict[tuple[str, int], int]:
    return {(log.topic, log.partition): log.log_end_offset for log in logs if log.leads}


def _brokers(now: Look, rates: _Counters) -> list[BrokerRow]:
    logs: dict[int, list[LogDescription]] = {}
    for log in now.logs:
        logs.setdefault(log.broker_id, []).append(log)
    partitions = [partition for topic in now.topics for partition in topic.partitions]
    rows = []
    for broker in now.cluster.brokers:
        number = broker.broker_id
        state = state_of(broker, now.cluster)
        held = logs.get(number)
        answers = held is not None or state not in ("fenced", "unreachable")
        rows.append(
            BrokerRow(
                broker_id=number,
                name=broker.name,
                zone=broker.rack,
                state=state,
                is_controller=number == now.cluster.controller_id,
                leads=sum(partition.leader == number for partition in partitions),
                replicas=sum(number in partition.replicas for partition in partitions),
                rates=rates.of(held or ()) if answers else Rates(),
                size_bytes=sum(log.size_bytes for log in held or ()) if answers else None,
            )
        )
    return rows


def _topics(now: Look, rates: _Counters) -> list[TopicRow]:
    logs: dict[str, list[LogDescription]] = {}
    for log in now.logs:
        logs.setdefault(log.topic, []).append(log)
    problems = now.health.problems_by_topic
    return [
        TopicRow(
            name=topic.name,
            partitions=len(topic.partitions),
            replication_factor=topic.replication_factor,
            problem=problems.get(topic.name, ""),
            rates=rates.of(logs.get(topic.name, ())),
            size_bytes=sum(log.size_bytes for log in logs.get(topic.name, ()) if log.leads),
        )
        for topic in sorted(now.topics, key=lambda topic: topic.name)
        if not topic.is_internal
    ]


def _group(group: "GroupDescription", total: TotalLag) -> GroupRow:
    is_consumer = group.kind == "consumer"
    return GroupRow(
        name=group.name,
        kind=group.kind,
        state=group.state if is_consumer else "",
        members=len(group.members) if is_consumer else None,
        lag=total,
    )
