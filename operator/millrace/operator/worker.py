"""What each worker of the operator does with the queue: one look after the other."""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from structlog.contextvars import bound_contextvars

from millrace.operator import events
from millrace.operator.kube.api import ApiError
from millrace.operator.queue import WorkQueue
from millrace.operator.reconcile.again import Again, Gone
from millrace.operator.telemetry import OperatorMetrics

_log = logging.getLogger(__name__)

_LEASE_AGAIN_S: Final = 1.0
"""Pause before work that came when the lease had run out."""


class Key(NamedTuple):
    """One unit of work: a cluster, or the topics or quotas of one."""

    work: str
    namespace: str
    name: str


Look = Callable[[str, str], Awaitable[Again]]
"""Looks at a unit of work by its namespace and name, and says when to look again."""


class Worker:
    """Takes keys from the queue, and shows what became of them.

    Args:
        may_act: whether this operator holds the lease now.
        looks: by the kind of work.
    """

    def __init__(
        self,
        queue: WorkQueue[Key],
        metrics: OperatorMetrics,
        may_act: Callable[[], bool],
        looks: Mapping[str, Look],
    ) -> None:
        self._queue = queue
        self._metrics = metrics
        self._may_act = may_act
        self._looks = looks

    async def run(self) -> None:
        """Work for ever."""
        while True:
            await self.work(await self._queue.get())

    async def work(self, key: Key) -> None:
        """Look at one key of the queue."""
        if not self._may_act():
            # It has run out: only the next attempt tells whether another operator has it.
            self._queue.done(key, _LEASE_AGAIN_S)
            return
        seconds = self._metrics.reconcile_seconds.labels(key.work)
        with bound_contextvars(cluster=f"{key.namespace}/{key.name}"):
            try:
                with seconds.time():
                    again = await self._looks[key.work](key.namespace, key.name)
            except Exception as error:
                pause_s = self._queue.failed(key)
                self._metrics.failures.labels(key.work).inc()
                events.WORK_FAILED.log(
                    _log,
                    work=key.work,
                    in_s=pause_s,
                    error=str(error),
                    cause=None if isinstance(error, ApiError) else error,
                )
                return
        if isinstance(again, Gone):
            self._queue.done(key, None)
            self._metrics.forget(*key)
            return
        self._queue.done(key, again)
        if self._may_act():  # Else the other operator shows it.
            self._metrics.succeeded(*key, now_s=time.time())
