"""Users of Clusters with TLS and access control: accounts, their rights, and their pods."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from e2e.cluster.commands import CommandError
from e2e.cluster.kubectl import Kubectl
from e2e.installed import Namespace

RBAC: Final = "rbac.authorization.k8s.io"
GUARDED: Final[dict[str, Any]] = {"tls": {}, "access": {}}
"""Part of the `spec` of such a Cluster."""
_TLS: Final = "/etc/cluster-ca"
_TOKEN: Final = "/run/millrace"


@dataclass(frozen=True, slots=True)
class Account:
    """A ServiceAccount.

    Attributes:
        namespace: of the account.
        name: of the account.
    """

    namespace: str
    name: str

    @property
    def principal(self) -> str:
        """Its whole name."""
        return f"system:serviceaccount:{self.namespace}:{self.name}"

    def make(self, kubectl: Kubectl) -> None:
        """Make it."""
        kubectl("create", "serviceaccount", self.name, f"--namespace={self.namespace}")

    def token(self, kubectl: Kubectl, audience: str) -> str:
        """Return a token for a cluster."""
        asked = (self.name, f"--namespace={self.namespace}", f"--audience={audience}")
        return kubectl("create", "token", *asked).strip()

    def may(self, kubectl: Kubectl, verb: str, resource: str, namespace: str = "") -> bool:
        """Return what `kubectl auth can-i` says.

        Args:
            kubectl: of an administrator.
            verb: what.
            resource: on what, as `topics.millrace.dev/orders`.
            namespace: of the resource; empty: the account's.
        """
        who = (f"--namespace={namespace or self.namespace}", f"--as={self.principal}")
        try:
            return kubectl("auth", "can-i", verb, resource, *who).strip() == "yes"
        except CommandError as error:
            if str(error).splitlines()[-1] == "no":
                return False
            raise


def audience_of(cluster: str, namespace: str) -> str:
    """Return the audience of a cluster's tokens."""
    return f"{cluster}.{namespace}.millrace.dev"


def allow(
    namespace: Namespace,
    account: Account,
    verbs: Sequence[str],
    resources: Sequence[str] = ("topics",),
    names: Sequence[str] = (),
) -> None:
    """Give an account, of any namespace, rights in one.

    Args:
        namespace: where the topics are.
        account: who.
        verbs: what.
        resources: on which kinds.
        names: on which of them; empty: on all.
    """
    rule: dict[str, Any] = {
        "apiGroups": ["millrace.dev"],
        "resources": list(resources),
        "verbs": list(verbs),
    }
    if names:
        rule["resourceNames"] = list(names)
    name = "-".join([account.namespace, account.name, *resources]).replace("*", "all")
    subject = {"kind": "ServiceAccount", "namespace": account.namespace, "name": account.name}
    namespace.apply(
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "Role",
            "metadata": {"name": name},
            "rules": [rule],
        },
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
            "subjects": [subject],
        },
    )


def call_as(account: str, audience: str, pod: dict[str, Any], *, cluster: str = "logs") -> None:
    """Let a pod's only container call a Cluster: as docs/security.md tells users to do.

    Args:
        account: of the pod.
        audience: of the Cluster's tokens.
        pod: its spec, which is changed.
        cluster: whose authorities the pod trusts: the ConfigMap is in the pod's namespace.
    """
    (container,) = pod["containers"]
    container.setdefault("env", []).extend(
        [
            {"name": "MILLRACE_TLS_CA_FILE", "value": f"{_TLS}/ca.crt"},
            {"name": "MILLRACE_TOKEN_FILE", "value": f"{_TOKEN}/token"},
        ]
    )
    container.setdefault("volumeMounts", []).extend(
        [
            {"name": "cluster-ca", "mountPath": _TLS, "readOnly": True},
            {"name": "millrace-token", "mountPath": _TOKEN, "readOnly": True},
        ]
    )
    token = {"path": "token", "audience": audience, "expirationSeconds": 3600}
    pod.setdefault("volumes", []).extend(
        [
            {"name": "cluster-ca", "configMap": {"name": f"{cluster}-ca"}},
            {"name": "millrace-token", "projected": {"sources": [{"serviceAccountToken": token}]}},
        ]
    )
    pod["serviceAccountName"] = account
