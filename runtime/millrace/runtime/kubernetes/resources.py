"""Kinds of objects of the API server, and their paths."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object.

    Attributes:
        plural: its name in paths.
        is_namespaced: whether its objects lie in namespaces.
    """

    api_version: str
    name: str
    plural: str
    is_namespaced: bool = True

    def path(self, namespace: str | None = None, name: str | None = None) -> str:
        """Return the path of one object, or of all of them."""
        root = "api" if self.api_version == "v1" else "apis"
        where = f"/namespaces/{namespace}" if namespace and self.is_namespaced else ""
        which = f"/{name}" if name else ""
        return f"/{root}/{self.api_version}{where}/{self.plural}{which}"


LEASE: Final = Kind("coordination.k8s.io/v1", "Lease", "leases")


@dataclass(frozen=True, slots=True)
class Resource:
    """One object in a namespace."""

    kind: Kind
    namespace: str
    name: str

    @property
    def collection(self) -> str:
        """The path under which it is created."""
        return self.kind.path(self.namespace)

    @property
    def path(self) -> str:
        """The path of the object."""
        return self.kind.path(self.namespace, self.name)

    @property
    def watching(self) -> str:
        """The path that watches the object alone, to be added to with `&`."""
        return f"{self.collection}?watch=1&fieldSelector=metadata.name%3D{self.name}"

    def __str__(self) -> str:
        return f"{self.kind.name} {self.namespace}/{self.name}"
