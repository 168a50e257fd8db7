"""An API server for the operator that has some objects in memory, and keeps what is written."""

from collections.abc import Mapping

from millrace.operator.kube.api import Api
from millrace.operator.model.objects import Document
from millrace.runtime.kubernetes.resources import Kind


class FakeApi(Api):
    """Objects by name. It checks nothing, and answers at once.

    Attributes:
        objects: by kind, namespace and name; tests may change them.
    """

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str | None, str], Document] = {}

    def put(self, document: Document) -> None:
        """Make an object, or replace it."""
        metadata = document["metadata"]
        key = document["kind"], metadata.get("namespace"), metadata["name"]
        self.objects[key] = document

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Document | None:
        """See `Api`."""
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
        """Write a status."""
        assert subresource == "status"
        metadata = document["metadata"]
        found = self.objects[document["kind"], metadata["namespace"], metadata["name"]]
        found["status"] = document["status"]
        return found

    async def patch(
        self, kind: Kind, namespace: str | None, name: str, change: Document
    ) -> Document:
        """Change metadata; an object that is deleted goes with its last finalizer."""
        found = self.objects[kind.name, namespace, name]
        found["metadata"] |= change["metadata"]
        if "deletionTimestamp" in found["metadata"] and not found["metadata"].get("finalizers"):
            del self.objects[kind.name, namespace, name]
        return found
