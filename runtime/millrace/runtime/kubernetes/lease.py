"""A lease as a Lease of `coordination.k8s.io`: of a cluster's controller, or of the operator.

The annotations count: they have all fields of the record, also the version, which no field of the
resource can express. A holder of an earlier release leaves those that it does not know as the one
before wrote them; so the address by TLS is there with the version that it was written with.

`spec` shows the same to people (`kubectl get lease`). Only its holder is read, so that a person can
take the lease away by hand: such a write counts as a version. Times are written for people and
never read: each observer judges expiry by its own clock (P38). `leaseTransitions` starts over with
a new Lease and means nothing either (P35).

The holder of a deleted Lease creates it again under the next version, or another one does when the
lease has run out; the API server accepts one of them.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Final

from millrace.core.controller.lease import NOBODY, LeaseRecord
from millrace.runtime import host
from millrace.runtime.kubernetes.api_server import Answer
from millrace.runtime.kubernetes.resources import Resource

_PREFIX: Final = "millrace.dev/"
_TLS_VERSION: Final = f"{_PREFIX}tls-address-version"


@dataclass(slots=True)
class _Stored:
    """The lease as it was last read or written."""

    record: LeaseRecord | None
    metadata: dict[str, Any]
    spec: dict[str, Any]


_ABSENT: Final = _Stored(None, {}, {})


class KubernetesLease:
    """One Lease, read and written. Used by one thread at a time.

    Args:
        request: sends method, path and body, and returns the answer.
        resource: the Lease.
        labels: that it gets, beside those of others.
        refused: makes the error of an answer that is none of those of an election.
    """

    def __init__(
        self,
        request: Callable[[str, str, bytes | None], Answer],
        resource: Resource,
        labels: Mapping[str, str],
        refused: Callable[[Answer], Exception],
    ) -> None:
        self._request = request
        self._resource = resource
        self._labels = labels
        self._refused = refused
        self._latest: _Stored | None = None  # None: not known.

    def read(self) -> LeaseRecord | None:
        """Return the lease as it is stored; None: there is none."""
        self._latest = None
        answer = self._request("GET", self._resource.path, None)
        if answer.status == 404:
            self._latest = _ABSENT
        elif answer.is_success:
            self._latest = _stored(answer.document)
        else:
            raise self._refused(answer)
        return self._latest.record

    def compare_and_swap(self, new: LeaseRecord) -> bool:
        """Replace the version of the lease before; False when another one is stored."""
        if self._latest is None:
            self.read()
        latest, self._latest = self._latest, None
        assert latest is not None
        if latest.record is None:
            answer = self._request("POST", self._resource.collection, self._body(new, latest))
        elif latest.record.version == new.version - 1:
            answer = self._request("PUT", self._resource.path, self._body(new, latest))
        else:
            return False
        if answer.is_success:
            self._latest = _stored(answer.document)
            return True
        if answer.status == 409 or (answer.status == 404 and latest.record is not None):
            return False  # Another one was first, or it was deleted.
        raise self._refused(answer)

    def _body(self, new: LeaseRecord, latest: _Stored) -> bytes:
        wall_s = host.current.wall_ns() / 1e9
        now = datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        old = latest.record
        spec = {
            "leaseDurationSeconds": max(1, -(-new.duration_ms // 1000)),
            "renewTime": now,
            "acquireTime": latest.spec.get("acquireTime", now),
            "leaseTransitions": latest.spec.get("leaseTransitions", 0),
        }
        if new.holder != NOBODY:  # An empty name is no valid one.
            spec["holderIdentity"] = new.holder
        if old is None or old.holder != new.holder:
            spec["acquireTime"] = now
            spec["leaseTransitions"] += old is not None
        metadata = {
            **latest.metadata,
            "name": self._resource.name,
            "namespace": self._resource.namespace,
            "labels": {**latest.metadata.get("labels", {}), **self._labels},
            "annotations": {**latest.metadata.get("annotations", {}), **_annotations(new)},
        }
        document = {
            "apiVersion": self._resource.kind.api_version,
            "kind": self._resource.kind.name,
            "metadata": metadata,
            "spec": spec,
        }
        return json.dumps(document).encode("ascii")


def _annotations(record: LeaseRecord) -> dict[str, str]:
    found = {_annotation(field.name): str(getattr(record, field.name)) for field in fields(record)}
    return {**found, _TLS_VERSION: str(record.version)}


def _annotation(field_name: str) -> str:
    return _PREFIX + field_name.replace("_", "-")


def _stored(document: dict[str, Any]) -> _Stored:
    metadata = {key: value for key, value in document["metadata"].items() if key != "managedFields"}
    spec = document.get("spec") or {}
    return _Stored(_record(metadata.get("annotations") or {}, spec), metadata, spec)


def _record(annotations: dict[str, str], spec: dict[str, Any]) -> LeaseRecord:
    holder = spec.get("holderIdentity") or NOBODY
    # An earlier release wrote neither incarnation nor address by TLS, and its lease is valid, too.
    annotations = {_annotation("incarnation"): "", **annotations}
    if annotations.get(_TLS_VERSION) != annotations.get(_annotation("version")):
        annotations[_annotation("tls_address")] = ""
    values: dict[str, Any] = {}
    try:
        for field in fields(LeaseRecord):
            text = annotations[_annotation(field.name)]
            values[field.name] = text if field.type is str else int(text)
    except (KeyError, ValueError):
        # Another program wrote it: it protects nobody, and may be taken at once.
        return LeaseRecord(holder=holder, address="", duration_ms=0, version=1)
    record = LeaseRecord(**values)
    if record.holder != holder:  # Taken away, or given back, by hand.
        record = replace(
            record,
            holder=holder,
            address="",
            version=record.version + 1,
            incarnation="",
            tls_address="",
        )
    return record
