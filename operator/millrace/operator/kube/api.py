"""Objects of the API server: read, applied, patched, deleted.

Objects are documents, as everywhere in the operator. Each call blocks one of a fixed number of
threads, for at most `TIMEOUT_MS`. Objects are applied by the server (server-side apply) under the
operator's own name, so that fields of others stay.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final
from urllib.parse import urlencode

from millrace.core.events import AUDIT_LOGGER
from millrace.operator.events import OBJECT_CHANGED
from millrace.operator.kube.kinds import EVENT, SERVICE_ACCOUNT, kind_of
from millrace.operator.model.objects import Document
from millrace.runtime.kubernetes.access import ApiAccess
from millrace.runtime.kubernetes.api_server import WHOLE, Answer, ApiServer, NoAnswerError
from millrace.runtime.kubernetes.resources import Kind

FIELD_MANAGER: Final = "millrace-operator"
TIMEOUT_MS: Final = 10_000
TOKEN_S: Final = 3600
"""How long a token counts that the operator asks for."""
REFUSALS: Final = (400, 403, 422)
"""Statuses of requests that must not be repeated without a change."""
_audit = logging.getLogger(AUDIT_LOGGER)

_THREADS: Final = 8
_PAGE: Final = 100

_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"
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
    """The API server, for coroutines.

    Args:
        on_request: called with the method of each request.

    Raises:
        InvalidConfigError: the URL of the API server is none.
    """

    def __init__(
        self, access: ApiAccess, on_request: Callable[[str], None] = lambda method: None
    ) -> None:
        self._server = ApiServer(
            access,
            user_agent=FIELD_MANAGER,
            connections_max=_THREADS,
            request_timeout_ms=TIMEOUT_MS,
        )
        self._on_request = on_request
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="api")

    def close(self) -> None:
        """End the threads; waits for what is under way."""
        self._threads.shutdown()
        self._server.close()

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
        accept = _METADATA if is_metadata_enough else WHOLE
        found: list[Document] = []
        while True:
            answer = await self._call("GET", kind.path(namespace), query, accept=accept)
            for item in answer["items"] or ():
                item["metadata"].pop("managedFields", None)
                found.append(item)
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

    async def patch(
        self, kind: Kind, namespace: str | None, name: str, change: Document
    ) -> Document:
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

    async def request_token(self, namespace: str, account: str, audience: str) -> str:
        """Return a new token of a ServiceAccount for one audience; it counts for an hour."""
        spec = {"audiences": [audience], "expirationSeconds": TOKEN_S}
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"{SERVICE_ACCOUNT.path(namespace, account)}/token"
        token: str = (await self._call("POST", path, None, asked))["status"]["token"]
        return token

    async def record(self, about: Document, *, reason: str, message: str, now: str) -> None:
        """Report a change of an object to people, by an Event."""
        metadata = about["metadata"]
        await self._call(
            "POST",
            EVENT.path(metadata["namespace"]),
            {"fieldManager": FIELD_MANAGER},
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
                "type": "Normal",
                "source": {"component": FIELD_MANAGER},
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": 1,
            },
        )

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Document | None = None,
        *,
        content_type: str = WHOLE,
        accept: str = WHOLE,
    ) -> Document:
        sent = None if body is None else json.dumps(body).encode("ascii")
        path += f"?{urlencode(query)}" if query else ""
        send = partial(self.send, method, path, sent, accept=accept, content_type=content_type)
        answer = await asyncio.get_running_loop().run_in_executor(self._threads, send)
        if not answer.is_success:
            raise refused(answer, f"{method} {path.partition('?')[0]}")
        return answer.document

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        accept: str = WHOLE,
        content_type: str = WHOLE,
    ) -> Answer:
        """Send a request, and block until the answer is there, which may be a refusal.

        Raises:
            ApiError: there is no answer.
        """
        self._on_request(method)
        try:
            return self._server.send(method, path, body, accept=accept, content_type=content_type)
        except NoAnswerError as error:
            raise ApiError(0, str(error), request=f"{method} {path.partition('?')[0]}") from error


def refused(answer: Answer, request: str) -> ApiError:
    """Return the error of an answer that is a refusal."""
    return ApiError(answer.status, answer.message, request=request)


def _note(act: str, kind: Kind, namespace: str | None, name: str) -> None:
    OBJECT_CHANGED.log(_audit, act=act, kind=kind.name, namespace=namespace, object=name)


def _path(document: Document) -> str:
    metadata = document["metadata"]
    return kind_of(document).path(metadata.get("namespace"), metadata["name"])
