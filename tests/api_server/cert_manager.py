"""Plays cert-manager: its definitions, as far as we use them, and an issuer that signs.

The fields and their types are those of cert-manager's `Certificate` of `cert-manager.io/v1`.
"""

import base64
import json
import time
from datetime import UTC, datetime
from typing import Any, Final

from tests.api_server.running import (
    LOOK_AGAIN_SECONDS,
    START_SECONDS_MAX,
    RunningApiServer,
)

from millrace.runtime.certificates import Issued, Names, issue, new_authority

Document = dict[str, Any]

DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP: Final = "cert-manager.io"
_TEXT: Final = {"type": "string"}
_TEXTS: Final = {"type": "array", "items": _TEXT}
_ANYTHING: Final = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def _one_of(*values: str) -> Document:
    return {"type": "string", "enum": [*values]}


_CERTIFICATE: Final[Document] = {
    "type": "object",
    "required": ["issuerRef", "secretName"],
    "properties": {
        "commonName": _TEXT,
        "dnsNames": _TEXTS,
        "ipAddresses": _TEXTS,
        "uris": _TEXTS,
        "duration": _TEXT,
        "renewBefore": _TEXT,
        "secretName": _TEXT,
        "revisionHistoryLimit": {"type": "integer", "format": "int32"},
        "secretTemplate": {
            "type": "object",
            "properties": {
                name: {"type": "object", "additionalProperties": _TEXT}
                for name in ("annotations", "labels")
            },
        },
        "issuerRef": {
            "type": "object",
            "required": ["name"],
            "properties": dict.fromkeys(("name", "kind", "group"), _TEXT),
        },
        "privateKey": {
            "type": "object",
            "properties": {
                "algorithm": _one_of("RSA", "ECDSA", "Ed25519"),
                "encoding": _one_of("PKCS1", "PKCS8"),
                "rotationPolicy": _one_of("Never", "Always"),
                "size": {"type": "integer"},
            },
        },
        "usages": {
            "type": "array",
            "items": _one_of("digital signature", "key encipherment", "server auth", "client auth"),
        },
    },
}
_KINDS: Final = {
    "Certificate": ("Namespaced", _CERTIFICATE),
    "Issuer": ("Namespaced", _ANYTHING),
    "ClusterIssuer": ("Cluster", _ANYTHING),
}


def install(server: RunningApiServer) -> None:
    """Create the definitions; return once objects of them can be written."""
    for kind, (scope, spec) in _KINDS.items():
        plural = f"{kind.lower()}s"
        version = {
            "name": "v1",
            "served": True,
            "storage": True,
            "subresources": {"status": {}},
            "schema": {
                "openAPIV3Schema": {
                    "type": "object",
                    "properties": {"spec": spec, "status": _ANYTHING},
                }
            },
        }
        made = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": _definition(kind)},
            "spec": {
                "group": GROUP,
                "scope": scope,
                "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
                "versions": [version],
            },
        }
        status, answer = server.request("POST", DEFINITIONS, made)
        assert status == 201, answer
    _wait(server, 200)


def uninstall(server: RunningApiServer) -> None:
    """Delete the definitions, and all objects of theirs."""
    for kind in _KINDS:
        server.request("DELETE", f"{DEFINITIONS}/{_definition(kind)}")
    _wait(server, 404)


def _definition(kind: str) -> str:
    return f"{kind.lower()}s.{GROUP}"


def _wait(server: RunningApiServer, wanted: int) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    for kind in _KINDS:
        changes_at = time.monotonic() + LOOK_AGAIN_SECONDS
        while _status(server, f"/apis/{GROUP}/v1/{kind.lower()}s") != wanted:
            assert time.monotonic() < deadline, kind
            time.sleep(0.05)
            if wanted == 404 and time.monotonic() >= changes_at:
                changes_at += LOOK_AGAIN_SECONDS
                server.touch_definition(_definition(kind))


def _status(server: RunningApiServer, path: str) -> int:
    try:
        return server.request("GET", path)[0]
    except json.JSONDecodeError:  # "404 page not found", as long as it knows no such group.
        return 404


class CertManager:
    """cert-manager, in one namespace.

    Args:
        namespace: that it works in.

    Attributes:
        authority: of its issuers.
        says_authority: whether it writes that into Secrets.
    """

    def __init__(self, server: RunningApiServer, namespace: str) -> None:
        self._server = server
        self._where = f"/apis/{GROUP}/v1/namespaces/{namespace}"
        self._secrets = f"/api/v1/namespaces/{namespace}/secrets"
        self.authority = new_authority("issuer", days=10)
        self.says_authority = True

    def make_issuer(self, name: str, *, is_ready: bool = True, message: str = "") -> None:
        """Make an Issuer, which is ready or says why not."""
        made = {"metadata": {"name": name}, "spec": {"ca": {"secretName": "root"}}}
        document = {"apiVersion": f"{GROUP}/v1", "kind": "Issuer", **made}
        answer = self._must("POST", f"{self._where}/issuers", document)
        self.settle_issuer(answer, is_ready=is_ready, message=message)

    def settle_issuer(self, issuer: Document, *, is_ready: bool, message: str = "") -> None:
        """Say how an Issuer is."""
        ready = {"type": "Ready", "status": str(is_ready), "message": message}
        issuer["status"] = {"conditions": [ready]}
        self._must("PUT", f"{self._where}/issuers/{issuer['metadata']['name']}/status", issuer)

    def get(self, kind: str, name: str) -> Document:
        """Return one of its objects."""
        return self._must("GET", f"{self._where}/{kind}/{name}")

    def step(self) -> None:
        """Sign what has yet to be signed as it is asked for."""
        for made in self._must("GET", f"{self._where}/certificates")["items"]:
            conditions = made.get("status", {}).get("conditions", [])
            observed = [each["observedGeneration"] for each in conditions]
            if observed != [made["metadata"]["generation"]]:
                self.sign(made)

    def sign(self, made: Document) -> None:
        """Sign a Certificate, which may be signed already."""
        spec = made["spec"]
        names = Names(
            common=spec.get("commonName", ""),
            hosts=[*spec["dnsNames"], *spec.get("ipAddresses", [])],
            uri=spec["uris"][0],
        )
        signed: Issued = issue(self.authority, names, days=1)
        files = {"tls.crt": signed.certificate, "tls.key": signed.key}
        if self.says_authority:
            files["ca.crt"] = self.authority.certificate
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {"name": spec["secretName"], **spec.get("secretTemplate", {})},
            "data": {name: base64.b64encode(text).decode() for name, text in files.items()},
        }
        where = f"{self._secrets}/{spec['secretName']}?fieldManager=cert-manager&force=true"
        self._must("PATCH", where, secret)
        self._say(made, {"status": "True", "reason": "Ready", "message": "up to date"})

    def fail(self, name: str, message: str) -> None:
        """Say that a Certificate cannot be signed."""
        made = self.get("certificates", name)
        self._say(made, {"status": "False", "reason": "Failed", "message": message})

    def _say(self, made: Document, ready: Document) -> None:
        condition = {
            "type": "Ready",
            "observedGeneration": made["metadata"]["generation"],
            "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            **ready,
        }
        made["status"] = {"conditions": [condition]}
        if ready["status"] != "True":
            made["status"]["lastFailureTime"] = condition["lastTransitionTime"]
        self._must("PUT", f"{self._where}/certificates/{made['metadata']['name']}/status", made)

    def _must(self, method: str, path: str, document: object = None) -> Document:
        status, answer = self._server.request(method, path, document)
        assert status in (200, 201), answer
        return answer
