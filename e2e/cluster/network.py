"""The network of a cluster: one bridge in the control plane's namespace, for all machines.

It is isolated: neither pods nor nodes reach the network of this computer.
"""

import contextlib

from e2e.cluster.commands import CommandError, run

CONTROL_PLANE = "172.30.0.1"
PODS = "10.244.0.0/16"
SERVICES = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
DNS_SERVICE = "10.96.0.10"

_BRIDGE = "nodes"


def node_address(number: int) -> str:
    """Return the address of a node; they are numbered from 1."""
    return f"172.30.0.{10 + number}"


def node_pods(number: int) -> str:
    """Return the network of a node's pods."""
    return f"10.244.{number}.0/24"


def make_bridge(namespace: str) -> None:
    """Create the control plane's namespace, unless it exists."""
    if not _is_there(namespace):
        run("ip", "netns", "add", namespace)
        _configure(
            namespace,
            "link set lo up",
            f"link add {_BRIDGE} type bridge",
            f"addr add {CONTROL_PLANE}/24 dev {_BRIDGE}",
            f"link set {_BRIDGE} up",
        )
        _forward(namespace)


def make_node(namespace: str, hub: str, number: int, nodes: int) -> None:
    """Create a node's namespace and connect it to the bridge, unless it exists.

    Args:
        namespace: of the node.
        hub: the control plane's.
        number: of the node.
        nodes: how many there are.
    """
    if _is_there(namespace):
        return
    run("ip", "netns", "add", namespace)
    port = f"node{number}"
    # Always the same hardware address: the others remember it.
    address = f"02:00:00:00:00:{number:02x}"
    peer = f"peer name eth0 address {address} netns {namespace}"
    with contextlib.suppress(CommandError):
        _configure(hub, f"link del {port}")  # It may outlive the namespace for a moment.
    _configure(hub, f"link add {port} type veth {peer}", f"link set {port} master {_BRIDGE} up")
    others = [other for other in range(1, nodes + 1) if other != number]
    _configure(
        namespace,
        "link set lo up",
        f"addr add {node_address(number)}/24 dev eth0",
        "link set eth0 up",
        f"route add default via {CONTROL_PLANE}",
        *(f"route add {node_pods(other)} via {node_address(other)}" for other in others),
    )
    _configure(hub, f"route replace {node_pods(number)} via {node_address(number)}")
    _forward(namespace)


def set_link(hub: str, number: int, *, is_up: bool) -> None:
    """Plug a node's cable in or out."""
    _configure(hub, f"link set node{number} {'up' if is_up else 'down'}")


def remove(namespace: str) -> None:
    """Remove a namespace and what is in it."""
    if _is_there(namespace):
        run("ip", "netns", "del", namespace)


def _is_there(namespace: str) -> bool:
    return namespace in {line.split()[0] for line in run("ip", "netns", "list").splitlines()}


def _configure(namespace: str, *commands: str) -> None:
    run("ip", "-n", namespace, "-batch", "-", input="".join(f"{line}\n" for line in commands))


def _forward(namespace: str) -> None:
    """Let a namespace forward packets."""
    setting = "/proc/sys/net/ipv4/ip_forward"
    run("nsenter", f"--net=/run/netns/{namespace}", "sh", "-c", f"echo 1 >{setting}")
