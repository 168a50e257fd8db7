"""Objects of the API server: read, applied, patched, deleted.

The official client knows how to log in everywhere and keeps the connections. Its classes for each
kind are not used: objects are documents, as everywhere in the operator.

Each call blocks one of a fixed number of threads, for at most `TIMEOUT_S`. Objects are applied by
the server (server-side apply) under the operator's own name, so that fields of others stay.
"""

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Self
from urllib.parse import urlencode

import kubernetes.client
import kubernetes.config
import urllib3

from millrace.core.events import AUDIT_LOGGER
from millrace.operator.events import OBJECT_CHANGED
from millrace.operator.kube.kinds import EVENT, Kind, kind_of
from millrace.operator.model.objects import Document

FIELD_MANAGER: Final = "millrace-operator"
TIMEOUT_S: Final = 10.0
_audit = logging.getLogger(AUDIT_LOGGER)

_THREADS: Final = 8
_PAGE: Final = 100

_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"
_PLAIN: Final = "application/json"
_METADATA: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class ApiError(Exception):
    """The API server refused a request, or did not answer.

    Attributes:
        status: of HTTP; 0: there was no answer, and it is not known whether the request was done.
        message: of the API server.
    """

    def __init__(self, status: int, message: str, *, request: str) -> None:
        super().__init__(f"{request}: {message}")
        self.status = status
        self.message = message


class Api:
    """See the module.

    Args:
        on_request: called with the method of each request.
    """

    def __init__(
        self, client: "kubernetes.client.ApiClient", on_request: Callable[[str], None]
    ) -> None:
        self._client = client
        self._on_request = on_request
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="api")

    @classmethod
    def connect(cls, on_request: Callable[[str], None] = lambda method: None) -> Self:
        """Return the API server of the pod, or of the kubeconfig.

        Raises:
            kubernetes.config.ConfigException: neither names one.
        """
        if "KUBERNETES_SERVICE_HOST" in os.environ:
            kubernetes.config.load_incluster_config()
        else:
            kubernetes.config.load_kube_config()
        return cls(kubernetes.client.ApiClient(), on_request)

    def close(self) -> None:
        """End the threads; waits for what is under way."""
        self._threads.shutdown()

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Document | None:
        """Return an object; None: there is none."""
        try:
            return await self._call("GET", kind.path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def list(
        self,
        kind: Kind,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
        *,
        is_metadata_enough: bool = False,
    ) -> list[Document]:
        """Return all objects of a kind; without `kind` and `apiVersion`, as in lists, and without
        managed fields.

        They come in pages, so that many of them need little memory beside their own.

        Args:
            labels: required labels.
            fields: required values of fields; the API server supports few, for most kinds.
            is_metadata_enough: only their metadata is sent.
        """
        query = {"limit": str(_PAGE)}
        for name, wanted in (("labelSelector", labels), ("fieldSelector", fields)):
            if wanted:
                query[name] = ",".join(f"{key}={value}" for key, value in wanted.items())
        accept = _METADATA if is_metadata_enough else _PLAIN
        found: list[Document] = []
        while True:
            answer = await self._call("GET", kind.path(namespace), query, accept=accept)
            for each in answer["items"] or ():
                each["metadata"].pop("managedFields", None)
                found.append(each)
            query["continue"] = answer["metadata"].get("continue", "")
            if not query["continue"]:
                return found

    async def apply(self, document: Document, *, subresource: str = "") -> Document:
        """Set the named fields of an object; create it if necessary."""
        path = _path(document) + (f"/{subresource}" if subresource else "")
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        applied = await self._call("PATCH", path, query, document, content_type=_APPLY)
        if not subresource:
            metadata = document["metadata"]
            _note("apply", kind_of(document), metadata.get("namespace"), metadata["name"])
        return applied

    async def create(self, document: Document) -> Document:
        """Make an object.

        Raises:
            ApiError: with status 409: there is one of that name.
        """
        metadata = document["metadata"]
        path = kind_of(document).path(metadata.get("namespace"))
        return await self._call("POST", path, {"fieldManager": FIELD_MANAGER}, document)

    async def replace(self, document: Document) -> Document:
        """Replace an object as it was read.

        Raises:
            ApiError: with status 409: it has changed since.
        """
        return await self._call("PUT", _path(document), {"fieldManager": FIELD_MANAGER}, document)

    async def patch(self, kind: Kind, namespace: str, name: str, change: Document) -> Document:
        """Merge a change into an object; None removes a field."""
        path = kind.path(namespace, name)
        query = {"fieldManager": FIELD_MANAGER}
        patched = await self._call("PATCH", path, query, change, content_type=_MERGE)
        _note("patch", kind, namespace, name)
        return patched

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
        """Delete exactly this object; ignore one that is gone or replaced by another.

        Args:
            version: its `resourceVersion`: one that has changed since is left alone, too; None: it
                may have changed.
            orphan: keep the objects that it owns.
        """
        preconditions = (
            {"uid": uid} if version is None else {"uid": uid, "resourceVersion": version}
        )
        body: Document = {"preconditions": preconditions}
        if orphan:
            body["propagationPolicy"] = "Orphan"
        try:
            await self._call("DELETE", kind.path(namespace, name), None, body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
        else:
            _note("delete", kind, namespace, name)

    async def record(
        self, about: Document, *, reason: str, message: str, is_warning: bool = False, now: str
    ) -> None:
        """Report a change of an object to people, by an Event."""
        metadata = about["metadata"]
        await self.create(
            {
                "apiVersion": EVENT.api_version,
                "kind": EVENT.name,
                "metadata": {
                    "generateName": f"{metadata['name']}.",
                    "namespace": metadata["namespace"],
                },
                "involvedObject": {
                    "apiVersion": about["apiVersion"],
                    "kind": about["kind"],
                    "name": metadata["name"],
                    "namespace": metadata["namespace"],
                    "uid": metadata["uid"],
                },
                "reason": reason,
                "message": message[:1024],
                "type": "Warning" if is_warning else "Normal",
                "source": {"component": FIELD_MANAGER},
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": 1,
            }
        )

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Document | None = None,
        *,
        content_type: str = _PLAIN,
        accept: str = _PLAIN,
    ) -> Document:
        self._on_request(method)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._threads,
            partial(
                self._call_blocking,
                method,
                path,
                query,
                body,
                {"Accept": accept, "Content-Type": content_type},
            ),
        )

    def _call_blocking(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Document | None,
        headers: dict[str, str],
    ) -> Document:
        configuration = self._client.configuration
        self._client.update_params_for_auth(
            headers, [], ["BearerToken"], path, method, body, request_auth=None
        )
        url = configuration.host + path + (f"?{urlencode(query)}" if query else "")
        try:
            response = self._client.call_api(
                method, url, headers, body, _request_timeout=(TIMEOUT_S, TIMEOUT_S)
            )
            content = response.read()
        except (urllib3.exceptions.HTTPError, OSError, kubernetes.client.ApiException) as error:
            message = f"the API server did not answer: {error}"
            raise ApiError(0, message, request=f"{method} {path}") from error
        document = _parsed(content)
        if not 200 <= response.status < 300:
            message = document.get("message") or content[:200].decode("utf-8", "replace")
            raise ApiError(response.status, message, request=f"{method} {path}")
        return document


def _note(act: str, kind: Kind, namespace: str | None, name: str) -> None:
    OBJECT_CHANGED.log(_audit, act=act, kind=kind.name, namespace=namespace, object=name)


def _path(document: Document) -> str:
    metadata = document["metadata"]
    return kind_of(document).path(metadata.get("namespace"), metadata["name"])


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
