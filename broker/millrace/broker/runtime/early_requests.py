"""Requests that came before their leader knew that it leads.

Whoever hears first of an election tells clients where to go, and they may be there before the news
are. To refuse them would cost them a pause that is longer than the news take. So what names an
epoch that a replica may be about to lead in waits there, in the order in which it came, until the
replica has another role or a short time is over; then it is judged as if it had come now.

The bound: that time, and what bounds all requests in any case. What waits is unanswered, and holds
its part of the request memory.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from millrace.broker.runtime.partition import Partition
from millrace.core.ids import LeaderEpoch


@dataclass(slots=True, eq=False)
class _Queue:
    """What waits for one partition; a `Reader` of it, to be told of its role."""

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
    """See the module. One for all services of a broker; on the event loop.

    Args:
        wait_ms: how long to wait for the news.
    """

    def __init__(self, wait_ms: int) -> None:
        self._wait_seconds = wait_ms / 1000
        self._queues: dict[Partition, _Queue] = {}

    def is_early(self, partition: Partition, expected: LeaderEpoch) -> bool:
        """Whether a request of this leader epoch is to wait, be it for those before it."""
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
        """Let a queue wait no longer."""
        if self._queues.get(queue.partition) is not queue:
            return
        del self._queues[queue.partition]
        queue.partition.leave(queue, 0)
        for judge in queue.judgements:
            judge()
