"""One Apache Kafka node as a process: KRaft broker and controller in one JVM, fresh data directory.

Heap and garbage collector are those of Kafka's own start script; the only broker settings that
differ from its defaults are the replication factors of internal topics (there is one node) and
quick removal of deleted topics, so that one round's files do not weigh on the next.
"""

import base64
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.peers.maven import class_path, java
from bench.processes import LoadFailedError, start, stop
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

START_TIMEOUT_S = 60
ADMIN_TIMEOUT_S = 30
HEAP = "1g"  # kafka-server-start.sh: -Xms1G -Xmx1G
JVM_OPTIONS = (
    "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-XX:MaxInlineLevel=15", "-Djava.awt.headless=true",
)  # fmt: skip  # kafka-run-class.sh

SERVER_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
log.dirs={directory}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.segment.delete.delay.ms=1000
"""

LOG4J_PROPERTIES = """\
rootLogger.level=error
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=[%d] %p %m (%c)%n
"""


@dataclass(frozen=True, kw_only=True)
class Kafka:
    """A running node."""

    address: str
    pid: int

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic and wait until its partitions have a leader.

        Raises:
            LoadFailedError: Kafka refused it or it was not there in time.
        """
        admin = self._admin()
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config))
        try:
            admin.create_topics([topic])[name].result(ADMIN_TIMEOUT_S)
        except KafkaException as error:
            raise LoadFailedError(f"Kafka did not create {name}: {error}") from error
        deadline = time.monotonic() + ADMIN_TIMEOUT_S
        while time.monotonic() < deadline:
            described = admin.list_topics(name, timeout=ADMIN_TIMEOUT_S).topics[name]
            leaders = [partition.leader for partition in described.partitions.values()]
            if len(leaders) == partitions and all(leader >= 0 for leader in leaders):
                return
            time.sleep(0.02)
        raise LoadFailedError(f"Kafka's topic {name} has no leaders")

    def delete_topic(self, name: str) -> None:
        """Delete a topic; its files go a second later."""
        admin = self._admin()  # Held: a client that goes away cancels its requests.
        admin.delete_topics([name])[name].result(ADMIN_TIMEOUT_S)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address, "log_level": 3})


@contextmanager
def running_kafka(directory: Path) -> Iterator[Kafka]:
    """Start a node with its data below `directory`, and stop it at the end of the block.

    Raises:
        LoadFailedError: it did not come up; with the end of its log.
    """
    directory.mkdir(parents=True)
    port, controller_port = _free_ports(2)
    properties = directory / "server.properties"
    properties.write_text(
        SERVER_PROPERTIES.format(port=port, controller_port=controller_port, directory=directory)
    )
    (directory / "log4j2.properties").write_text(LOG4J_PROPERTIES)
    _format(directory, properties)
    log = directory / "kafka.log"
    process = start(java_command(directory, HEAP, "kafka.Kafka", str(properties)), log)
    try:
        address = f"127.0.0.1:{port}"
        _wait_until_up(process, address, log)
        yield Kafka(address=address, pid=process.pid)
    finally:
        stop(process)


def java_command(directory: Path, heap: str, main_class: str, *arguments: str) -> list[str]:
    """Return the command that runs one of Kafka's classes as its own scripts would."""
    return [
        java(), f"-Xms{heap}", f"-Xmx{heap}", *JVM_OPTIONS,
        f"-Dlog4j2.configurationFile=file:{directory / 'log4j2.properties'}",
        "-cp", class_path(), main_class, *arguments,
    ]  # fmt: skip


def _format(directory: Path, properties: Path) -> None:
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    command = java_command(
        directory, "256m", "kafka.tools.StorageTool",
        "format", f"--cluster-id={cluster_id}", "--config", str(properties),
    )  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LoadFailedError(
            f"Kafka's storage could not be formatted:\n{done.stdout}{done.stderr}"
        )


def _wait_until_up(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    deadline = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if admin.list_topics(timeout=1).brokers:
                return
        except KafkaException:
            time.sleep(0.1)
    raise LoadFailedError(f"Kafka did not start:\n{log.read_text(errors='replace')[-4000:]}")


def _free_ports(count: int) -> list[int]:
    """Let the system choose ports; Kafka must be told its controller's port beforehand."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for held in sockets:
            held.bind(("127.0.0.1", 0))
        return [int(held.getsockname()[1]) for held in sockets]
