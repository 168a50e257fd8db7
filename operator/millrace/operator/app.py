"""The operator's process: receives changes, holds the Lease, and works through the queue.

Watches only make it sooner: a look at everything every few minutes finds the same changes.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import kopf

from millrace.operator import events, handlers
from millrace.operator.kube.api import Api, ApiError
from millrace.operator.kube.kinds import CLUSTER, QUOTA, TOPIC
from millrace.operator.kube.lease import OperatorLease
from millrace.operator.model.objects import Document
from millrace.operator.queue import WorkQueue
from millrace.operator.reconcile.access import OwnAccount
from millrace.operator.reconcile.brokers import Brokers
from millrace.operator.reconcile.cluster import ClusterReconciler
from millrace.operator.reconcile.quotas import QuotasReconciler
from millrace.operator.reconcile.references import cluster_key
from millrace.operator.reconcile.topics import TopicsReconciler
from millrace.operator.telemetry import (
    FILES_VARIABLES,
    NAMES_VARIABLE,
    PORT,
    OperatorMetrics,
    Signs,
    serve_telemetry,
)
from millrace.operator.worker import Key, Worker
from millrace.runtime.kubernetes.access import as_kubectl
from millrace.runtime.page_guard import PageFiles
from millrace.runtime.streams import run_until_first

_log = logging.getLogger(__name__)

WORKERS: Final = 4
"""How many clusters are worked on side by side."""
RESYNC_S: Final = 300
"""Pause between two looks at all resources."""
_SILENT_S_MAX: Final = 60
"""How long a part of the operator may show no sign of life."""
_WATCHES: Final = "watches"
ACCOUNT_VARIABLE: Final = "MILLRACE_OPERATOR_SERVICE_ACCOUNT"
"""Variable with the name of the pod's ServiceAccount."""
_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, kw_only=True)
class OperatorConfig:
    """Settings of the operator.

    Attributes:
        image: of brokers, if a Cluster names none.
        namespace: of the Lease.
        holder: name of this process in the Lease.
        port: of metrics and probes.
        account: name of its ServiceAccount in that namespace; empty: it runs in no pod.
        page_names: names under which these are asked for besides this machine's, with commas.
        page_files: what guards metrics.
    """

    image: str
    namespace: str
    holder: str
    account: str = ""
    port: int = PORT
    page_names: str = ""
    page_files: PageFiles = field(default_factory=PageFiles)


def config_from_environment(image: str, namespace: str | None) -> OperatorConfig:
    """Return settings from a pod's environment."""
    if namespace is None:
        namespace = _NAMESPACE_FILE.read_text().strip() if _NAMESPACE_FILE.exists() else "default"
    holder = os.environ.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}"
    names = os.environ.get(NAMES_VARIABLE, "")
    account = os.environ.get(ACCOUNT_VARIABLE, "")
    files = {field: os.environ.get(name, "") for field, name in FILES_VARIABLES.items()}
    return OperatorConfig(
        image=image,
        namespace=namespace,
        holder=holder,
        account=account,
        page_names=names,
        page_files=PageFiles(**files),
    )


def run(config: OperatorConfig, stop_signals: Sequence[signal.Signals]) -> None:
    """Run the operator until one of the signals comes, which stops it gracefully."""
    logging.getLogger("kopf").setLevel(logging.WARNING)
    asyncio.run(Operator(config).run(stop_signals))


class Operator:
    """One process of the operator."""

    def __init__(self, config: OperatorConfig) -> None:
        self._config = config
        self._queue: WorkQueue[Key] = WorkQueue()
        self._queue.is_open = False  # Until this operator acts.
        self._metrics = OperatorMetrics()
        self._signs = Signs()
        self._metrics.waiting.set_function(lambda: len(self._queue))
        self._access = as_kubectl()
        self._api = Api(
            self._access, lambda method: self._metrics.api_requests.labels(method).inc()
        )
        self._lease = OperatorLease(self._api, config.namespace, config.holder, self._on_lease)
        self._acts = asyncio.Event()
        self._heard: dict[str, int] = {}
        """The newest generation of each resource that a watch told of, by uid."""
        self._listed: dict[str, int] = {}
        """Likewise, that the last look at all resources found."""

    async def run(self, stop_signals: Sequence[signal.Signals]) -> None:
        """Run until one of the signals comes."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in stop_signals:
            loop.add_signal_handler(number, stop.set)
        async with AsyncExitStack() as endings:
            page = serve_telemetry(
                self._metrics,
                self._signs,
                self._config.port,
                self._config.page_names,
                self._config.page_files,
            )
            endings.callback(page.close)
            endings.callback(self._api.close)
            brokers = Brokers()
            endings.push_async_callback(brokers.close)
            name = self._config.account
            account = OwnAccount(namespace=self._config.namespace, name=name) if name else None
            clusters = ClusterReconciler(
                self._api,
                brokers,
                self._config.image,
                account=account,
                on_formed=self._on_formed,
            )
            topics = TopicsReconciler(self._api, brokers)
            quotas = QuotasReconciler(self._api, brokers)
            looks = {
                "cluster": clusters.reconcile,
                "topics": topics.reconcile,
                "quotas": quotas.reconcile,
            }
            worker = Worker(self._queue, self._metrics, lambda: self._lease.is_held, looks)
            endings.push_async_callback(self._lease.give_back)
            watches = kopf.operator(
                registry=handlers.registry(self._access, self._on_event, self._on_heard),
                settings=handlers.settings(),
                clusterwide=True,
                standalone=True,
                stop_flag=stop,
            )
            # Only watches end by themselves. Should anything else fail, the process ends with it.
            workers = (worker.run() for _ in range(WORKERS))
            await run_until_first(
                watches, self._lease.run(), self._resync(), self._live(), *workers
            )

    def _on_event(self, work: str, namespace: str, name: str) -> None:
        self._queue.add(Key(work, namespace, name))

    def _on_heard(self, uid: str, generation: int) -> bool:
        is_new = self._heard.get(uid) != generation
        self._heard[uid] = generation
        return is_new

    def _on_formed(self, namespace: str, name: str, is_formed: bool | None) -> None:
        if self._acts.is_set():  # Else the other operator shows it.
            self._metrics.show_formed(namespace, name, is_formed)

    def _on_lease(self, is_held: bool) -> None:
        (events.OPERATOR_ACTS if is_held else events.OPERATOR_WAITS).log(_log)
        self._metrics.acts.set(is_held)
        if is_held:
            self._acts.set()
        else:
            self._acts.clear()
            self._metrics.keep_only(())
            self._signs.forget(_WATCHES)  # They are judged only while this operator acts.
        self._queue.is_open = is_held

    async def _live(self) -> None:
        while True:
            self._signs.give("event loop", _SILENT_S_MAX)
            self._signs.is_ready = self._lease.is_known
            await asyncio.sleep(1)

    async def _resync(self) -> None:
        """Look at everything when this operator begins to act, and every few minutes."""
        while True:
            await self._acts.wait()
            try:
                clusters, topics, quotas = [
                    await self._api.list(kind) for kind in (CLUSTER, TOPIC, QUOTA)
                ]
            except ApiError as error:
                events.RESOURCES_NOT_LISTED.log(_log, error=str(error))
                await asyncio.sleep(_SILENT_S_MAX / 10)
                continue
            self._judge_watches([*clusters, *topics, *quotas])
            metadata = [cluster["metadata"] for cluster in clusters]
            found = [Key("cluster", named["namespace"], named["name"]) for named in metadata]
            for work, resources in (("topics", topics), ("quotas", quotas)):
                found += [Key(work, *key) for key in sorted(set(map(cluster_key, resources)))]
            for key in found:
                self._on_event(*key)
            self._metrics.keep_only(found)
            await asyncio.sleep(RESYNC_S)

    def _judge_watches(self, listed: list[Document]) -> None:
        """Count watches as alive unless they have missed a change that the last look found."""
        metadata = [resource["metadata"] for resource in listed]
        generations = {found["uid"]: found["generation"] for found in metadata}
        missed = any(self._heard.get(uid, 0) < self._listed.get(uid, 0) for uid in generations)
        if self._acts.is_set() and not missed:
            self._signs.give(_WATCHES, 2 * RESYNC_S)
        self._heard = {uid: heard for uid, heard in self._heard.items() if uid in generations}
        self._listed = generations
