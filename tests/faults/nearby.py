"""Checks that a follower in its zone serves the reader that names a zone."""

import time
from typing import Final

from tests.faults.cluster import Cluster
from tests.faults.metadata import PLACES

ZONE: Final = 1
"""The number of the broker in the reader's zone."""
_SECONDS_MAX: Final = 20.0
_LOOK_SECONDS: Final = 0.1


class Nearby:
    """Counts the bytes that the zone's broker sends of topics of which it leads no partition.

    Followers fetch from leaders, and so do readers without a zone: so these bytes go to the reader
    with the zone. That reader asks a new leader where to read only when its metadata is old enough,
    so a look waits for it.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._bytes = 0.0
        self._looks = 0
        self._cluster = cluster

    def look(self) -> None:
        """Wait until the broker sends such bytes, unless it leads a partition of every topic.

        Raises:
            AssertionError: it sends none.
        """
        deadline = time.monotonic() + _SECONDS_MAX
        before = self._sent()
        while before:
            after = self._sent()
            common = before.keys() & after.keys()
            sent = sum(after[name] - before[name] for name in common)
            if sent > 0:
                self._bytes += sent
                self._looks += 1
                return
            if not common:
                before = after
            assert time.monotonic() < deadline, (
                f"the reader in the zone of broker {ZONE} was not served there for {_SECONDS_MAX} s"
            )
            time.sleep(_LOOK_SECONDS)

    @property
    def is_served(self) -> bool:
        """Whether any look found something."""
        return self._looks > 0

    def _sent(self) -> dict[object, float]:
        """Bytes by life of the broker, topic, and leader epochs."""
        node, view = self._cluster.nodes[ZONE], self._cluster.look()
        metrics = node.metrics()
        broker_id = self._cluster.id_of(node)
        return {
            (
                node.pid,
                name,
                *(partition.leader_epoch for partition in view.topics[name].partitions),
            ): (metrics.get(f'millrace_topic_fetched_bytes_total{{topic="{name}"}}', 0.0))
            for name in PLACES.topics
            if all(partition.leader != broker_id for partition in view.topics[name].partitions)
        }

    def __str__(self) -> str:
        return f"read from a follower in its zone: {self._bytes:.0f} bytes, in {self._looks} looks"
