"""Whether the reader that names a zone is served there, by a broker that does not lead."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.faults.cluster import Cluster
from tests.faults.metadata import TOPICS

ZONE: Final = 1
"""The number of the broker whose zone a reader names."""


class Nearby:
    """Counts what the broker of the zone sends of topics of which it leads nothing.

    Followers fetch from leaders, and so do readers that name no zone: that can only be for the
    reader that does.

    A leader that is new is asked again where to read, and not every look meets that done.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._bytes = 0.0
        self._looks = 0
        self._served = 0
        self._cluster = cluster

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Count what is sent within; nothing of topics whose leaders change meanwhile."""
        before = self._sent()
        yield
        after = self._sent()
        sent = [after[each] - before[each] for each in before.keys() & after.keys()]
        self._bytes += sum(sent)
        self._looks += bool(sent)
        self._served += sum(sent) > 0

    @property
    def is_served(self) -> bool:
        """Whether something was counted in most looks that could; one at the least must."""
        return self._served > self._looks / 2

    def _sent(self) -> dict[object, float]:
        """By life of the broker, topic, and leader epochs."""
        node, view = self._cluster.nodes[ZONE], self._cluster.look()
        metrics = node.metrics()
        broker_id = self._cluster.id_of(node)
        return {
            (node.pid, name, *(each.leader_epoch for each in view.topics[name].partitions)): (
                metrics.get(f'millrace_topic_fetched_bytes_total{{topic="{name}"}}', 0.0)
            )
            for name in TOPICS
            if all(each.leader != broker_id for each in view.topics[name].partitions)
        }

    def __str__(self) -> str:
        return (
            f"read from a follower in its zone: {self._bytes:.0f} bytes, at {self._served} of "
            f"{self._looks} looks"
        )
