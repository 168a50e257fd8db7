"""Keeps objects as they should be, without a write if there is nothing to do.

What was applied is remembered with the resulting version: the object's generation if it has one,
which changes of a status do not increase, else its resource version. While both are the same
nothing is sent. So a changed object is corrected, and an idle operator only reads.
"""

import hashlib
import json

from millrace.operator.kube.api import Api
from millrace.operator.kube.kinds import kind_of
from millrace.operator.model.objects import Document


class NameTakenError(Exception):
    """An object with the name of one of ours has another owner.

    Attributes:
        is_passing: the owner is an earlier one of the same name: the object is about to be deleted
            with it.
    """

    def __init__(self, message: str, *, is_passing: bool = False) -> None:
        super().__init__(message)
        self.is_passing = is_passing


class Applied:
    """The objects that were applied, and what came of it."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._settled: dict[tuple[str, str], dict[tuple[str, str], tuple[str, str]]] = {}
        """By namespace and name of the owner: what was applied, and the version, by kind and name
        of the object."""

    async def ensure(self, document: Document) -> Document:
        """Bring an object into its wanted state, and return it.

        Raises:
            NameTakenError: there is one with another owner, or without one.
            ApiError: the API server refuses it, or does not answer.
        """
        metadata = document["metadata"]
        (owner,) = metadata["ownerReferences"]
        settled = self._settled.setdefault((metadata["namespace"], owner["name"]), {})
        key = (document["kind"], metadata["name"])
        wanted = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
        found = await self._api.get(kind_of(document), metadata["namespace"], metadata["name"])
        if found is not None:
            check_owner(document, found)
            if settled.get(key) == (wanted, _version(found)):
                return found
        result = await self._api.apply(document)
        settled[key] = (wanted, _version(result))
        return result

    def forget(self, namespace: str, owner: str) -> None:
        """Forget the objects of an owner that is gone."""
        self._settled.pop((namespace, owner), None)


def check_owner(document: Document, found: Document) -> None:
    """Make sure that an object is the one that we apply.

    Raises:
        NameTakenError: it has another owner, or none.
    """
    (ours,) = document["metadata"]["ownerReferences"]
    owners = found["metadata"].get("ownerReferences") or ()
    if any(owner["uid"] == ours["uid"] for owner in owners):
        return
    metadata = document["metadata"]
    name = f"{document['kind']} {metadata['namespace']}/{metadata['name']}"
    if any((owner["kind"], owner["name"]) == (ours["kind"], ours["name"]) for owner in owners):
        raise NameTakenError(
            f"{name} belongs to an earlier {ours['kind']} {ours['name']}, and is deleted with it",
            is_passing=True,
        )
    belongs = next(
        (f"belongs to {owner['kind']} {owner['name']}" for owner in owners), "is not ours"
    )
    raise NameTakenError(
        f"{name} is there already and {belongs}: rename it or delete it, or give the Cluster "
        "another name"
    )


def _version(document: Document) -> str:
    metadata = document["metadata"]
    return f"{metadata['uid']} {metadata.get('generation') or metadata['resourceVersion']}"
