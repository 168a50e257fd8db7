"""The route of one partition's requests: when they may be sent, and to which broker.

The leader may redirect a reader that names its zone to a follower nearby, its *read replica*
(KIP-392, P12). The leader is always asked first, because it alone judges positions. The partition
returns to the leader when the follower refuses, when the follower is gone, when another leader is
elected, and from time to time.
"""

from dataclasses import dataclass
from typing import Final

from millrace.core.ids import NO_BROKER, BrokerId, MonotonicMs, TopicPartition

_LONG_AGO: Final = MonotonicMs(0)


@dataclass(slots=True, eq=False)
class Route:
    """Where one partition's requests go, and when. The router makes it, and ends its pause.

    Attributes:
        topic: name of the topic.
        topic_partition: which partition.
        deletion: says that the topic is gone; empty while it is not.
        retry_at: nothing is sent before.
        failures: of requests, since one succeeded or another broker was asked. The route's user
            resets the count when a request succeeds.
        read_replica: the follower to read from; none: the leader.
        from_leader: the leader shall serve the partition itself, as the read replica did not.
        ask_leader_at: when to ask the leader again where to read; None: it serves the partition
            by its own choice.
    """

    topic: str
    topic_partition: TopicPartition
    deletion: str = ""
    retry_at: MonotonicMs = _LONG_AGO
    failures: int = 0
    read_replica: BrokerId = NO_BROKER
    from_leader: bool = False
    ask_leader_at: MonotonicMs | None = None

    def end_pause(self) -> None:
        """Allow requests at once: the failures were about an earlier leader or position."""
        self.retry_at = _LONG_AGO
        self.failures = 0

    def read_from(self, replica: BrokerId, until: MonotonicMs) -> None:
        """Read from a follower, as the leader says, and ask the leader again after a time."""
        self.ask_leader()
        self.read_replica = replica
        self.ask_leader_at = until

    def ask_leader(self) -> None:
        """Go to the leader, which may redirect the reader."""
        self.read_replica = NO_BROKER
        self.from_leader = False
        self.ask_leader_at = None
        self.failures = 0

    def return_to_leader(self) -> None:
        """Have the leader serve the partition until it is asked again: the follower does not."""
        self.read_replica = NO_BROKER
        self.from_leader = True
        self.failures = 0
