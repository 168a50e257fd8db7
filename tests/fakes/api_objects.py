"""An API server for the operator that has some objects in memory, and keeps what is written."""

from collections.abc import Mapping

from millrace.operator.kube.api import Api, ApiError
from millrace.operator.model.objects import Document
from millrace.runtime.kubernetes.resources import Kind


class FakeApi(Api):
    """Objects by name. It checks only the versions of objects, and answers at once.

    Attributes:
        objects: by kind, namespace and name; tests may change them.
        refusals: kinds that it refuses to show, each with the status and the message.
        told: the messages of Events.
    """

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str | None, str], Document] = {}
        self.told: list[str] = []
        self.refusals: dict[str, tuple[int, str]] = {}
        self._writes = 0

    def put(self, document: Document) -> None:
        """Make an object, or replace it."""
        metadata = document["metadata"]
        key = document["kind"], metadata.get("namespace"), metadata["name"]
        self.objects[key] = document

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Document | None:
        """See `Api`."""
        if kind.name in self.refusals:
            status, message = self.refusals[kind.name]
            raise ApiError(status, message, request=f"GET {kind.path(namespace, name)}")
        return self.objects.get((kind.name, namespace, name))

    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
        *,
        is_metadata_enough: bool = False,
    ) -> list[Document]:
        """Return all objects of a kind."""
        return [document for (name, *_), document in self.objects.items() if name == kind.name]

    async def apply(self, document: Document, *, subresource: str = "") -> Document:
        """Write a status, or an object, whose owners are those before and those given."""
        metadata = document["metadata"]
        key = document["kind"], metadata["namespace"], metadata["name"]
        if subresource:
            self.objects[key]["status"] = document["status"]
            return self.objects[key]
        found = self.objects.get(key, {})
        before = found.get("metadata", {})
        if metadata.get("resourceVersion", before.get("resourceVersion")) != before.get(
            "resourceVersion"
        ):
            raise ApiError(409, "the object has been modified", request=f"PATCH {key}")
        self._writes += 1
        owners = {
            owner["uid"]: owner
            for owner in (*before.get("ownerReferences", ()), *metadata["ownerReferences"])
        }
        kept = {"uid": f"{self._writes}", **before, **metadata}
        version = {"resourceVersion": f"v{self._writes}", "ownerReferences": [*owners.values()]}
        self.objects[key] = {**found, **document, "metadata": kept | version}
        return self.objects[key]

    async def patch(
        self, kind: Kind, namespace: str | None, name: str, change: Document
    ) -> Document:
        """Merge a change; an object that is deleted goes with its last finalizer."""
        key = kind.name, namespace, name
        found = self.objects[key] = _merged(self.objects[key], change)
        if "deletionTimestamp" in found["metadata"] and not found["metadata"].get("finalizers"):
            del self.objects[key]
        return found

    async def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        uid: str,
        version: str | None = None,
        orphan: bool = False,
    ) -> None:
        """Delete an object at once."""
        found = self.objects.get((kind.name, namespace, name))
        if found is not None and found["metadata"]["uid"] == uid:
            del self.objects[kind.name, namespace, name]

    async def record(self, about: Document, *, reason: str, message: str, now: str) -> None:
        """Remember what is told."""
        self.told.append(message)


def _merged(before: Document, change: Document) -> Document:
    found = dict(before)
    for name, value in change.items():
        if isinstance(value, dict):
            found[name] = _merged(found.get(name) or {}, value)
        elif value is None:
            found.pop(name, None)
        else:
            found[name] = value
    return found
