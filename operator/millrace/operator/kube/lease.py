"""The operator's own Lease: one of several operators acts, the others wait to take over.

Election and Lease are those of the brokers' controller (`core/controller/lease.py`,
`runtime/kubernetes/lease.py`). The lease is only a hint. Two operators that act for a moment do no
harm: both apply the same objects, and a deletion names the uid.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from millrace.core.controller.lease import LeaseElection, LeaseTimes
from millrace.core.ids import MonotonicMs
from millrace.operator import events
from millrace.operator.kube.api import Api, ApiError, refused
from millrace.runtime.kubernetes.lease import KubernetesLease
from millrace.runtime.kubernetes.resources import LEASE, Resource

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

NAME: Final = "millrace-operator"
TIMES: Final = LeaseTimes(
    duration_ms=45_000, renew_deadline_ms=30_000, retry_ms=12_000, watch_ms=2000
)
"""An operator that ends gives the lease back, and the next acts within two seconds. One that dies
is missing for 45 s, but no record waits for it. In return an idle operator writes only once in 12
s.
"""


class OperatorLease:
    """This operator's part in the election.

    Args:
        holder: the pod's name.
        on_change: called when the lease was won or lost.

    Attributes:
        is_known: the holder was read at least once.
    """

    def __init__(
        self, api: Api, namespace: str, holder: str, on_change: Callable[[bool], None]
    ) -> None:
        self._lease = KubernetesLease(
            api.send,
            Resource(LEASE, namespace, NAME),
            {},
            lambda answer: refused(answer, f"Lease {NAME}"),
        )
        self._election = LeaseElection(holder, "", TIMES)
        self._on_change = on_change
        self._was_held = False
        self._turn = threading.Lock()  # A call goes on when its coroutine is cancelled.
        self.is_known = False

    @property
    def is_held(self) -> bool:
        """Whether this operator may act."""
        return self._election.is_held(_now())

    async def run(self) -> None:
        """Win the lease and keep it; for ever."""
        while True:
            try:
                await self._attempt()
            except ApiError as error:
                events.OPERATOR_LEASE_UNRENEWED.log(_log, error=str(error))
            self._tell()
            await asyncio.sleep(self._election.pause_ms(_now()) / 1000)

    async def give_back(self) -> None:
        """Let another operator take over at once."""
        try:
            record = self._election.give_back(await self._on_thread(self._lease.read))
            if record is not None:
                await self._on_thread(partial(self._lease.compare_and_swap, record))
        except ApiError:
            pass  # It runs out.
        self._tell()

    async def _attempt(self) -> None:
        record = await self._on_thread(self._lease.read)
        self.is_known = True
        sent_at = _now()
        wanted = self._election.on_read(record, sent_at)
        if wanted is not None and await self._on_thread(
            partial(self._lease.compare_and_swap, wanted)
        ):
            self._election.on_written(wanted, sent_at)

    async def _on_thread(self, call: Callable[[], _Result]) -> _Result:
        def in_turn() -> _Result:
            with self._turn:
                return call()

        # Not on the threads of the API, where a slow API server lets requests queue for minutes.
        return await asyncio.to_thread(in_turn)

    def _tell(self) -> None:
        if self.is_held != self._was_held:
            self._was_held = self.is_held
            self._on_change(self._was_held)


def _now() -> MonotonicMs:
    return MonotonicMs(int(time.monotonic() * 1000))
