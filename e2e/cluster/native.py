"""A Kubernetes of three nodes on this machine, made of its parts: no Docker, no registry.

Each machine is a set of namespaces (`machine.py`), joined by an isolated network (`network.py`).
They run the usual programs: etcd, the API server, containerd, kubelets. NetworkPolicies are
accepted and not enforced, and there are no load balancers. It needs root and Linux.
"""

import contextlib
import itertools
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import urllib3
from e2e import programs
from e2e.cluster import cgroups, control_plane, directories, disk, images, network
from e2e.cluster.certificates import Certificates
from e2e.cluster.commands import Background, CommandError, UnableError, run, wait_until
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.machine import Machine
from e2e.cluster.node import Node

NODES = 3

_MANIFESTS = sorted(Path(__file__).parents[1].joinpath("manifests").glob("*.yaml"))
# `PREROUTING` does not see packets of the control plane's own loopback, so kubectl still works.
_AWAY = ("PREROUTING", "-t", "raw", "-i", "nodes", "-p", "tcp", "--dport", str(control_plane.PORT))
_FROM_PODS = ("PREROUTING", "-t", "raw", "-p")
_DNS = ("--namespace=kube-system", "--selector=k8s-app=kube-dns")


class NativeCluster:
    """The machines of one cluster, and ways to break them.

    Args:
        name: distinguishes it from other clusters on this machine.

    Attributes:
        nodes: its nodes.
        kubectl: kubectl as the administrator.
    """

    def __init__(self, name: str = "millrace") -> None:
        self.name = name
        self.folder = directories.state(name)
        self.certificates = Certificates(self.folder / "certificates")
        self.kubectl = Kubectl(self.folder / "kubeconfig", programs.path("kubectl"))
        self._control_plane = Machine(
            name, "control-plane", self.folder / "control-plane", ("etcd",)
        )
        self.nodes = [
            Node(name, number, NODES, self.folder / f"node{number}", self.certificates)
            for number in range(1, NODES + 1)
        ]
        self._port_file = self.folder / "api-port"
        self._relay = Background(self.folder, "relay", str(self._port_file))
        self._volumes = Background(self.folder, "volumes", name)

    @classmethod
    def of_environment(cls) -> "NativeCluster":
        """Return the cluster that MILLRACE_CLUSTER names."""
        return cls(os.environ.get("MILLRACE_CLUSTER", "millrace"))

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig for kubectl, helm and Python clients, valid everywhere on this machine."""
        return self.kubectl.kubeconfig

    @property
    def api_port(self) -> int:
        """The port of the API server on this machine's loopback."""
        return int(self._port_file.read_text())

    def build(self, say: Callable[[str], None]) -> None:
        """Build programs and images that are not there.

        Args:
            say: gets reports of the progress.

        Raises:
            CommandError: something of it failed. UnableError: this machine cannot run a cluster.
        """
        _check_machine()
        for group in programs.OF_A_CLUSTER:
            group.main()
        say("images")
        images.build_parts()
        images.store()

    def up(self, say: Callable[[str], None] = lambda _: None) -> None:
        """Start the parts that do not run; return once all are ready.

        Args and Raises: as in `build`, which is done first.
        """
        self.build(say)
        disk.ensure(self.folder)
        say("control plane")
        self._sign()
        hub = self._control_plane
        network.make_bridge(hub.namespace)
        hub.boot(images.init_program())
        control_plane.start_store(hub)
        control_plane.start_api_server(hub, self.certificates)
        self._start_relay()
        with ThreadPoolExecutor(NODES) as threads:
            started = [threads.submit(node.start) for node in self.nodes]
            wait_until(self.kubectl.is_ready, f"the API server is ready; see {hub.folder}/log")
            control_plane.start_controllers(hub, self.certificates)
            say("nodes")
            for future in started:
                future.result()
        for manifest in _MANIFESTS:
            self.kubectl.apply(manifest)
        self._volumes.start(sys.executable, "-m", "e2e.cluster.volumes", self.name)
        self._wait_for_nodes()
        say("DNS")
        rollout = ("rollout", "status", "--timeout=300s", "--namespace=kube-system")
        self.kubectl(*rollout, "daemonset/coredns")

    def down(self) -> None:
        """Remove the cluster and everything that it made, except the caches."""
        self._volumes.end(signal.SIGKILL)
        self._relay.end(signal.SIGKILL)
        for node in self.nodes:
            node.power_off()
            cgroups.remove(node.cgroup)
        cgroups.remove(f"/{self.name}")
        self._control_plane.power_off()
        network.remove(self._control_plane.namespace)
        disk.remove(self.folder)
        if self.folder.exists():
            shutil.rmtree(self.folder)

    def connect(self, timeout: urllib3.Timeout) -> urllib3.HTTPSConnectionPool:
        """Return the administrator's connections to the API server; they never retry."""
        return urllib3.HTTPSConnectionPool(
            "127.0.0.1",
            self.api_port,
            cert_file=str(self.certificates.path("admin.crt")),
            key_file=str(self.certificates.path("admin.key")),
            ca_certs=str(self.certificates.authority),
            timeout=timeout,
            retries=False,
            maxsize=4,
        )

    def load_image(self) -> None:
        """Build the product's image from the checkout, and load it on every node that is on."""
        self._load(images.build_product(), images.PRODUCT)

    def load_spark_image(self) -> None:
        """The same for the image of Spark's pods."""
        self._load(images.build_spark(), images.SPARK)

    def load_kafka_clients_image(self) -> None:
        """The same for the image with clients of Kafka."""
        self._load(images.build_kafka_clients(), images.KAFKA_CLIENTS)

    def load_prometheus_image(self) -> str:
        """The same for the image of Prometheus; return its name."""
        image = images.build_prometheus()
        self._load(image, image)
        return image

    def load_release(self, version: str) -> None:
        """Load the product's image as if it were of a release, with its version as the tag."""
        self._load(images.build_release(version), f"{images.REPOSITORY}:{version}")

    def _load(self, image: str, name: str) -> None:
        with tempfile.TemporaryDirectory(dir=self.folder) as made:
            nodes = [node for node in self.nodes if node.machine.pid is not None]
            archive = Path(made, "image.tar")
            present = set.intersection(*(node.blobs() for node in nodes))
            images.export(image, name, archive, present)
            with ThreadPoolExecutor(NODES) as threads:
                list(threads.map(lambda node: node.import_image(archive), nodes))

    def node(self, name: str) -> Node:
        """Return a node by its name."""
        return next(node for node in self.nodes if node.name == name)

    def node_of(self, pod: str, namespace: str = "default") -> Node:
        """Return the node of a pod."""
        found = self.kubectl.get("pod", pod, f"--namespace={namespace}")
        return self.node(found["spec"]["nodeName"])

    def volume_of(self, claim: str, namespace: str = "default") -> tuple[Node, str]:
        """Return the node of a claim's volume, and the volume's path there."""
        name, node = self._find_volume(claim, namespace)
        return node, node.volume_path(name)

    def signal_pod(
        self, pod: str, name: str, namespace: str = "default", *, whole: bool = False
    ) -> None:
        """Send a signal, as `SIGKILL`, to the first process of a pod's only container, or to all.

        Args:
            pod: its name.
            name: of the signal.
            namespace: of the pod.
            whole: to all processes.
        """
        found = self.kubectl.get("pod", pod, f"--namespace={namespace}")
        (status,) = found["status"]["containerStatuses"]
        container = status["containerID"].removeprefix("containerd://")
        self.node(found["spec"]["nodeName"]).signal_container(container, name, whole=whole)

    def wipe_volume(self, claim: str, namespace: str = "default") -> None:
        """Remove everything that is on the volume of a claim."""
        name, node = self._find_volume(claim, namespace)
        node.wipe_volume(name)

    def _find_volume(self, claim: str, namespace: str) -> tuple[str, Node]:
        found = self.kubectl.get("pvc", claim, f"--namespace={namespace}")
        volume = self.kubectl.get("pv", found["spec"]["volumeName"])
        term = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]
        node = self.node(term["matchExpressions"][0]["values"][0])
        return volume["metadata"]["name"], node

    @contextlib.contextmanager
    def api_server_away(self) -> Iterator[None]:
        """Cut nodes and pods off from the API server during the block; kubectl here reaches it."""
        self._control_plane.run("iptables", "-A", *_AWAY, "-j", "DROP")
        try:
            yield
        finally:
            self._control_plane.run("iptables", "-D", *_AWAY, "-j", "DROP")

    @contextlib.contextmanager
    def names_away(self) -> Iterator[None]:
        """Leave pods' questions to DNS without an answer during the block."""
        with contextlib.ExitStack() as undo:
            for node, protocol in itertools.product(self.nodes, ("udp", "tcp")):
                undo.enter_context(_dropped(node, protocol, "--dport", "53"))
            yield

    @contextlib.contextmanager
    def names_late(self, but: Node) -> Iterator[None]:
        """Let DNS answer with what it knows now during the block, on all nodes but one."""
        pods = {
            pod["metadata"]["name"]: pod["status"]["podIP"]
            for pod in self.kubectl.get("pods", *_DNS)["items"]
            if self.node(pod["spec"]["nodeName"]) is not but
        }
        with contextlib.ExitStack() as undo:
            for node, address in itertools.product(self.nodes, pods.values()):
                undo.enter_context(_dropped(node, "tcp", "--dport", "443", "--source", address))
            yield
        for pod in pods:  # Else it would learn what it missed by its kernel's next attempt.
            self.signal_pod(pod, "SIGKILL", "kube-system")

    @contextlib.contextmanager
    def api_server_slow(self, stopped_s: float = 1.0, running_s: float = 0.1) -> Iterator[None]:
        """Stop the API server for most of the time during the block."""
        over = threading.Event()

        def go_on() -> None:
            while not over.wait(running_s):
                self._control_plane.signal("kube-apiserver", signal.SIGSTOP)
                over.wait(stopped_s)
                self._control_plane.signal("kube-apiserver", signal.SIGCONT)

        with ThreadPoolExecutor(1) as thread:
            done = thread.submit(go_on)
            try:
                yield
            finally:
                over.set()
                done.result()

    def restart_api_server(self) -> None:
        """Kill the API server, and start it again; return once it is ready."""
        self._control_plane.signal("kube-apiserver", signal.SIGKILL)
        wait_until(
            lambda: not self._control_plane.is_running("kube-apiserver"), "the API server ends"
        )
        control_plane.start_api_server(self._control_plane, self.certificates)
        wait_until(self.kubectl.is_ready, "the API server is ready")

    def run_outside(self, *command: str | Path, input: str | None = None) -> str:
        """Run a program that can reach nodes and pods, like a client outside of them."""
        return self._control_plane.run(*command, input=input)

    def _sign(self) -> None:
        self.certificates.make_authority()
        control_plane.sign(self.certificates)
        Node.sign_shared(self.certificates)
        for node in self.nodes:
            node.sign()

    def _start_relay(self) -> None:
        module = (sys.executable, "-m", "e2e.cluster.relay")
        where = (self._control_plane.namespace, str(control_plane.PORT))
        self._relay.start(*module, *where, self._port_file)
        wait_until(self._port_file.exists, f"the relay listens; see {self.folder}/relay.log")
        server = f"https://127.0.0.1:{self.api_port}"
        self.certificates.write_kubeconfig(self.kubeconfig, "admin", server)

    def _wait_for_nodes(self) -> None:
        names = [f"node/{node.name}" for node in self.nodes]

        def are_there() -> bool:
            with contextlib.suppress(CommandError):
                self.kubectl("get", *names)
                return True
            return False

        wait_until(are_there, f"the kubelets register; see {self.folder}/node*/log")
        self.kubectl("wait", "--for=condition=Ready", "--timeout=300s", *names)


def _check_machine() -> None:
    if os.geteuid() != 0:
        raise UnableError("a cluster without Docker takes root: become it, or use kind")
    wanted = (
        *("buildah", "cc", "conntrack", "containerd", "debootstrap", "ip", "iptables"),
        *("mkfs.xfs", "nsenter", "openssl", "runc", "unshare"),
    )
    if missing := [program for program in wanted if shutil.which(program) is None]:
        raise UnableError(f"install what is missing, or run make: {', '.join(missing)}")
    try:
        run("unshare", "--mount", "--net", "mount", "-t", "tmpfs", "tmpfs", "/mnt")
        run("losetup", "--find")
    except CommandError as error:
        raise UnableError(f"root may make no namespaces, mounts and loops here: {error}") from error


@contextlib.contextmanager
def _dropped(node: Node, protocol: str, *choices: str) -> Iterator[None]:
    """Drop some packets of a node's pods during the block."""
    rule = (*_FROM_PODS, protocol, *choices, "-j", "DROP")
    node.machine.run("iptables", "-A", *rule)
    try:
        yield
    finally:
        node.machine.run("iptables", "-D", *rule)
