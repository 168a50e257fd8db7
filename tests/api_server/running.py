"""A real API server over a real etcd, on ports that are free, in a folder that is thrown away.

No node, no controller, no scheduler: it stores and checks objects, which is all that a coordination
store asks of Kubernetes. It is up in about three seconds.
"""

import base64
import json
import secrets
import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path
from typing import Any

import urllib3
import yaml
from tests.api_server import binaries

from millrace.runtime.kubernetes.access import ApiAccess, in_cluster

ROOT = Path(__file__).resolve().parents[2]
CRDS = sorted(ROOT.joinpath("crds").glob("*.millrace.dev.yaml"))

NAMESPACE = "brokers"
_KINDS = ("ClusterState", "StateShard")
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
START_SECONDS_MAX = 60.0
LOOK_AGAIN_SECONDS = 2.0
"""After which a definition that is still there is changed: see `touch_definition`."""
_STARTS_MAX = 5

_BROKER_ROLE_BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "RoleBinding",
    "metadata": {"name": "broker"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "millrace-broker"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "broker"}],
}


class PortTakenError(Exception):
    """Somebody has taken a port before the program that was given it."""


class RunningApiServer:
    """etcd and the API server, with our definitions, a namespace `NAMESPACE`, and two users.

    Args:
        folder: for its files.
        flushes: whether etcd makes writes durable, which only a measurement has to wait for.

    Attributes:
        url: of the API server.
        admin: may do everything.
        broker: may do in `NAMESPACE` what a broker has to, and nothing else.
        tokens: by user's name.
    """

    def __init__(self, folder: Path, *, flushes: bool = False) -> None:
        self.folder = folder
        self._flushes = flushes
        self._processes: list[subprocess.Popen[bytes]] = []
        self.tokens = {user: secrets.token_hex(16) for user in ("admin", "broker")}
        self.url = ""
        self.admin: ApiAccess
        self.broker: ApiAccess
        self._pool: urllib3.HTTPSConnectionPool

    def start(self) -> "RunningApiServer":
        """Start it, and return once it answers and has our definitions.

        Another process may take a port in the seconds until a program listens there: then both
        begin again, with other ports.
        """
        for left in reversed(range(_STARTS_MAX)):
            try:
                self._start()
            except PortTakenError:
                self.stop()
                if not left:
                    raise
                shutil.rmtree(self.folder / "etcd", ignore_errors=True)
            except BaseException:
                self.stop()
                raise
            else:
                break
        return self

    def stop(self) -> None:
        """Leave nothing running."""
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        self._processes.clear()

    def request(
        self, method: str, path: str, document: object = None, *, user: str = "admin"
    ) -> tuple[int, dict[str, Any]]:
        """Send a request; return the answer's status and object. A patch is applied by the server.

        Args:
            document: an object, or YAML as bytes.
        """
        headers = {"Authorization": f"Bearer {self.tokens[user]}", "Accept": "application/json"}
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        if method == "PATCH":
            headers["Content-Type"] = "application/apply-patch+yaml"
        elif isinstance(document, bytes):
            headers["Content-Type"] = "application/yaml"
        else:
            headers["Content-Type"] = "application/json"
        answer = self._pool.request(
            method, path, None if document is None else body, headers=headers, retries=False
        )
        return answer.status, json.loads(answer.data)

    def kubeconfig(self, user: str = "broker") -> str:
        """Return a kubeconfig for a user; JSON is YAML."""
        return self.kubeconfig_of(user, self.tokens[user])

    def kubeconfig_of(self, user: str, token: str, namespace: str = NAMESPACE) -> str:
        """Likewise, for somebody with a token."""
        authority = base64.b64encode(self._certificate.read_bytes()).decode()
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "tests",
                "contexts": [
                    {
                        "name": "tests",
                        "context": {"cluster": "tests", "user": user, "namespace": namespace},
                    }
                ],
                "clusters": [
                    {
                        "name": "tests",
                        "cluster": {"server": self.url, "certificate-authority-data": authority},
                    }
                ],
                "users": [{"name": user, "user": {"token": token}}],
            }
        )

    @property
    def _certificate(self) -> Path:
        return self.folder / "certificates" / "apiserver.crt"

    def _start(self) -> None:
        etcd_port, port = free_port(), free_port()
        self.url = f"https://127.0.0.1:{port}"
        programs = binaries.PROGRAMS.folder()
        etcd_url = f"http://127.0.0.1:{etcd_port}"
        self._spawn(
            programs / "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={etcd_url}",
            f"--advertise-client-urls={etcd_url}",
            "--listen-peer-urls=http://127.0.0.1:0",  # It has no peers.
            "--log-level=warn",
            *([] if self._flushes else ["--unsafe-no-fsync"]),
        )
        key = self.folder / "service_accounts.pem"
        key.write_text(_private_key())
        users = self.folder / "users.csv"
        users.write_text(
            f"{self.tokens['admin']},admin,1,system:masters\n{self.tokens['broker']},broker,2\n"
        )
        self._spawn(
            programs / "kube-apiserver",
            f"--etcd-servers={etcd_url}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={self._certificate.parent}",
            f"--token-auth-file={users}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--disable-admission-plugins=ServiceAccount",  # Nothing makes the accounts.
            "--endpoint-reconciler-type=none",
            "--profiling=false",
        )
        deadline = time.monotonic() + START_SECONDS_MAX
        # The file is there a moment before its content.
        while not (self._certificate.exists() and self._certificate.stat().st_size):
            self._go_on_waiting(deadline)
        tls = ssl.create_default_context(cafile=self._certificate)
        self._pool = urllib3.HTTPSConnectionPool("127.0.0.1", port, ssl_context=tls, maxsize=4)
        while self._status("/readyz") != 200:
            self._go_on_waiting(deadline)
        self._prepare()
        self.admin, self.broker = self._access("admin"), self._access("broker")

    def install_definitions(self) -> None:
        """Create our definitions; return once objects of them can be written."""
        deadline = time.monotonic() + START_SECONDS_MAX
        for crd in CRDS:
            self._must("POST", _DEFINITIONS, crd.read_bytes())
        for crd in CRDS:
            spec = yaml.safe_load(crd.read_text())["spec"]
            for version in spec["versions"]:
                path = f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}"
                while self._status(path) != 200:
                    self._go_on_waiting(deadline)
        for kind in _KINDS:
            path = f"/apis/millrace.dev/v1/namespaces/{NAMESPACE}/{kind.lower()}s"
            while self._status(path) != 200 or self._status(f"{path}/none", "broker") != 404:
                self._go_on_waiting(deadline)
            # The first write of a kind waits for what the server still has to get ready.
            spec = {"version": 1, "controllerEpoch": 0, "state": "{}"}
            first = {"apiVersion": "millrace.dev/v1", "kind": kind, "spec": spec}
            self._must("POST", f"{path}?dryRun=All", {**first, "metadata": {"name": "first"}})

    def delete_definitions(self) -> None:
        """Delete our definitions, and with them every object; return once they are gone."""
        deadline = time.monotonic() + START_SECONDS_MAX
        left = [crd.stem for crd in CRDS]  # Files are called as they are.
        for name in left:
            self.request("DELETE", f"{_DEFINITIONS}/{name}")
        changes_at = time.monotonic() + LOOK_AGAIN_SECONDS
        while left := [name for name in left if self._status(f"{_DEFINITIONS}/{name}") != 404]:
            self._go_on_waiting(deadline)
            if time.monotonic() >= changes_at:
                changes_at += LOOK_AGAIN_SECONDS
                for name in left:
                    self.touch_definition(name)

    def touch_definition(self, name: str) -> None:
        """Change a definition that is being deleted.

        The API server's finalizer fails while the store of the objects is not ready. It may not try
        again until the definition changes.
        """
        metadata = {"name": name, "annotations": {"tests/changed": str(time.monotonic())}}
        change = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": metadata,
        }
        self.request("PATCH", f"{_DEFINITIONS}/{name}?fieldManager=tests&force=true", change)

    def _prepare(self) -> None:
        self._must("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
        self._must("POST", f"{roles}/roles", broker_role())
        self._must("POST", f"{roles}/rolebindings", _BROKER_ROLE_BINDING)
        self.install_definitions()

    def _access(self, user: str) -> ApiAccess:
        """Return access as a pod would have it, by files."""
        account = self.folder / f"account-{user}"
        account.mkdir()
        (account / "ca.crt").write_bytes(self._certificate.read_bytes())
        (account / "namespace").write_text(NAMESPACE)
        (account / "token").write_text(self.tokens[user])
        return in_cluster(self.url, account)

    def _must(self, method: str, path: str, document: object) -> None:
        status, answer = self.request(method, path, document)
        assert status in (200, 201), answer

    def _status(self, path: str, user: str = "admin") -> int:
        """Return what a GET is answered with; 0: not at all."""
        headers = {"Authorization": f"Bearer {self.tokens[user]}"}
        try:
            return self._pool.request("GET", path, headers=headers, retries=False).status
        except urllib3.exceptions.HTTPError:
            return 0

    def _go_on_waiting(self, deadline: float) -> None:
        has_ended = any(process.poll() is not None for process in self._processes)
        if has_ended or time.monotonic() > deadline:
            logs = "\n".join(
                f"{path.name}: {path.read_text(errors='replace')[-2000:]}"
                for path in sorted(self.folder.glob("*.log"))
            )
            if has_ended and "address already in use" in logs:
                raise PortTakenError(logs)
            raise RuntimeError(f"the API server did not start\n{logs}")
        time.sleep(0.05)

    def _spawn(self, program: Path, *arguments: str) -> None:
        with (self.folder / f"{program.name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [program, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            )


def broker_role() -> bytes:
    """Return the Role that operators are told to give brokers: the tests' brokers have no more."""
    manifest = (ROOT / "docs" / "clusters.md").read_text().partition("```yaml\n")[2]
    return manifest.partition("---\n")[0].encode()


def free_port() -> int:
    """Return a port that nobody uses now: neither program takes 0."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _private_key() -> str:
    """Return a key of the curve P-256, as RFC 5915 lays it out: any number below its order."""
    number = secrets.token_bytes(32)[1:].rjust(32, b"\x01")
    der = b"\x30\x31\x02\x01\x01\x04\x20" + number + bytes.fromhex("a00a06082a8648ce3d030107")
    text = base64.encodebytes(der).decode()
    kind = "EC PRIVATE KEY"
    return f"-----BEGIN {kind}-----\n{text}-----END {kind}-----\n"
