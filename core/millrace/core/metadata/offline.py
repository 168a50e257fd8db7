"""Replicas whose logs are damaged, or whose disks failed: they count for nothing (P63, P65).

A broker says in its heartbeats where the metadata still counts on such a replica of it. The replica
leaves the in-sync and the eligible ones, and if it led, another that has everything leads. Only
where there is none, it stays what it is: the partition is offline until somebody decides.

What was said is remembered as long as the broker's life, so that a leader that has not noticed does
not take the replica back. It is no part of the metadata: the next controller hears it again.
"""

from collections.abc import Iterable

from millrace.core.ids import TopicPartition
from millrace.core.metadata.draft import Draft
from millrace.core.metadata.model import BrokerLife


class OfflineReplicas:
    """See the module."""

    def __init__(self) -> None:
        self._lives: dict[TopicPartition, dict[BrokerLife, None]] = {}

    def on_report(self, draft: Draft, life: BrokerLife, keys: Iterable[TopicPartition]) -> None:
        """Note what a broker says; to be called with its registered life."""
        for key in keys:
            state = draft.partition(key)
            if state is not None and life.broker_id in state.replicas:
                self._lives.setdefault(key, {})[life] = None

    def of(self, key: TopicPartition) -> frozenset[BrokerLife]:
        """Return which lives have no usable log of a partition."""
        return frozenset(self._lives.get(key, ()))

    def forget_past(self, draft: Draft) -> None:
        """Forget lives that are over, and partitions that are gone."""
        for key, lives in list(self._lives.items()):
            is_there = draft.partition(key) is not None
            kept = {life: None for life in lives if is_there and draft.cluster.is_registered(life)}
            if kept:
                self._lives[key] = kept
            else:
                del self._lives[key]
