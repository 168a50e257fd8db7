"""The coordination store of a cluster on Kubernetes (docs/design/metadata.md).

Every object of the store is one custom resource, written whole and only over the resource version
that was read (P36). The API server checks once more by its own rules (`crds/`) that versions are
counted one by one and that controller epochs never go back. Reads ask the API server for the stored
objects, never for cached ones.

Writes that are given together are sent in parallel, a bounded number at a time. A lost or
meaningless answer is reported as such: the caller reads and decides, nothing is repeated here
(F43).

An object that this process has seen and that is gone, or has gone back, was deleted or restored by
a person: that is an error, and never a reason to start over (F41, F45). Neither that, nor
definitions that are gone or refuse this release's writes, end the process: an operator can repair
all of it, and serving does not need it.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from millrace.broker.coordination.kubernetes.api import METADATA, KubernetesApi
from millrace.broker.coordination.kubernetes.resources import ClusterResources
from millrace.broker.coordination.kubernetes.side_by_side import SideBySide
from millrace.broker.coordination.kubernetes.watch import LeaseWatcher
from millrace.broker.coordination.store import (
    CoordinationObjectTooLargeError,
    CoordinationStoreError,
    always,
)
from millrace.core.controller.lease import LeaseRecord
from millrace.core.errors import InvalidConfigError
from millrace.core.ids import ControllerEpoch
from millrace.core.metadata.model import CLUSTER_KEY
from millrace.core.metadata.objects.stored_object import CorruptMetadataError, StoredObject
from millrace.runtime.kubernetes.access import ApiAccess
from millrace.runtime.kubernetes.api_server import Answer, Connect, connect
from millrace.runtime.kubernetes.lease import KubernetesLease
from millrace.runtime.kubernetes.resources import Resource

REQUESTS_IN_FLIGHT_MAX: Final = 8
"""Objects written or read in parallel; the metadata has 33."""


@dataclass(slots=True)
class _Known:
    """This process's knowledge of a stored object.

    Attributes:
        version: the highest that was seen.
        controller_epoch: likewise.
        metadata: of that version, resource version included; None when it may be stale.
    """

    version: int
    controller_epoch: int
    metadata: dict[str, Any] | None


class KubernetesStore:
    """The resources of one cluster as a store. One thread at a time calls the methods about
    objects, and another one those about the lease.

    Args:
        access: to the API server.
        connect: opens connections to it.
        cluster_name: names the resources.
        namespace: of the resources; empty: the default of `access`.
        request_timeout_ms: for each request.
        requests_in_flight_max: how many writes, or reads, are sent in parallel.
        object_bytes_max: the largest object, as it is sent. etcd takes 1.5 MiB by default.
        lease_pause_ms_max: the longest pause of lease requests that the API server may ask for:
            well within the holder's renew deadline.
    """

    def __init__(
        self,
        access: ApiAccess,
        connect: Connect = connect,
        *,
        cluster_name: str,
        namespace: str = "",
        request_timeout_ms: int = 1500,
        requests_in_flight_max: int = REQUESTS_IN_FLIGHT_MAX,
        object_bytes_max: int = 1_500_000,
        lease_pause_ms_max: int = 1000,
    ) -> None:
        api = partial(KubernetesApi, access, connect, request_timeout_ms=request_timeout_ms)
        self._resources = ClusterResources(namespace or access.namespace, cluster_name)
        self._object_bytes_max = object_bytes_max
        self._known: dict[str, _Known] = {}
        self._api = api(connections_max=requests_in_flight_max)
        self._calls = SideBySide("kubernetes-object", requests_in_flight_max)
        # With connections and pauses of its own, so that no object's write costs the lease. Nor
        # does a long pause: one or two requests a second are no burden for the API server.
        self._lease_api = api(connections_max=1, pause_ms_max=lease_pause_ms_max)
        lease = self._resources.lease
        self._lease = KubernetesLease(
            self._lease_api.request, lease, self._resources.labels, partial(_lease_refused, lease)
        )
        self._watcher = LeaseWatcher(api(connections_max=1), lease)

    def read_all(self, keys: Sequence[str]) -> list[StoredObject | None]:
        """See `CoordinationStore`."""
        # Each once: the older of two answers about one object may come last.
        distinct = list(dict.fromkeys(keys))
        found = dict(zip(distinct, self._calls.make(self._read, distinct), strict=True))
        return [found[key] for key in keys]

    def compare_and_swap_all(
        self, writes: Sequence[tuple[str, StoredObject]], may_write: Callable[[], bool] = always
    ) -> list[bool]:
        """See `CoordinationStore`. Writes of one object are sent in their order.

        Raises:
            CoordinationObjectTooLargeError: nothing was written.
        """
        requests = [(key, new, self._spec(key, new)) for key, new in writes]
        outcomes = [False] * len(writes)
        by_key: dict[str, list[int]] = {}
        for index, (key, _) in enumerate(writes):
            by_key.setdefault(key, []).append(index)

        def swap_in_order(indices: list[int]) -> None:
            for index in indices:
                outcomes[index] = self._swap(*requests[index], may_write)

        self._calls.make(swap_in_order, by_key.values())
        return outcomes

    def read_lease(self) -> LeaseRecord | None:
        """See `CoordinationStore`."""
        return self._lease.read()

    def compare_and_swap_lease(self, new: LeaseRecord) -> bool:
        """See `CoordinationStore`. A Lease that is gone is made again under any version."""
        return self._lease.compare_and_swap(new)

    def lease_mark(self) -> int:
        """See `CoordinationStore`."""
        return self._watcher.events

    def watch_lease(self, on_change: Callable[[], None]) -> bool:
        """See `CoordinationStore`."""
        self._watcher.on_event = on_change
        return True

    def close(self) -> None:
        """See `CoordinationStore`."""
        self._watcher.close()
        self._calls.close()
        self._api.close()
        self._lease_api.close()

    def _read(self, key: str) -> StoredObject | None:
        resource = self._resources.objects[key]
        answer = self._api.request("GET", resource.path)
        known = self._known.get(key)
        if answer.status == 404:
            if not _is_absent(answer, resource):
                raise _not_installed(answer)
            if known is not None:
                raise _gone(resource)
            return None
        if not answer.is_success:
            raise _refused(resource, answer)
        stored = _stored(resource, answer.document)
        if known is not None and (
            stored.version < known.version or stored.controller_epoch < known.controller_epoch
        ):
            raise CorruptMetadataError(
                f"{resource} went back from version {known.version} of controller epoch "
                f"{known.controller_epoch} to version {stored.version} of "
                f"{stored.controller_epoch}: it was replaced by an old one. Restore the newest "
                "backup; nothing was changed"
            )
        self._learn(key, stored, answer.document["metadata"])
        return stored

    def _swap(self, key: str, new: StoredObject, spec: str, may_write: Callable[[], bool]) -> bool:
        resource = self._resources.objects[key]
        known = self._known.get(key)
        if new.version == 1:
            if known is not None or not may_write():
                return False
            answer = self._write("POST", resource, self._birthright(key), spec)
        else:
            if known is None or known.metadata is None or known.version != new.version - 1:
                self._read(key)
                known = self._known.get(key)
            if known is None or known.version != new.version - 1 or not may_write():
                return False
            assert known.metadata is not None
            answer = self._write("PUT", resource, known.metadata, spec)
        if answer.is_success:
            self._learn(key, new, answer.document["metadata"])
            return True
        if known is not None:
            known.metadata = None
        if answer.status == 409:  # Another resource version, or it exists.
            return False
        if answer.status == 404:
            is_gone = known is not None and _is_absent(answer, resource)
            raise _gone(resource) if is_gone else _not_installed(answer)
        if answer.status == 422:
            # By a rule of the definition: against a controller that was replaced, or against this
            # release. In the second case retries would never end.
            stored = self._read(key)
            if stored is not None and (
                stored.version != new.version - 1 or stored.controller_epoch > new.controller_epoch
            ):
                return False
        raise _refused(resource, answer)

    def _birthright(self, key: str) -> dict[str, Any]:
        """Return the metadata of a new object: shards are deleted with the cluster's state."""
        if key == CLUSTER_KEY:
            return {}
        state = self._resources.objects[CLUSTER_KEY]
        answer = self._api.request("GET", state.path, accept=METADATA)
        owners = (answer.document.get("metadata") or {}).get("ownerReferences")
        return {"ownerReferences": owners} if owners else {}

    def _write(
        self, method: str, resource: Resource, metadata: dict[str, Any], spec: str
    ) -> Answer:
        rest = {
            "apiVersion": resource.kind.api_version,
            "kind": resource.kind.name,
            "metadata": {
                **metadata,  # Labels, owners and finalizers of others stay.
                "name": resource.name,
                "namespace": resource.namespace,
                "labels": {**metadata.get("labels", {}), **self._resources.labels},
            },
        }
        body = f'{{"spec":{spec},{json.dumps(rest)[1:]}'
        path = resource.collection if method == "POST" else resource.path
        return self._api.request(method, path, body.encode("ascii"), accept=METADATA)

    def _spec(self, key: str, new: StoredObject) -> str:
        """Return the object to store as JSON."""
        assert new.version >= 1
        spec = {
            "controllerEpoch": new.controller_epoch,
            "version": new.version,
            "state": new.value.decode("ascii"),
        }
        text = json.dumps(spec)
        if len(text) > self._object_bytes_max:
            raise CoordinationObjectTooLargeError(
                f"{self._resources.objects[key]} would have {len(text)} bytes, more than "
                f"coordination.kubernetes.object_bytes_max = {self._object_bytes_max}: there are "
                "too many partitions or topic settings in it. Delete topics, or raise this limit, "
                "etcd's --max-request-bytes and maxLength in crds/; nothing was written"
            )
        return text

    def _learn(self, key: str, stored: StoredObject, metadata: dict[str, Any]) -> None:
        self._known[key] = _Known(
            stored.version,
            stored.controller_epoch,
            {name: value for name, value in metadata.items() if name != "managedFields"},
        )


def _stored(resource: Resource, document: dict[str, Any]) -> StoredObject:
    try:
        spec = document["spec"]
        return StoredObject(
            spec["state"].encode("utf-8"),
            int(spec["version"]),
            ControllerEpoch(int(spec["controllerEpoch"])),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CorruptMetadataError(
            f"{resource} is not an object of Millrace ({error!r}): restore a backup, and apply the "
            "custom resource definitions of this release; nothing was changed"
        ) from error


def _is_absent(answer: Answer, resource: Resource) -> bool:
    """Whether the object is missing, rather than its kind."""
    return (answer.document.get("details") or {}).get("name") == resource.name


def _gone(resource: Resource) -> CorruptMetadataError:
    return CorruptMetadataError(
        f"{resource} was deleted: restore it from a backup. It is not created again, as the "
        "cluster's topics would be lost"
    )


def _not_installed(answer: Answer) -> InvalidConfigError:
    return InvalidConfigError(
        f"the API server does not know our resources ({answer.message}): install the custom "
        "resource definitions (kubectl apply --server-side -k crds), and check that "
        "coordination.kubernetes.namespace exists"
    )


def _lease_refused(resource: Resource, answer: Answer) -> Exception:
    if answer.status == 404:
        return InvalidConfigError(
            f"{resource} cannot be written: {answer.message}. Create the namespace, or correct "
            "coordination.kubernetes.namespace"
        )
    return CoordinationStoreError(
        f"the API server refuses {resource} with {answer.status}: {answer.message}"
    )


def _refused(resource: Resource, answer: Answer) -> CorruptMetadataError:
    return CorruptMetadataError(
        f"the API server refuses {resource} with {answer.status}: {answer.message}. Apply the "
        "custom resource definitions of this release; nothing was changed"
    )
