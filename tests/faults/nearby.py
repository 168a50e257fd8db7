"""Whether the reader that names a zone is served there, by a broker that does not lead."""

import time
from typing import Final

from tests.faults.cluster import Cluster
from tests.faults.metadata import PLACES

ZONE: Final = 1
"""The number of the broker whose zone a reader names."""
_SECONDS_MAX: Final = 20.0
_LOOK_SECONDS: Final = 0.1


class Nearby:
    """Counts what the broker of the zone sends of topics of which it leads nothing.

    Followers fetch from leaders, and so do readers that name no zone: that can only be for the
    reader that does. It asks a new leader where to read only when its metadata is old enough, so a
    look waits for it.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._bytes = 0.0
        self._looks = 0
        self._cluster = cluster

    def look(self) -> None:
        """Wait until something is sent, unless the broker leads of every topic.

        Raises:
            AssertionError: nothing is, though it well could be.
        """
        deadline = time.monotonic() + _SECONDS_MAX
        before = self._sent()
        while before:
            after = self._sent()
            common = before.keys() & after.keys()
            sent = sum(after[each] - before[each] for each in common)
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
        """By life of the broker, topic, and leader epochs."""
        node, view = self._cluster.nodes[ZONE], self._cluster.look()
        metrics = node.metrics()
        broker_id = self._cluster.id_of(node)
        return {
            (node.pid, name, *(each.leader_epoch for each in view.topics[name].partitions)): (
                metrics.get(f'millrace_topic_fetched_bytes_total{{topic="{name}"}}', 0.0)
            )
            for name in PLACES.topics
            if all(each.leader != broker_id for each in view.topics[name].partitions)
        }

    def __str__(self) -> str:
        return f"read from a follower in its zone: {self._bytes:.0f} bytes, in {self._looks} looks"
