"""Address of the API server, and the credentials for it.

A pod gets both from Kubernetes, a person from a kubeconfig. A kubeconfig may name a token, a file
with one, a client certificate, or a program that gives one of them. What Kubernetes has given up is
refused: a vendor's library, and passwords.
"""

import base64
import os
import ssl
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from millrace.core.addresses import host_port
from millrace.core.errors import InvalidConfigError
from millrace.runtime.kubernetes.login_program import LoginProgram

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its token, its namespace and the API server's authority."""

_DEFAULT_NAMESPACE: Final = "default"
_SHOWN_MAX: Final = 1000
"""Most characters that a message shows of a file."""


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


def as_kubectl(environment: Mapping[str, str] = os.environ) -> ApiAccess:
    """Return a pod's access to the API server, or that of the kubeconfig that kubectl uses.

    Raises:
        InvalidConfigError: there is neither, or it cannot be used.
    """
    if server := pod_server(environment):
        return in_cluster(server)
    named = [Path(path) for path in environment.get("KUBECONFIG", "").split(os.pathsep) if path]
    return from_kubeconfig(*(named or [Path.home() / ".kube" / "config"]))


def pod_server(environment: Mapping[str, str] = os.environ) -> str:
    """Return the URL of the API server as a pod's environment has it; empty outside of pods."""
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    if not host:
        return ""
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    return f"https://{host_port(host, port)}"


def in_cluster(server: str, directory: Path = SERVICE_ACCOUNT) -> ApiAccess:
    """Return a pod's access to the API server.

    Args:
        server: its URL, as of `pod_server`; empty when this is no pod.

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


def from_kubeconfig(*paths: Path, context_name: str = "") -> ApiAccess:
    """Return the access to the API server in a kubeconfig.

    Args:
        paths: its files, of which some may be missing: of a name that several have, the first one
            counts.
        context_name: which of its contexts; empty: its current one.

    Raises:
        InvalidConfigError: it cannot be read, or asks for something that is not known here.
    """
    shown = os.pathsep.join(map(str, paths))
    try:
        kubeconfig = _Kubeconfig(shown, [path for path in paths if path.exists()] or paths)
        context = kubeconfig.entry("context", context_name or kubeconfig.current_context).content
        cluster = kubeconfig.entry("cluster", context["cluster"])
        user = kubeconfig.entry("user", context["user"]) if context.get("user") else _NOBODY
        server = str(cluster.content["server"])
        login = _login(user, cluster)
        return ApiAccess(
            server=server,
            namespace=_text(context, "namespace") or _DEFAULT_NAMESPACE,
            tls=_tls(cluster, user, login) if server.startswith("https:") else None,
            tls_server_name=_text(cluster.content, "tls-server-name"),
            token=login,
        )
    except OSError as error:
        raise InvalidConfigError(f"{shown}: cannot be read: {error}") from error
    except (
        AttributeError,
        KeyError,
        RecursionError,
        TypeError,
        ValueError,
        yaml.YAMLError,
    ) as error:
        why = repr(error)[:_SHOWN_MAX]
        raise InvalidConfigError(f"{shown}: is not a usable kubeconfig: {why}") from error


@dataclass(frozen=True)
class _Entry:
    """A context, a cluster or a user, with the file that it is in: it may name files beside it."""

    path: Path
    content: Mapping[str, Any]

    def text(self, name: str) -> str | None:
        """Return a certificate or a key in PEM: from the entry's data or the file it names."""
        if data := self.content.get(f"{name}-data"):
            return base64.b64decode(data, validate=True).decode("ascii")
        if file := self.content.get(name):
            return (self.path.parent / str(file)).read_text(encoding="ascii")
        return None


_NOBODY: Final = _Entry(Path(), {})


class _Kubeconfig:
    """The entries of all files, by kind and name."""

    def __init__(self, shown: str, paths: Sequence[Path]) -> None:
        self._shown = shown
        self._entries: dict[str, dict[str, _Entry]] = {"context": {}, "cluster": {}, "user": {}}
        self.current_context = ""
        for path in paths:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
            self.current_context = self.current_context or content.get("current-context") or ""
            for kind, entries in self._entries.items():
                for entry in content.get(f"{kind}s") or ():
                    entries.setdefault(entry["name"], _Entry(path, entry[kind] or {}))

    def entry(self, kind: str, name: str) -> _Entry:
        """Return one by its name."""
        entries = self._entries[kind]
        if name not in entries:
            known = (", ".join(entries) or "none")[:_SHOWN_MAX]
            told = f"has no {kind} {repr(name)[:_SHOWN_MAX]}; it has {known}"
            raise InvalidConfigError(f"{self._shown}: {told}")
        return entries[name]


def _tls(cluster: _Entry, user: _Entry, login: Callable[[], str | None]) -> ssl.SSLContext:
    if cluster.content.get("insecure-skip-tls-verify"):
        raise InvalidConfigError(
            f"{cluster.path}: insecure-skip-tls-verify is refused, as tokens and the cluster's "
            "metadata would go to any server that answers: name the certificate-authority"
        )
    authority = cluster.text("certificate-authority")
    context = _trusting(ssl.create_default_context(cadata=authority))
    certificate, key = user.text("client-certificate"), user.text("client-key")
    if isinstance(login, LoginProgram):
        certificate, key = login.certificate_and_key()
    if certificate and key:
        # OpenSSL's own functions take only a file; no other user can read this one.
        with tempfile.NamedTemporaryFile("w", encoding="ascii") as pair:
            pair.write(f"{certificate}\n{key}\n")
            pair.flush()
            context.load_cert_chain(pair.name)
    return context


def _login(user: _Entry, cluster: _Entry) -> Callable[[], str | None]:
    """Return what has the token of each moment."""
    for entry, unknown in ((user, "auth-provider"), (user, "username"), (cluster, "proxy-url")):
        if entry.content.get(unknown):
            raise InvalidConfigError(
                f"{entry.path}: {unknown!r} is not supported: use a token, a tokenFile, a client "
                "certificate or a program (exec), and a server that is reached without a proxy"
            )
    if program := user.content.get("exec"):
        named = {"server": cluster.content["server"]}
        if authority := cluster.text("certificate-authority"):
            data = base64.b64encode(authority.encode()).decode()
            named["certificate-authority-data"] = data
        return LoginProgram(program, user.path.parent, named)
    if file := user.content.get("tokenFile"):
        return _TokenFile(user.path.parent / file)
    token = _text(user.content, "token")
    return lambda: token


def _text(content: Mapping[str, Any], name: str) -> str | None:
    """Return a text of an entry; None: there is none.

    Raises:
        TypeError: it is something else, as a number without quotes.
    """
    found = content.get(name)
    if found is None or isinstance(found, str):
        return found
    raise TypeError(f"{name} is no text: put it into quotes")


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
