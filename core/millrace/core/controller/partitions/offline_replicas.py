"""Replicas whose logs are damaged, or whose disks failed: they do not count (P63, P65).

A broker's heartbeats name its damaged replicas that the metadata still counts on. The replica
leaves the in-sync and the eligible ones, and if it led, another that has everything leads. If there
is none, it stays what it is: the partition is offline until an operator decides.

A report is remembered for the broker's life, so that a leader that has not noticed does not take
the replica back; or until the replica starts over (`renewal`), or is added again after it was
removed. It is no part of the metadata: brokers report it to the next controller again.
"""

from collections.abc import Collection, Iterable
from typing import TypeVar

from millrace.core.controller.decided.decided_metadata import DecidedMetadata
from millrace.core.ids import BrokerId, TopicPartition
from millrace.core.metadata.model import BrokerLife

_T = TypeVar("_T")


class OfflineReplicas:
    """The reports of all brokers, by replica."""

    def __init__(self) -> None:
        self._lives: dict[TopicPartition, dict[BrokerLife, None]] = {}
        # Epochs of the metadata when replicas started over: earlier reports are of an old log.
        self._renewed: dict[TopicPartition, dict[BrokerLife, int]] = {}

    def on_report(
        self,
        decided: DecidedMetadata,
        life: BrokerLife,
        keys: Iterable[TopicPartition],
        metadata_epoch: int,
    ) -> list[TopicPartition]:
        """Note a broker's report; to be called with its registered life.

        Args:
            metadata_epoch: of the image that the broker had applied.

        Returns: The partitions whose replica is offline; the others are not the broker's, or new
        since.
        """
        noted = []
        for key in keys:
            state = decided.partition(key)
            is_of_now = metadata_epoch > self._renewed.get(key, {}).get(life, -1)
            if state is not None and life.broker_id in state.replicas and is_of_now:
                self._lives.setdefault(key, {})[life] = None
                noted.append(key)
        return noted

    def on_renewed(self, key: TopicPartition, life: BrokerLife, metadata_epoch: int) -> None:
        """A replica starts over.

        Args:
            metadata_epoch: of the stored image at the decision. The broker asked after it had
                reported the replica as offline, and that report may arrive later.
        """
        self._lives.get(key, {}).pop(life, None)
        self._renewed.setdefault(key, {})[life] = metadata_epoch

    def on_added(
        self, key: TopicPartition, added: Collection[BrokerId], metadata_epoch: int
    ) -> None:
        """Brokers get a replica; an earlier replica of theirs was another log.

        Args:
            metadata_epoch: as in `on_renewed`.
        """
        for life in [life for life in self._lives.get(key, ()) if life.broker_id in added]:
            self.on_renewed(key, life, metadata_epoch)

    def of(self, key: TopicPartition) -> frozenset[BrokerLife]:
        """Return which lives have no usable log of a partition."""
        return frozenset(self._lives.get(key, ()))

    def forget_past(self, decided: DecidedMetadata) -> None:
        """Forget lives that are over, and partitions that are gone."""
        self._lives = _kept(self._lives, decided)
        self._renewed = _kept(self._renewed, decided)


def _kept(
    known: dict[TopicPartition, dict[BrokerLife, _T]], decided: DecidedMetadata
) -> dict[TopicPartition, dict[BrokerLife, _T]]:
    kept: dict[TopicPartition, dict[BrokerLife, _T]] = {}
    for key, lives in known.items():
        if decided.partition(key) is not None:
            present = {
                life: reported
                for life, reported in lives.items()
                if decided.cluster.is_registered(life)
            }
            if present:
                kept[key] = present
    return kept
