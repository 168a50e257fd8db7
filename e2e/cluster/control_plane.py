"""The machine of etcd, the API server, the controllers and the scheduler."""

from pathlib import Path

from e2e import programs
from e2e.cluster import network
from e2e.cluster.certificates import Certificates
from e2e.cluster.machine import Machine

PORT = 6443

_CONTROLLERS = "kube-controller-manager"
_SCHEDULER = "kube-scheduler"


def sign(certificates: Certificates) -> None:
    """Create the certificates of its programs, and the administrator's."""
    names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost")
    addresses = ("127.0.0.1", network.CONTROL_PLANE, network.API_SERVICE)
    also = (*(f"DNS:{name}" for name in names), *(f"IP:{address}" for address in addresses))
    certificates.sign("kube-apiserver", "kube-apiserver", also=also)
    certificates.sign("admin", "admin", "system:masters")
    for name in (_CONTROLLERS, _SCHEDULER):
        certificates.sign(name, f"system:{name}")
        certificates.write_kubeconfig(
            certificates.path(f"{name}.kubeconfig"), name, f"https://127.0.0.1:{PORT}"
        )


def start_store(machine: Machine) -> None:
    """Start etcd, unless it runs."""
    # It need not flush: its folder is on this machine, whose power is not cut.
    etcd = "http://127.0.0.1:2379"
    machine.start(
        "etcd",
        *(programs.path("etcd"), "--data-dir=/var/lib/etcd"),
        *(f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}"),
        *("--listen-peer-urls=http://127.0.0.1:2380", "--log-level=warn", "--unsafe-no-fsync"),
    )


def start_api_server(machine: Machine, certificates: Certificates) -> None:
    """Start the API server, unless it runs."""
    machine.start(
        "kube-apiserver",
        programs.path("kube-apiserver"),
        "--etcd-servers=http://127.0.0.1:2379",
        f"--advertise-address={network.CONTROL_PLANE}",
        f"--secure-port={PORT}",
        f"--service-cluster-ip-range={network.SERVICES}",
        f"--client-ca-file={certificates.authority}",
        f"--tls-cert-file={certificates.path('kube-apiserver.crt')}",
        f"--tls-private-key-file={certificates.path('kube-apiserver.key')}",
        f"--kubelet-client-certificate={certificates.path('admin.crt')}",
        f"--kubelet-client-key={certificates.path('admin.key')}",
        f"--kubelet-certificate-authority={certificates.authority}",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={certificates.path('service-accounts.pub')}",
        f"--service-account-signing-key-file={certificates.path('service-accounts.key')}",
        "--authorization-mode=Node,RBAC",
        # Pods get their node's zone as a label; from Kubernetes 1.35 on this is the default.
        "--feature-gates=PodTopologyLabelsAdmission=true",
        "--enable-admission-plugins=NodeRestriction,PodTopologyLabels",
        "--allow-privileged=true",
        "--enable-aggregator-routing=true",  # Without a kube-proxy it must reach pods itself.
        "--profiling=false",
    )


def start_controllers(machine: Machine, certificates: Certificates) -> None:
    """Start the controllers and the scheduler, unless they run; needs a ready API server."""
    kubeconfigs = {
        name: certificates.path(f"{name}.kubeconfig") for name in (_CONTROLLERS, _SCHEDULER)
    }
    machine.start(
        _CONTROLLERS,
        programs.path(_CONTROLLERS),
        *_access(kubeconfigs[_CONTROLLERS]),
        f"--service-account-private-key-file={certificates.path('service-accounts.key')}",
        f"--root-ca-file={certificates.authority}",
        f"--cluster-signing-cert-file={certificates.authority}",
        f"--cluster-signing-key-file={certificates.path('ca.key')}",
        "--use-service-account-credentials",
        "--allocate-node-cidrs=false",  # Each node's own configuration has its network.
        "--leader-elect=false",
        "--node-monitor-grace-period=16s",  # Instead of 50: tests wait for it.
    )
    machine.start(
        _SCHEDULER,
        programs.path(_SCHEDULER),
        *_access(kubeconfigs[_SCHEDULER]),
        "--leader-elect=false",
    )


def _access(kubeconfig: Path) -> list[str]:
    kinds = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
    return [f"--{kind}={kubeconfig}" for kind in kinds]
