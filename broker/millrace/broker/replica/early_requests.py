"""Requests that arrive before their leader knows that it leads.

Other brokers may hear of an election first and send clients to the new leader, which may not have
the metadata yet. A refusal would cost the client a pause that is longer than the metadata takes. So
a request with an epoch in which the replica may be about to lead waits there, in order of arrival,
until the replica has another role or a short time is over; then it is handled as if it had just
arrived.

The bounds are that time, and the bounds of all requests: a waiting request is unanswered, and holds
its part of the request memory.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from millrace.broker.replica.partition import Partition
from millrace.core.ids import LeaderEpoch

_WAIT_MS: Final = 500
"""Brokers hear of elections in a fraction of it; clients retry after a pause in any case."""


@dataclass(slots=True, eq=False)
class _Queue:
    """The requests that wait for one partition; its `Reader`, to hear of its role."""

    owner: "EarlyRequests"
    partition: Partition
    expected: LeaderEpoch
    judgements: list[Callable[[], None]] = field(default_factory=list)

    def on_advanced(self, handle: int) -> None:
        del handle  # There is one.
        if not self.partition.replica.may_yet_lead(self.expected):
            # Not at once: the partition is in the middle of telling its readers.
            asyncio.get_running_loop().call_soon(self.owner.judge, self)


class EarlyRequests:
    """Holds the early requests of all services of a broker. It belongs to the event loop.

    Args:
        wait_ms: how long to wait for the metadata.
    """

    def __init__(self, wait_ms: int = _WAIT_MS) -> None:
        self._wait_seconds = wait_ms / 1000
        self._queues: dict[Partition, _Queue] = {}

    def is_early(self, partition: Partition, expected: LeaderEpoch) -> bool:
        """Whether a request of this leader epoch must wait, also for earlier waiting ones."""
        return partition in self._queues or partition.replica.may_yet_lead(expected)

    def add(self, partition: Partition, expected: LeaderEpoch, judge: Callable[[], None]) -> None:
        """Call `judge` when the replica leads, or never will, or the time is over."""
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = _Queue(self, partition, expected)
            partition.follow(queue, 0)
            asyncio.get_running_loop().call_later(self._wait_seconds, self.judge, queue)
        queue.judgements.append(judge)

    def judge(self, queue: _Queue) -> None:
        """Handle a queue's requests now."""
        if self._queues.get(queue.partition) is not queue:
            return
        del self._queues[queue.partition]
        queue.partition.leave(queue, 0)
        for judge in queue.judgements:
            judge()
