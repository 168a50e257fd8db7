"""Kafka's own programs, as its scripts would run them: from the jars that Maven fetches."""

from pathlib import Path

from bench.peers.kafka import LOG4J_PROPERTIES
from bench.peers.maven import KAFKA_VERSION, class_path, java
from tests.suites.kept import built

CLASSES = {
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer.sh": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups.sh": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test.sh": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-delete-records.sh": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-e2e-latency.sh": "org.apache.kafka.tools.EndToEndLatency",
    "kafka-get-offsets.sh": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-log-dirs.sh": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-producer-perf-test.sh": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-broker-api-versions.sh": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-cluster.sh": "org.apache.kafka.tools.ClusterTool",
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions.sh": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-verifiable-consumer.sh": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-verifiable-producer.sh": "org.apache.kafka.tools.VerifiableProducer",
}
"""Kafka's scripts, and the class that each runs."""

SCRIPT = """\
#!/bin/sh
exec '{java}' -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \\
  -Dlog4j2.configurationFile=file:{folder}/log4j2.properties -cp '{class_path}' {main} "$@"
"""


def scripts() -> Path:
    """Return a folder as Kafka's own, whose `bin` has scripts of the usual names.

    Raises:
        PeerMissingError: no JDK or Maven here, and no right to install them.
    """

    def write(folder: Path) -> None:
        (folder / "log4j2.properties").write_text(LOG4J_PROPERTIES)
        (folder / "bin").mkdir()
        for name, main in CLASSES.items():
            script = folder / "bin" / name
            script.write_text(
                SCRIPT.format(java=java(), folder=folder, class_path=class_path(), main=main)
            )
            script.chmod(0o755)

    return built(
        f"kafka-scripts-{KAFKA_VERSION}", [SCRIPT, *CLASSES.values(), java(), class_path()], write
    )
