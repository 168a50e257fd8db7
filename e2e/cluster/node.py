"""The machines of pods: containerd, kubelet and kube-proxy, and each machine's volumes."""

import contextlib
import json
from pathlib import Path

import grpc
from e2e import programs
from e2e.cluster import cgroups, control_plane, images, network
from e2e.cluster.certificates import Certificates
from e2e.cluster.commands import CommandError, wait_until
from e2e.cluster.machine import Machine

ZONES = ("a", "b", "c")

_PROXY = "kube-proxy"
_API_SERVER = f"https://{network.CONTROL_PLANE}:{control_plane.PORT}"
_SOCKET = "/run/containerd/containerd.sock"
_CTR = ("ctr", f"--address={_SOCKET}", "--namespace=k8s.io")
_VERSION = "/runtime.v1.RuntimeService/Version"
_VOLUMES = "/var/lib/volumes"

_CONTAINERD = f"""version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "{_SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{images.PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/var/lib/cni/conf"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
"""


class Node:
    """One node.

    Args:
        cluster: its name.
        number: the node's, from 1.
        nodes: how many the cluster has.
        folder: for the node's files; beside it is the folder of the shared volumes.
        certificates: of the cluster.
    """

    def __init__(
        self, cluster: str, number: int, nodes: int, folder: Path, certificates: Certificates
    ) -> None:
        self.name = f"node{number}"
        self.number = number
        self.machine = Machine(cluster, self.name, folder, ("containerd", "kubelet"))
        self._hub = f"{cluster}-control-plane"
        self._nodes = nodes
        self._shared = folder.with_name("shared")
        self._certificates = certificates
        self.cgroup = f"/{cluster}/{self.name}"

    @property
    def address(self) -> str:
        """Its address on the network of the nodes."""
        return network.node_address(self.number)

    @staticmethod
    def sign_shared(certificates: Certificates) -> None:
        """Create the certificate of every node's kube-proxy."""
        certificates.sign(_PROXY, f"system:{_PROXY}")
        path = certificates.path(f"{_PROXY}.kubeconfig")
        certificates.write_kubeconfig(path, _PROXY, _API_SERVER)

    def sign(self) -> None:
        """Create the certificate of its kubelet."""
        also = (f"DNS:{self.name}", f"IP:{self.address}")
        self._certificates.sign(self.name, f"system:node:{self.name}", "system:nodes", also)
        self._certificates.write_kubeconfig(self._kubeconfig(self.name), self.name, _API_SERVER)

    def start(self) -> None:
        """Boot it, and start the programs that do not run."""
        network.make_node(self.machine.namespace, self._hub, self.number, self._nodes)
        cgroups.make(self.cgroup)
        images.clone_store(self.machine.folder / "disk" / "containerd")
        self.machine.boot(images.init_program())
        self._write_configuration()
        for image in (*self._volume_images(), *sorted(self._shared.glob("*.xfs"))):
            self._mount(image)
        self.machine.start("containerd", "containerd", f"--config={self._file('containerd.toml')}")
        wait_until(self._has_containerd, f"containerd answers on {self.name}")
        self.machine.start(
            "kubelet",
            programs.path("kubelet"),
            f"--config={self._file('kubelet.json')}",
            f"--kubeconfig={self._kubeconfig(self.name)}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
            f"--node-labels=topology.kubernetes.io/zone={ZONES[(self.number - 1) % len(ZONES)]}",
        )
        self.machine.start(
            _PROXY, programs.path(_PROXY), f"--config={self._file('kube-proxy.json')}"
        )

    def power_off(self) -> None:
        """Cut its power, and with it its network, without a message to any peer."""
        with contextlib.suppress(CommandError):  # It may be off, or the cluster partly removed.
            network.set_link(self._hub, self.number, is_up=False)
        self.machine.power_off()
        network.remove(self.machine.namespace)

    def set_link(self, *, is_up: bool) -> None:
        """Connect or disconnect its cable; its programs run on."""
        network.set_link(self._hub, self.number, is_up=is_up)

    def blobs(self) -> set[str]:
        """Return the digests of its images' blobs."""
        return set(self.machine.run(*_CTR, "content", "ls", "-q").split())

    def import_image(self, archive: Path) -> None:
        """Load an image."""
        self.machine.run(*_CTR, "images", "import", archive, seconds_max=600.0)

    def signal_container(self, container: str, name: str, *, whole: bool = False) -> None:
        """Send a signal, as `SIGKILL`, to the first process of a container, or to all of them."""
        others = ("--all",) if whole else ()
        self.machine.run(*_CTR, "tasks", "kill", f"--signal={name}", *others, container)

    def volumes(self) -> list[str]:
        """Return the names of its volumes; it may be off."""
        return [image.stem for image in self._volume_images()]

    def make_volume(self, name: str, size_bytes: int) -> str:
        """Create a volume with its own file system, unless it exists; return its path."""
        return self._make_volume(self._volume_image(name), size_bytes)

    def share_volume(self, name: str, size_bytes: int) -> str:
        """Give the node a shared volume, at the same path on all nodes; return the path.

        All nodes share one kernel, so this is one file system, whatever the number of nodes.
        """
        return self._make_volume(self._shared / f"{name}.xfs", size_bytes)

    def _make_volume(self, image: Path, size_bytes: int) -> str:
        if not image.exists():
            image.parent.mkdir(exist_ok=True)
            made = image.with_suffix(".new")
            with made.open("wb") as file:
                file.truncate(size_bytes)
            # XFS can grow while mounted; ext4 needs a right for it that root may lack.
            self.machine.run("mkfs.xfs", "-q", "-K", made)
            made.rename(image)
        self._mount(image)
        return self.volume_path(image.stem)

    def volume_path(self, name: str) -> str:
        """Return where a volume is mounted."""
        return f"{_VOLUMES}/{name}"

    def wipe_volume(self, name: str) -> None:
        """Remove everything that is on a volume."""
        self.machine.run("find", f"{_VOLUMES}/{name}", "-mindepth", "1", "-delete")

    def remove_volume(self, name: str) -> None:
        """Remove a volume, unless it is gone."""
        if self.machine.pid is not None:
            unmount = '! mountpoint -q "$0" || umount "$0"; rm -rf "$0"'
            self.machine.run("sh", "-ec", unmount, f"{_VOLUMES}/{name}")
        for image in (self._volume_image(name), self._shared / f"{name}.xfs"):
            image.unlink(missing_ok=True)

    def grow_volume(self, name: str, size_bytes: int) -> None:
        """Enlarge a volume while it is used."""
        image = self._volume_image(name)
        with image.open("r+b") as file:
            file.truncate(size_bytes)
        path = f"{_VOLUMES}/{name}"
        device = self.machine.run("findmnt", "-no", "SOURCE", path).strip()
        self.machine.run("losetup", "--set-capacity", device)
        self.machine.run("xfs_growfs", path)

    def _volume_image(self, name: str) -> Path:
        return self.machine.folder / "volumes" / f"{name}.xfs"

    def _volume_images(self) -> list[Path]:
        return sorted((self.machine.folder / "volumes").glob("*.xfs"))

    def _mount(self, image: Path) -> None:
        path = f"{_VOLUMES}/{image.stem}"
        self.machine.run(
            *("sh", "-c", 'mkdir -p "$1"; mountpoint -q "$1" || mount -o loop "$0" "$1"'),
            *(image, path),
        )

    def _has_containerd(self) -> bool:
        """Whether containerd serves kubelets; a kubelet ends if it does not."""
        with (
            contextlib.suppress(grpc.RpcError),
            grpc.insecure_channel(f"unix:/proc/{self.machine.pid}/root{_SOCKET}") as channel,
        ):
            ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_VERSION)
            ask(b"", timeout=5)
            return True
        return False

    def _file(self, name: str) -> Path:
        return self.machine.folder / name

    def _kubeconfig(self, name: str) -> Path:
        return self._certificates.path(f"{name}.kubeconfig")

    def _write_configuration(self) -> None:
        self._file("containerd.toml").write_text(_CONTAINERD)
        # Nodes reach no other DNS server: names outside of the cluster do not resolve.
        self._file("resolv.conf").write_text("nameserver 127.0.0.1\n")
        configurations = {
            "kubelet.json": self._kubelet(),
            "kube-proxy.json": self._kube_proxy(),
            "pods.conflist": _pod_network(self.number),
        }
        for name, configuration in configurations.items():
            file, content = self._file(name), json.dumps(configuration, indent=2)
            # kube-proxy ends when its file is written, even with the same content.
            if not file.exists() or file.read_text() != content:
                file.write_text(content)
        self.machine.run("mkdir", "-p", "/var/lib/cni/conf")
        self.machine.run("cp", self._file("pods.conflist"), "/var/lib/cni/conf/")

    def _kubelet(self) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self._certificates.authority)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(self._certificates.path(f"{self.name}.crt")),
            "tlsPrivateKeyFile": str(self._certificates.path(f"{self.name}.key")),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self.cgroup,
            "failSwapOn": False,
            "clusterDNS": [network.DNS_SERVICE],
            "clusterDomain": "cluster.local",
            "containerRuntimeEndpoint": f"unix://{_SOCKET}",
            "resolvConf": str(self._file("resolv.conf")),
            "volumePluginDir": "/var/lib/kubelet/volume-plugins",
            # The disk is this computer's; pods do not cause its lack of space.
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "4s",
            "maxPods": 60,
        }

    def _kube_proxy(self) -> dict[str, object]:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "clientConnection": {"kubeconfig": str(self._kubeconfig(_PROXY))},
            "hostnameOverride": self.name,
            "clusterCIDR": network.PODS,
            # A namespace may read these settings, and not write them.
            "conntrack": {
                **{"maxPerCore": 0, "min": 0},
                **{"tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
            },
            "metricsBindAddress": "127.0.0.1:10249",
        }


def _pod_network(number: int) -> dict[str, object]:
    """Return the pods' network: a cable for each pod to its node, which routes.

    With a bridge, answers between pods of one node would bypass the rules of Services.
    """
    addresses = {
        "type": "host-local",
        "dataDir": "/run/cni",  # Empty at each boot, when there are no pods.
        "ranges": [[{"subnet": network.node_pods(number)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {"type": "ptp", "ipMasq": False, "ipam": addresses},
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }
