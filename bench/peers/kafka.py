"""Apache Kafka nodes as processes: KRaft broker and controller in one JVM, fresh data directories.

Heap and garbage collector are those of Kafka's own start script. Two broker settings differ from
the defaults: replication (as the number of nodes allows; with three replicas, two must be in sync),
and quick removal of deleted topics, so that one round's files do not slow down the next.
"""

import base64
import re
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers.maven import class_path, java
from bench.processes import LoadFailedError, start, stop
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, PartitionMetadata
from confluent_kafka.cimpl import NewTopic

START_TIMEOUT_S = 60
ADMIN_TIMEOUT_S = 30
REPLICATION_MAX = 3
LEADER_ID = re.compile(r"LeaderId:\s+(\d+)")
HEAP = "1g"  # kafka-server-start.sh: -Xms1G -Xmx1G
JVM_OPTIONS = (
    "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-XX:MaxInlineLevel=15", "-Djava.awt.headless=true",
)  # fmt: skip  # kafka-run-class.sh

SERVER_PROPERTIES = """\
process.roles=broker,controller
node.id={node_id}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
log.dirs={directory}
auto.create.topics.enable=false
default.replication.factor={replication}
offsets.topic.replication.factor={replication}
transaction.state.log.replication.factor={replication}
transaction.state.log.min.isr={min_isr}
share.coordinator.state.topic.replication.factor={replication}
share.coordinator.state.topic.min.isr={min_isr}
group.initial.rebalance.delay.ms=0
log.segment.delete.delay.ms=1000
"""

TLS_PROPERTIES = """\
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port},SSL://127.0.0.1:{tls_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SSL://127.0.0.1:{tls_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
"""
"""In the place of those above: clients may also come by TLS."""

LOG4J_PROPERTIES = """\
rootLogger.level=error
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=[%d] %p %m (%c)%n
"""


@dataclass(kw_only=True)
class Node:
    """One node, which tests may kill and start again."""

    command: list[str]
    log: Path
    process: subprocess.Popen[bytes]

    def kill(self) -> float:
        """Kill it with -9; return the monotonic time of the kill."""
        self.process.send_signal(signal.SIGKILL)
        killed_at = time.monotonic()
        self.process.wait()
        return killed_at

    def start_again(self) -> None:
        """Start it on its old data; it is not ready yet when this returns."""
        self.process = start(self.command, self.log)


@dataclass(frozen=True, kw_only=True)
class Kafka:
    """Running nodes of one cluster.

    Attributes:
        address: of all nodes, with commas.
        nodes: by node id.
        replication: of the topics that `create_topic` makes.
        tls_address: where clients come by TLS; empty: nowhere.
    """

    address: str
    directory: Path
    replication: int
    tls_address: str = ""
    nodes: dict[int, Node] = field(default_factory=dict)

    @property
    def pids(self) -> tuple[int, ...]:
        """The nodes' processes."""
        return tuple(node.process.pid for node in self.nodes.values())

    def by_protocol(self, connections: Mapping[str, float]) -> Mapping[str, float]:
        """Return a client's connections by protocol: there is one."""
        return {"Kafka": sum(connections.values())}

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic and wait until its partitions have a leader.

        Raises:
            LoadFailedError: Kafka refused it, or it did not exist in time.
        """
        admin = self._admin()
        topic = NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=self.replication,
            config={"min.insync.replicas": str(max(1, self.replication - 1)), **config},
        )
        try:
            admin.create_topics([topic])[name].result(ADMIN_TIMEOUT_S)
        except KafkaException as error:
            raise LoadFailedError(f"Kafka did not create {name}: {error}") from error
        deadline = time.monotonic() + ADMIN_TIMEOUT_S
        while time.monotonic() < deadline:
            found = self.partitions(name)
            if len(found) == partitions and all(
                partition.leader >= 0 for partition in found.values()
            ):
                return
            time.sleep(0.02)
        raise LoadFailedError(f"Kafka's topic {name} has no leaders")

    def delete_topic(self, name: str) -> None:
        """Delete a topic; its files disappear a second later."""
        admin = self._admin()  # Keep it: a client that goes away cancels its requests.
        admin.delete_topics([name])[name].result(ADMIN_TIMEOUT_S)

    def partitions(self, name: str) -> dict[int, PartitionMetadata]:
        """Return a topic's partitions by number; none while it is not known."""
        admin = self._admin()
        found: dict[int, PartitionMetadata] = (
            admin.list_topics(name, timeout=ADMIN_TIMEOUT_S).topics[name].partitions
        )
        return found

    def controller(self) -> int:
        """Return the node that is the active controller.

        Raises:
            LoadFailedError: Kafka's tool does not tell.
        """
        command = java_command(
            self.directory, "256m", "org.apache.kafka.tools.MetadataQuorumCommand",
            "--bootstrap-server", self.address, "describe", "--status",
        )  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        leader = LEADER_ID.search(done.stdout)
        if leader is None:
            raise LoadFailedError(f"no controller from Kafka's tool:\n{done.stdout}{done.stderr}")
        return int(leader[1])

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})


@contextmanager
def running_kafka(
    directory: Path,
    *,
    nodes: int = 1,
    replication: int = 1,
    properties: str = "",
    keystore: Path | None = None,
    first_id: int = 1,
) -> Iterator[Kafka]:
    """Start nodes with their data below `directory`, and stop them at the end of the block.

    Args:
        directory: made here.
        nodes: how many.
        replication: of topics.
        properties: more lines for `server.properties`.
        keystore: PEM file of a key and its certificate: the one node has a port with TLS, too.
        first_id: of the nodes, whose ids follow one another.

    Raises:
        LoadFailedError: they did not start; the message has the end of the log.
    """
    directory.mkdir(parents=True)
    (directory / "log4j2.properties").write_text(LOG4J_PROPERTIES)
    ports = _free_ports(2 * nodes + 1)
    node_ids = range(first_id, first_id + nodes)
    voters = ",".join(
        f"{node_id}@127.0.0.1:{port}"
        for node_id, port in zip(node_ids, ports[nodes:-1], strict=True)
    )
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    kafka = Kafka(
        address=",".join(f"127.0.0.1:{port}" for port in ports[:nodes]),
        directory=directory,
        replication=replication,
        tls_address="" if keystore is None else f"127.0.0.1:{ports[-1]}",
    )
    if keystore is not None:
        properties += TLS_PROPERTIES.format(
            port=ports[0], controller_port=ports[nodes], tls_port=ports[-1], keystore=keystore
        )
    try:
        for number, node_id in enumerate(node_ids):
            server = directory / f"server-{node_id}.properties"
            server.write_text(
                SERVER_PROPERTIES.format(
                    node_id=node_id,
                    voters=voters,
                    port=ports[number],
                    controller_port=ports[nodes + number],
                    directory=directory / f"data-{node_id}",
                    replication=min(nodes, REPLICATION_MAX),
                    min_isr=max(1, min(nodes, REPLICATION_MAX) - 1),
                )
                + f"{properties}\n"
            )
            _format(directory, server, cluster_id)
            log = directory / f"kafka-{node_id}.log"
            command = java_command(directory, HEAP, "kafka.Kafka", str(server))
            kafka.nodes[node_id] = Node(command=command, log=log, process=start(command, log))
        _wait_until_up(kafka)
        yield kafka
    finally:
        for node in kafka.nodes.values():
            node.process.terminate()  # All at once: each waits for the others' votes.
        for node in kafka.nodes.values():
            stop(node.process)


def java_command(directory: Path, heap: str, main_class: str, *arguments: str) -> list[str]:
    """Return the command that runs one of Kafka's classes as its own scripts would."""
    return [
        java(), f"-Xms{heap}", f"-Xmx{heap}", *JVM_OPTIONS,
        f"-Dlog4j2.configurationFile=file:{directory / 'log4j2.properties'}",
        "-cp", class_path(), main_class, *arguments,
    ]  # fmt: skip


def _format(directory: Path, properties: Path, cluster_id: str) -> None:
    # One argument: an id may begin with a hyphen.
    command = java_command(
        directory, "256m", "kafka.tools.StorageTool",
        "format", f"--cluster-id={cluster_id}", "--config", str(properties),
    )  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LoadFailedError(
            f"Kafka's storage could not be formatted:\n{done.stdout}{done.stderr}"
        )


def _wait_until_up(kafka: Kafka) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.address, "log_level": 0})
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        for node in kafka.nodes.values():
            if node.process.poll() is not None:
                raise LoadFailedError(
                    f"Kafka did not start:\n{node.log.read_text(errors='replace')[-4000:]}"
                )
        try:
            if len(admin.list_topics(timeout=1).brokers) == len(kafka.nodes):
                return
        except KafkaException:
            pass
        time.sleep(0.1)
    raise LoadFailedError(f"Kafka was not up in {START_TIMEOUT_S} s")


def _free_ports(count: int) -> list[int]:
    """Let the system choose ports; Kafka must know its controller's port beforehand."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for held in sockets:
            held.bind(("127.0.0.1", 0))
        return [int(held.getsockname()[1]) for held in sockets]
