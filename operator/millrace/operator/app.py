"""The operator's process: hears of changes, holds the Lease, and works through the queue."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import kopf

from millrace.operator import handlers
from millrace.operator.kube.api import Api, ApiError
from millrace.operator.kube.lease import OperatorLease
from millrace.operator.queue import WorkQueue
from millrace.operator.reconcile.brokers import Brokers
from millrace.operator.reconcile.cluster import ClusterReconciler
from millrace.operator.reconcile.topics import TopicsReconciler

_log = logging.getLogger(__name__)

WORKERS: Final = 4
"""How many clusters are worked on side by side."""
_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, kw_only=True)
class OperatorConfig:
    """Settings of the operator.

    Attributes:
        image: of brokers, where a Cluster names none.
        namespace: where the Lease is.
        holder: who this process is, in the Lease.
    """

    image: str
    namespace: str
    holder: str


class _Key(NamedTuple):
    work: str
    namespace: str
    name: str


def config_from_environment(image: str, namespace: str | None) -> OperatorConfig:
    """Return settings as a pod has them."""
    if namespace is None:
        namespace = _NAMESPACE_FILE.read_text().strip() if _NAMESPACE_FILE.exists() else "default"
    holder = os.environ.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}"
    return OperatorConfig(image=image, namespace=namespace, holder=holder)


def run(config: OperatorConfig) -> None:
    """Run the operator until SIGTERM or SIGINT."""
    asyncio.run(_Operator(config).run())


class _Operator:
    def __init__(self, config: OperatorConfig) -> None:
        self._config = config
        self._queue: WorkQueue[_Key] = WorkQueue()
        self._acts = asyncio.Event()
        self._known: set[_Key] = set()

    async def run(self) -> None:
        api, brokers = Api.connect(), Brokers()
        lease = OperatorLease(api, self._config.namespace, self._config.holder, self._on_lease)
        self._lease = lease
        clusters = ClusterReconciler(api, brokers, self._config.image)
        topics = TopicsReconciler(api, brokers)
        self._reconcile: dict[str, Callable[[str, str], Awaitable[float | None]]] = {
            "cluster": clusters.reconcile,
            "topics": topics.reconcile,
        }
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        watching = asyncio.create_task(
            kopf.operator(
                registry=handlers.registry(self._on_event),
                settings=handlers.settings(),
                clusterwide=True,
                standalone=True,
                stop_flag=stop,
            )
        )
        workers = [asyncio.create_task(self._work()) for _ in range(WORKERS)]
        renewing = asyncio.create_task(lease.run())
        try:
            await watching
        finally:
            for task in (renewing, *workers):
                task.cancel()
            await asyncio.gather(renewing, *workers, return_exceptions=True)
            await lease.give_back()
            await brokers.close()
            api.close()

    def _on_event(self, work: str, namespace: str, name: str) -> None:
        key = _Key(work, namespace, name)
        self._known.add(key)
        self._queue.add(key)

    def _on_lease(self, is_held: bool) -> None:
        _log.info("this operator acts" if is_held else "another operator acts")
        if is_held:
            self._acts.set()
            for key in self._known:  # What the one before left undone.
                self._queue.add(key)
        else:
            self._acts.clear()

    async def _work(self) -> None:
        while True:
            await self._acts.wait()
            key = await self._queue.get()
            if not self._lease.is_held:
                self._queue.done(key, None)  # Whoever acts has heard of it, too.
                continue
            try:
                again_after_s = await self._reconcile[key.work](key.namespace, key.name)
            except Exception as error:
                pause_s = self._queue.failed(key)
                expected = isinstance(error, ApiError)
                _log.warning(
                    "could not be reconciled, and is tried again",
                    extra={"key": "/".join(key), "why": str(error), "pause_s": pause_s},
                    exc_info=None if expected else error,
                )
            else:
                self._queue.done(key, again_after_s)
                if again_after_s is None:
                    self._known.discard(key)
