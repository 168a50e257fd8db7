"""The operator's own Lease: one of several operators acts, the others wait to take over.

The election is that of the brokers' controller (`core/controller/lease.py`). A Lease does not count
its writes, so each change of its `resourceVersion` counts as one. The lease is only a hint. Two
operators that act for a moment do no harm: both apply the same objects, and a deletion names the
uid.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from millrace.core.controller.lease import NOBODY, LeaseElection, LeaseRecord, LeaseTimes
from millrace.core.ids import MonotonicMs
from millrace.operator import events
from millrace.operator.kube.api import Api, ApiError
from millrace.operator.kube.kinds import LEASE
from millrace.operator.model.objects import Document

_log = logging.getLogger(__name__)

NAME: Final = "millrace-operator"
TIMES: Final = LeaseTimes(
    duration_ms=45_000, renew_deadline_ms=30_000, retry_ms=12_000, watch_ms=2000
)
"""An operator that ends gives the lease back, and the next acts within two seconds. One that dies
is missing for 45 s, but no record waits for it. In return an idle operator writes only once in 12
s.
"""


class OperatorLease:
    """See the module.

    Args:
        holder: the pod's name.
        on_change: called when the lease was won or lost.

    Attributes:
        is_known: the holder was read at least once.
    """

    def __init__(
        self, api: Api, namespace: str, holder: str, on_change: Callable[[bool], None]
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._election = LeaseElection(holder, "", TIMES)
        self._on_change = on_change
        self._resource_version = ""
        self._version = 0
        self._document: Document | None = None
        self._was_held = False
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
            record = self._election.give_back(await self._read())
            if record is not None:
                await self._write(record)
        except ApiError:
            pass  # It runs out.
        self._tell()

    async def _attempt(self) -> None:
        record = await self._read()
        self.is_known = True
        sent_at = _now()
        wanted = self._election.on_read(record, sent_at)
        if wanted is None:
            return
        try:
            await self._write(wanted)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            return  # Another operator was first.
        self._election.on_written(wanted, sent_at)

    async def _read(self) -> LeaseRecord | None:
        self._document = await self._api.get(LEASE, self._namespace, NAME)
        if self._document is None:
            return None
        self._note(self._document)
        spec = self._document.get("spec") or {}
        return LeaseRecord(
            holder=spec.get("holderIdentity") or NOBODY,
            address="",
            duration_ms=spec.get("leaseDurationSeconds", 0) * 1000,
            version=self._version,
        )

    async def _write(self, record: LeaseRecord) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        document = self._document or {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.name,
            "metadata": {"name": NAME, "namespace": self._namespace},
        }
        spec = dict(document.get("spec") or {})
        if spec.get("holderIdentity") != record.holder:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = spec.get("leaseTransitions", 0) + 1
        spec |= {
            "holderIdentity": record.holder or None,
            "leaseDurationSeconds": record.duration_ms // 1000,
            "renewTime": now,
        }
        document = {**document, "spec": spec}
        write = self._api.create if self._document is None else self._api.replace
        self._note(await write(document))
        assert self._version == record.version

    def _note(self, document: Document) -> None:
        """Count a new version when the Lease has changed."""
        resource_version = document["metadata"]["resourceVersion"]
        if resource_version != self._resource_version:
            self._resource_version = resource_version
            self._version += 1

    def _tell(self) -> None:
        if self.is_held != self._was_held:
            self._was_held = self.is_held
            self._on_change(self._was_held)


def _now() -> MonotonicMs:
    return MonotonicMs(int(time.monotonic() * 1000))
