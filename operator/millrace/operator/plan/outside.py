"""Addresses of brokers for clients outside, from the state of the Services."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from millrace.core.addresses import host_port
from millrace.operator.model.certificates import host_of
from millrace.operator.model.listeners import (
    Listeners,
    NodeAddress,
    OutsideListener,
    OutsideType,
)
from millrace.operator.model.objects import Document, broker_container, outside_file
from millrace.operator.model.outside import Way, first_ways, ways
from millrace.operator.model.ports import (
    CLIENT_KAFKA_PORT_NAME,
    CLIENT_KAFKA_TLS_PORT_NAME,
    CLIENT_TLS_PORT_NAME,
)
from millrace.operator.model.security import TlsMode


@dataclass(frozen=True, slots=True)
class Outside:
    """Known and missing addresses.

    Attributes:
        addresses: the addresses of each broker, by the file that it reads. Without a host, `:port`,
            it is the address of the broker's node, which the broker knows.
        bootstrap: where clients connect first; empty while unknown.
        tls_bootstrap: likewise by TLS, also while the other one is in plain text; empty: nowhere.
        kafka_bootstrap, kafka_tls_bootstrap: likewise for clients of Kafka.
        waits: missing addresses, for people.
        away: brokers whose pods are on no node now, where that is part of an address: they most
            likely come back to the same one.
    """

    addresses: Mapping[str, str]
    bootstrap: str
    waits: Sequence[str] = ()
    away: frozenset[str] = frozenset()
    tls_bootstrap: str = ""
    kafka_bootstrap: str = ""
    kafka_tls_bootstrap: str = ""


def hosts_outside(
    found: Outside, brokers: Sequence[str], present: Mapping[str, frozenset[str]]
) -> dict[str, frozenset[str]]:
    """Return the names of each broker for clients outside, which its certificate needs (G9).

    While one of them is away, as each time its pod is replaced, or has no address for another
    reason, certificates keep the names that they have.

    Args:
        present: names in the certificates of brokers.
    """
    first = {host_of(address) for address in found.bootstrap.split(",") if address}
    is_whole = not found.away and all(outside_file(each) in found.addresses for each in brokers)
    return {
        broker: frozenset(
            host
            for host in first
            | {host_of(found.addresses[file]) for file in _files(broker, found.addresses)}
            if host
        )
        | (frozenset() if is_whole else present.get(broker, frozenset()))
        for broker in brokers
    }


def told_outside(
    found: Outside,
    brokers: Sequence[str],
    certified: Mapping[str, frozenset[str]],
    told: Mapping[str, str],
    tls: TlsMode = TlsMode.REQUIRED,
) -> Outside:
    """Return the addresses that clients may be told: brokers have certificates with these names.

    While there is plain text, too, clients are told its addresses in any case.

    Args:
        certified: names in the certificates that brokers have for sure.
        told: the addresses that clients are told now, which stay: a certificate that replaces
            another one has its names, too.
    """
    addresses, waits = {}, list(found.waits)
    first = {host_of(address) for address in found.bootstrap.split(",") if address}
    is_first_certified = True
    for broker in brokers:
        known = certified.get(broker, frozenset())
        by_tls = [outside_file(broker, kind) for kind in ("tls", "kafka-tls")]
        is_first_certified &= first <= known
        for file in _files(broker, found.addresses):
            address = found.addresses[file]
            is_plain = tls is TlsMode.OPTIONAL and file not in by_tls
            if is_plain or told.get(file) == address or host_of(address) in known:
                addresses[file] = address
            else:
                waits.append(f"{broker}: its certificate has yet to get the name of {address}")
    if not is_first_certified:
        waits.append(f"certificates have yet to get the names of {found.bootstrap}")
    return replace(found, addresses=addresses, waits=waits)


def _files(broker: str, addresses: Mapping[str, str]) -> list[str]:
    files = (outside_file(broker, kind) for kind in ("", "tls", "drpc", "kafka", "kafka-tls"))
    return [file for file in files if file in addresses]


class _Missing(Exception):
    """Something is not known, for this reason."""


def outside(
    listeners: Listeners,
    bootstrap: Document | None,
    services: Mapping[str, Document],
    pods: Sequence[Document],
    nodes: Sequence[Document],
    *,
    told: Mapping[str, str] | None = None,
    tls: TlsMode = TlsMode.DISABLED,
) -> Outside:
    """Return the addresses.

    Args:
        bootstrap: the Service that clients connect to first; None: there is none yet.
        services: of brokers, by the broker's name.
        pods: of brokers.
        nodes: at least those of the pods, if another than their internal address is wanted.
        told: the addresses that clients are told now, which brokers keep that are away;
            None: there are none.
        tls: of the brokers. An address with TLS must be in a certificate first: a broker may then
            not take that of its node by itself.
    """
    listener = listeners.outside
    assert listener is not None
    hosts = _Hosts(
        listener,
        {pod["metadata"]["name"]: pod for pod in pods},
        {node["metadata"]["name"]: node for node in nodes},
    )
    addresses, waits = {}, []
    for broker, service in services.items():
        for way in ways(listeners, broker, tls):
            if broker in hosts.pods and not _listens(hosts.pods[broker], way):
                waits.append(f"{broker}: its pod has yet to be restarted with the listener")
            try:
                addresses[way.file] = _broker_address(way, broker, service, hosts)
            except _Missing as missing:
                waits.append(f"{broker}: {missing}")
                if told is not None and hosts.is_away(broker) and way.file in told:
                    addresses[way.file] = told[way.file]
    first = dict[str, str]()
    for way in first_ways(listeners, tls):
        if bootstrap is None:
            break
        try:
            first[way.name] = _bootstrap_address(listener, bootstrap, way, hosts)
        except _Missing as missing:
            waits.append(str(missing))
    return Outside(
        addresses,
        first.get("client", ""),
        list(dict.fromkeys(waits)),
        frozenset(filter(hosts.is_away, services)),
        first.get(CLIENT_TLS_PORT_NAME, ""),
        first.get(CLIENT_KAFKA_PORT_NAME, ""),
        first.get(CLIENT_KAFKA_TLS_PORT_NAME, ""),
    )


@dataclass(frozen=True, slots=True)
class _Hosts:
    """Addresses of the brokers' nodes for clients outside."""

    listener: OutsideListener
    pods: Mapping[str, Document]
    nodes: Mapping[str, Document]

    def is_away(self, broker: str) -> bool:
        """Whether a broker's node is not known, and part of an address."""
        pod = self.pods.get(broker, {})
        is_internal = self.listener.node_address is NodeAddress.INTERNAL_IP
        part, name = ("status", "hostIP") if is_internal else ("spec", "nodeName")
        is_known = bool((pod.get(part) or {}).get(name))
        return self.listener.type is OutsideType.NODE_PORT and not is_known

    def of(self, broker: str) -> str:
        """Return the address of a broker's node.

        Raises:
            _Missing: it has none, or is not known yet.
        """
        pod = self.pods.get(broker, {})
        node_name = (pod.get("spec") or {}).get("nodeName")
        wanted = self.listener.node_address
        if wanted is NodeAddress.INTERNAL_IP:
            address: str = (pod.get("status") or {}).get("hostIP") or ""
        else:
            node = self.nodes.get(node_name or "", {})
            found = (node.get("status") or {}).get("addresses") or ()
            address = next((known["address"] for known in found if known["type"] == wanted), "")
        if not address:
            raise _Missing(
                f"its node {node_name} has no {wanted}: name another nodeAddress, or an "
                "advertisedHost for this broker"
                if node_name and wanted is not NodeAddress.INTERNAL_IP
                else "its pod runs on no node yet"
            )
        return address

    def all(self) -> list[str]:
        """Return the addresses that are known, each once."""
        found = set()
        for broker in self.pods:
            try:
                found.add(self.of(broker))
            except _Missing:
                continue
        return sorted(found)


def _listens(pod: Document, way: Way) -> bool:
    """Whether a broker's pod has the listener for clients outside."""
    ports = broker_container(pod).get("ports") or ()
    return any(way.target in (port.get("name"), port.get("containerPort")) for port in ports)


def _broker_address(way: Way, broker: str, service: Document, hosts: _Hosts) -> str:
    listener, host, port = hosts.listener, way.host, way.advertised_port
    if host is not None and port is not None:
        return host_port(host, port)
    if listener.type is OutsideType.LOAD_BALANCER:
        if host is None:
            host = _load_balancer(service)
        return host_port(host, port or way.port)
    if listener.type is OutsideType.CLUSTER_IP:
        return host_port(_name_of(service) if host is None else host, port or way.port)
    port = port or _node_port(service, way.name)
    is_own = listener.node_address is NodeAddress.INTERNAL_IP and not way.has_tls
    if host is None and is_own:
        return f":{port}"  # Right wherever the broker starts next.
    return host_port(hosts.of(broker) if host is None else host, port)


def _bootstrap_address(
    listener: OutsideListener, service: Document, way: Way, hosts: _Hosts
) -> str:
    if listener.type is OutsideType.LOAD_BALANCER:
        return host_port(_load_balancer(service), way.port)
    if listener.type is OutsideType.CLUSTER_IP:
        return host_port(_name_of(service), way.port)
    port = _node_port(service, way.name)
    if not (known := hosts.all()):
        raise _Missing(
            "clients outside have nowhere to connect first: no broker runs on a node yet"
        )
    return ",".join(host_port(host, port) for host in known)


def _name_of(service: Document) -> str:
    """Return the name by which pods find a Service."""
    metadata = service["metadata"]
    return f"{metadata['name']}.{metadata['namespace']}.svc"


def _load_balancer(service: Document) -> str:
    found = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
    for ingress in found:
        host: str = ingress.get("hostname") or ingress.get("ip") or ""
        if host:
            return host
    raise _Missing(
        f"no load balancer has given Service {service['metadata']['name']} an address: does this "
        "Kubernetes cluster have any?"
    )


def _node_port(service: Document, name: str) -> int:
    ports = {port["name"]: port.get("nodePort") for port in service["spec"]["ports"]}
    port: int | None = ports.get(name)
    if port is None:
        raise _Missing(f"Service {service['metadata']['name']} has no port on the nodes yet")
    return port
