"""Address of the API server, and the credentials for it.

A pod gets both from Kubernetes, a person from a kubeconfig. A kubeconfig may name a token, a file
with one, or a client certificate. Logins that run a program or a vendor's library are refused: a
broker outside of its cluster is for development, and inside of it needs none of them.
"""

import base64
import binascii
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from millrace.core.errors import InvalidConfigError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its token, its namespace and the API server's authority."""

_DEFAULT_NAMESPACE: Final = "default"


@dataclass(frozen=True, kw_only=True)
class ApiAccess:
    """How to reach an API server.

    Attributes:
        server: its URL.
        namespace: the default of the pod or of the kubeconfig's context.
        tls: None with a server of plain HTTP, such as `kubectl proxy`.
        tls_server_name: that the server's certificate must have; None: the URL's host.
        token: returns the current token, None when there is none. It changes every hour in a pod.
    """

    server: str
    namespace: str
    tls: ssl.SSLContext | None
    tls_server_name: str | None
    token: Callable[[], str | None]


def in_cluster(server: str, directory: Path = SERVICE_ACCOUNT) -> ApiAccess:
    """Return a pod's access to the API server.

    Args:
        server: its URL, as the pod's environment has it; empty when this is no pod.

    Raises:
        InvalidConfigError: this is no pod, or it has no service account.
    """
    if not server:
        raise InvalidConfigError(
            "coordination.kubernetes: this process is not in a pod (KUBERNETES_SERVICE_HOST is not "
            "set): set coordination.kubernetes.kubeconfig"
        )
    try:
        namespace = (directory / "namespace").read_text(encoding="utf-8").strip()
        (directory / "token").read_bytes()
        tls = _trusting(ssl.create_default_context(cafile=directory / "ca.crt"))
    except (OSError, ssl.SSLError) as error:
        raise InvalidConfigError(
            f"the pod has no usable service account in {directory}: {error}. Give it one: "
            "automountServiceAccountToken must not be false"
        ) from error
    return ApiAccess(
        server=server,
        namespace=namespace,
        tls=tls,
        tls_server_name=None,
        token=_TokenFile(directory / "token"),
    )


def from_kubeconfig(path: Path, context_name: str = "") -> ApiAccess:
    """Return the access to the API server in a kubeconfig.

    Args:
        context_name: which of its contexts; empty: its current one.

    Raises:
        InvalidConfigError: it cannot be read, or asks for something that is not known here.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        kubeconfig = _Kubeconfig(path, content)
        context = kubeconfig.entry("context", context_name or content.get("current-context") or "")
        cluster = kubeconfig.entry("cluster", context["cluster"])
        user = kubeconfig.entry("user", context["user"]) if context.get("user") else {}
        server = str(cluster["server"])
        return ApiAccess(
            server=server,
            namespace=context.get("namespace") or _DEFAULT_NAMESPACE,
            tls=kubeconfig.tls(cluster, user) if server.startswith("https:") else None,
            tls_server_name=cluster.get("tls-server-name"),
            token=kubeconfig.token(user),
        )
    except OSError as error:
        raise InvalidConfigError(f"{path}: cannot be read: {error}") from error
    except (
        AttributeError,
        KeyError,
        TypeError,
        UnicodeDecodeError,
        binascii.Error,
        ssl.SSLError,
        yaml.YAMLError,
    ) as error:
        raise InvalidConfigError(f"{path}: is not a usable kubeconfig: {error!r}") from error


class _Kubeconfig:
    """The parts of a kubeconfig, which may be in the file or in files that it names."""

    def __init__(self, path: Path, content: Mapping[str, Any]) -> None:
        self._path = path
        self._content = content

    def entry(self, kind: str, name: str) -> Mapping[str, Any]:
        """Return one named cluster, user or context."""
        entries = {each["name"]: each[kind] for each in self._content.get(f"{kind}s") or ()}
        if name not in entries:
            known = ", ".join(entries) or "none"
            raise InvalidConfigError(f"{self._path}: has no {kind} {name!r}; it has {known}")
        entry: Mapping[str, Any] = entries[name] or {}
        return entry

    def tls(self, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
        if cluster.get("insecure-skip-tls-verify"):
            raise InvalidConfigError(
                f"{self._path}: insecure-skip-tls-verify is refused, as the cluster's metadata "
                "would go to any server that answers: name the certificate-authority"
            )
        authority = self._text(cluster, "certificate-authority")
        context = _trusting(ssl.create_default_context(cadata=authority))
        certificate = self._text(user, "client-certificate")
        key = self._text(user, "client-key")
        if certificate and key:
            # OpenSSL's own functions take only a file; no other user can read this one.
            with tempfile.NamedTemporaryFile("w", encoding="ascii") as pair:
                pair.write(f"{certificate}\n{key}\n")
                pair.flush()
                context.load_cert_chain(pair.name)
        return context

    def token(self, user: Mapping[str, Any]) -> Callable[[], str | None]:
        for unknown in ("exec", "auth-provider", "username"):
            if user.get(unknown):
                raise InvalidConfigError(
                    f"{self._path}: logging in by {unknown!r} is not supported: use a token, a "
                    "tokenFile or a client certificate"
                )
        if file := user.get("tokenFile"):
            return _TokenFile(self._path.parent / file)
        token: str | None = user.get("token")
        return lambda: token

    def _text(self, entry: Mapping[str, Any], name: str) -> str | None:
        """Return a certificate or a key in PEM: from the file's own data or the file it names."""
        if data := entry.get(f"{name}-data"):
            return base64.b64decode(data, validate=True).decode("ascii")
        if file := entry.get(name):
            return (self._path.parent / str(file)).read_text(encoding="ascii")
        return None


@dataclass(frozen=True)
class _TokenFile:
    """Reads the token each time: a file costs nothing beside a request, and the token changes."""

    path: Path

    def __call__(self) -> str:
        return self.path.read_text(encoding="ascii").strip()


def _trusting(context: ssl.SSLContext) -> ssl.SSLContext:
    # From Python 3.13 on this flag is set by default, and refuses the authorities of widespread
    # clusters for an extension that they lack (authority key identifier).
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
