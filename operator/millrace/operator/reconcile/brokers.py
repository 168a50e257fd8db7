"""Answers of a cluster's brokers, by one administration client for each cluster."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from millrace.client import Admin, ClusterDescription, TopicDescription
from millrace.core.errors import MillraceError
from millrace.core.metadata.model import Reluctance
from millrace.operator.model.bootstrap import bootstrap_address, tls_bootstrap_address
from millrace.operator.model.cluster import Cluster
from millrace.operator.plan.rolling import PartitionHealth
from millrace.operator.plan.scaling import Member, Placed
from millrace.operator.plan.security import Secured
from millrace.runtime.certificates import new_authority

_REQUEST_TIMEOUT_MS = 10_000


@dataclass(frozen=True, slots=True)
class Found:
    """The brokers' description of the cluster."""

    cluster: ClusterDescription
    topics: Mapping[str, TopicDescription]

    @property
    def names(self) -> dict[int, str]:
        """The brokers' names by id."""
        return {broker.broker_id: broker.name for broker in self.cluster.brokers}

    @property
    def controller(self) -> str | None:
        """Name of the broker that is the controller; None: there is none now."""
        return self.names.get(self.cluster.controller_id)

    @property
    def fenced(self) -> frozenset[str]:
        """Names of brokers that the controller takes for dead."""
        return frozenset(broker.name for broker in self.cluster.brokers if broker.is_fenced)

    @property
    def settling(self) -> frozenset[str]:
        """Names of brokers that clients may not find yet."""
        return frozenset(
            broker.name
            for broker in self.cluster.brokers
            if broker.reluctance == Reluctance.NEW_ADDRESS and not broker.is_fenced
        )

    def members(self) -> list[Member]:
        """Return the brokers for the plan of their number."""
        return [
            Member(
                broker_id=broker.broker_id,
                name=broker.name,
                zone=broker.rack,
                is_fenced=broker.is_fenced,
                is_drained=broker.is_drained,
                media=broker.media,
            )
            for broker in self.cluster.brokers
        ]

    def placed(self) -> list[Placed]:
        """Return the brokers that hold each partition when all moves are done."""
        return [
            Placed(
                place=(topic.name, partition.partition),
                replicas=partition.target_replicas,
                holders=partition.replicas,
                adding=partition.adding_replicas,
                is_moving=partition.is_reassigning,
                is_internal=topic.is_internal,
                media=topic.media,
            )
            for topic in self.topics.values()
            for partition in topic.partitions
        ]

    def partitions(self) -> list[PartitionHealth]:
        """Return all partitions, by names of brokers."""
        names = self.names
        return [
            PartitionHealth(
                place=f"{topic.name}-{partition.partition}",
                replicas=[names.get(broker, str(broker)) for broker in partition.replicas],
                in_sync=[names.get(broker, str(broker)) for broker in partition.isr],
                min_in_sync=topic.min_insync_replicas(partition),
            )
            for topic in self.topics.values()
            for partition in topic.partitions
        ]


@dataclass(frozen=True, slots=True)
class Way:
    """How the operator reaches the brokers of a cluster.

    Attributes:
        address: where it connects first.
    """

    address: str
    has_tls: bool
    has_token: bool


def way_to(cluster: Cluster, secured: Secured) -> Way:
    """Return how to reach brokers that may be a step apart.

    Args:
        cluster: as its brokers are to be now.
        secured: what they are by now.
    """
    has_tls = secured.has_tls
    address = bootstrap_address(cluster)
    if has_tls and secured.has_both:
        address = tls_bootstrap_address(cluster)
    return Way(address, has_tls, has_tls and cluster.spec.access is not None)


class Brokers:
    """The brokers of all clusters."""

    def __init__(self) -> None:
        self._admins: dict[tuple[str, str], Admin] = {}
        self._ways: dict[tuple[str, str], Way] = {}
        self._folder: TemporaryDirectory[str] | None = None

    def admin(self, cluster: Cluster) -> Admin:
        """Return the client for a cluster. It is kept, and connects when it is used."""
        key = (cluster.namespace, cluster.name)
        if key not in self._admins:
            # Before the first look at a cluster, by what it asks for.
            way = self._ways.get(key) or Way(
                bootstrap_address(cluster),
                has_tls=cluster.spec.tls is not None,
                has_token=cluster.spec.access is not None,
            )
            self._admins[key] = Admin(
                way.address,
                client_id="millrace-operator",
                request_timeout_ms=_REQUEST_TIMEOUT_MS,
                tls_ca_file=str(self._authorities(cluster)) if way.has_tls else "",
                token_file=str(self._file(cluster, "token")) if way.has_token else "",
            )
        return self._admins[key]

    async def reach(self, cluster: Cluster, way: Way) -> None:
        """Reach a cluster's brokers in this way from now on."""
        key = (cluster.namespace, cluster.name)
        if self._ways.get(key) != way:
            self._ways[key] = way
            await self._close(key)

    def trust(self, cluster: Cluster, bundle: bytes) -> None:
        """Trust these authorities of a cluster's brokers; its client notices when they change.

        Args:
            bundle: in PEM form; empty: none is known yet.
        """
        file = self._authorities(cluster)
        if bundle and file.read_bytes() != bundle:
            _write(file, bundle)

    def _authorities(self, cluster: Cluster) -> Path:
        """Return the file of the authorities of a cluster's brokers, which is there."""
        file = self._file(cluster, "crt")
        if not file.exists():
            # One that has signed nothing: so no broker is believed until the authorities are known.
            _write(file, new_authority("none", days=1).certificate)
        return file

    def show(self, cluster: Cluster, token: str) -> None:
        """Show this token to a cluster's brokers from now on."""
        _write(self._file(cluster, "token"), token.encode("ascii"))

    def _file(self, cluster: Cluster, kind: str) -> Path:
        """Return the path of a file of a cluster's client, in a folder that only we may read."""
        return self._path(cluster.namespace, cluster.name, kind)

    def _path(self, namespace: str, name: str, kind: str) -> Path:
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="millrace-operator-")
        return Path(self._folder.name, f"{namespace}.{name}.{kind}")

    async def find(self, cluster: Cluster) -> Found | None:
        """Return the brokers' answer; None: none of them answers in time."""
        admin = self.admin(cluster)
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_MS / 1000):
                cluster_now = await admin.describe_cluster()
                # A topic that was left out would look like one that no broker holds.
                return Found(cluster_now, await admin.describe_topics(none_hidden=True))
        except (MillraceError, TimeoutError):
            return None

    async def forget(self, namespace: str, name: str) -> None:
        """Close the client of a cluster that is gone, and remove its files: they are in memory."""
        self._ways.pop((namespace, name), None)
        await self._close((namespace, name))
        if self._folder is not None:
            for kind in ("crt", "token"):
                self._path(namespace, name, kind).unlink(missing_ok=True)

    async def _close(self, key: tuple[str, str]) -> None:
        admin = self._admins.pop(key, None)
        if admin is not None:
            await admin.close()

    async def close(self) -> None:
        """Close all clients."""
        for key in list(self._admins):
            await self._close(key)
        if self._folder is not None:
            self._folder.cleanup()


def _write(file: Path, content: bytes) -> None:
    """Replace a file at once: the client may read it at any moment."""
    other = file.with_suffix(".new")
    other.write_bytes(content)
    other.replace(file)
