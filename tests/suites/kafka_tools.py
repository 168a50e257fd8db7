"""Kafka's own tools, which are Java clients: perf and verifiable tools, console, administration."""

import json

from bench.peers.maven import KAFKA_VERSION
from tests.suites.command_lines import Bench, Check, CheckedSuite, UnexpectedError
from tests.suites.kafka_jars import scripts

COMMAND_TIMEOUT_S = 60
RECORDS = 1000


def _at(bench: Bench) -> list[str]:
    return ["--bootstrap-server", bench.target.bootstrap]


def _create(bench: Bench, *configs: str, partitions: int = 3) -> None:
    bench.run(
        *("kafka-topics.sh", *_at(bench), "--create", "--topic", bench.topic),
        *("--partitions", str(partitions), "--replication-factor", str(bench.target.replication)),
        *(argument for config in configs for argument in ("--config", config)),
        says="Created topic",
    )


def _fill(bench: Bench, records: int = RECORDS, *properties: str) -> str:
    return bench.run(
        *("kafka-producer-perf-test.sh", "--topic", bench.topic, "--num-records", str(records)),
        *("--record-size", "200", "--throughput", "-1", "--producer-props"),
        *(f"bootstrap.servers={bench.target.bootstrap}", *properties),
        says=f"{records} records sent",
    )


def _topics(bench: Bench) -> None:
    _create(bench)
    topics = ("kafka-topics.sh", *_at(bench))
    bench.run(*topics, "--list", says=bench.topic)
    bench.run(*topics, "--describe", "--topic", bench.topic, says="PartitionCount: 3")
    bench.run(*topics, "--alter", "--topic", bench.topic, "--partitions", "5")
    bench.run(*topics, "--describe", "--topic", bench.topic, says="PartitionCount: 5")
    bench.run(*topics, "--delete", "--topic", bench.topic)
    if bench.topic in bench.run(*topics, "--list"):
        raise UnexpectedError("the topic is still listed")


def _topic_refused(bench: Bench) -> None:
    bench.run(
        *("kafka-topics.sh", *_at(bench), "--create", "--topic", bench.topic),
        *("--replication-factor", "30"),
        says="(?i)error while executing topic command.*replica",
        code=1,
    )


def _configs(bench: Bench) -> None:
    _create(bench)
    entity = ("--entity-type", "topics", "--entity-name", bench.topic)
    configs = ("kafka-configs.sh", *_at(bench), *entity)
    bench.run(*configs, "--alter", "--add-config", "retention.ms=3600000", says="Completed")
    bench.run(*configs, "--describe", says="retention.ms=3600000")
    bench.run(*configs, "--describe", "--all", says="cleanup.policy=delete")
    bench.run(*configs, "--alter", "--delete-config", "retention.ms", says="Completed")
    if "3600000" in bench.run(*configs, "--describe"):
        raise UnexpectedError("the setting is still there")


def _api_versions(bench: Bench) -> None:
    bench.run("kafka-broker-api-versions.sh", *_at(bench), says=r"Produce\(0\): .*\[usable: ")


def _cluster_id(bench: Bench) -> None:
    bench.run("kafka-cluster.sh", "cluster-id", *_at(bench), says="Cluster ID: .+")


def _offsets(bench: Bench) -> None:
    _create(bench, partitions=1)
    _fill(bench)
    get = ("kafka-get-offsets.sh", *_at(bench), "--topic", bench.topic, "--time")
    bench.run(*get, "latest", says=f"{bench.topic}:0:{RECORDS}")
    bench.run(*get, "earliest", says=f"{bench.topic}:0:0")
    bench.run(*get, "max-timestamp", says=f"{bench.topic}:0:")


def _delete_records(bench: Bench) -> None:
    _create(bench, partitions=1)
    _fill(bench)
    partitions = [{"topic": bench.topic, "partition": 0, "offset": 300}]
    before = bench.file("offsets.json", json.dumps({"partitions": partitions, "version": 1}))
    bench.run(
        *("kafka-delete-records.sh", *_at(bench), "--offset-json-file", before),
        says="low_watermark: 300",
    )
    get = ("kafka-get-offsets.sh", *_at(bench), "--topic", bench.topic, "--time", "earliest")
    bench.run(*get, says=f"{bench.topic}:0:300")


def _log_dirs(bench: Bench) -> None:
    _create(bench, partitions=1)
    _fill(bench)
    said = bench.run(
        "kafka-log-dirs.sh", *_at(bench), "--describe", "--topic-list", bench.topic,
        says=bench.topic,
    )  # fmt: skip
    found = json.loads(said[said.index("{") :])
    size = sum(
        partition["size"]
        for broker in found["brokers"]
        for log_dir in broker["logDirs"]
        for partition in log_dir["partitions"]
    )
    if size < RECORDS * 200:
        raise UnexpectedError(f"its size is {size}")


def _acls(bench: Bench) -> None:
    # Without an authorizer Kafka says that there is none.
    bench.run("kafka-acls.sh", *_at(bench), "--list", says="SecurityDisabled|No Authorizer", code=1)


def _console(bench: Bench) -> None:
    _create(bench)
    lines = "".join(f"key-{number}:value-{number}\n" for number in range(100))
    bench.run(
        *("kafka-console-producer.sh", *_at(bench), "--topic", bench.topic),
        *("--property", "parse.key=true", "--property", "key.separator=:"),
        given=lines,
    )
    said = bench.run(
        *("kafka-console-consumer.sh", *_at(bench), "--topic", bench.topic, "--from-beginning"),
        *("--group", bench.group, "--max-messages", "100", "--timeout-ms", "30000"),
        *("--property", "print.key=true", "--property", "key.separator=:"),
    )
    if sorted(line for line in said.splitlines() if line.startswith("key-")) != sorted(
        lines.splitlines()
    ):
        raise UnexpectedError(f"other records came: {said[-300:]}")


def _console_partition(bench: Bench) -> None:
    _create(bench, partitions=1)
    _fill(bench)
    bench.run(
        *("kafka-console-consumer.sh", *_at(bench), "--topic", bench.topic, "--partition", "0"),
        *("--offset", "990", "--max-messages", "10", "--timeout-ms", "30000"),
        says="Processed a total of 10 messages",
    )


def _console_compressed(codec: str) -> Check:
    def check(bench: Bench) -> None:
        _create(bench)
        _fill(bench, RECORDS, f"compression.type={codec}")
        bench.run(
            *("kafka-console-consumer.sh", *_at(bench), "--topic", bench.topic),
            *("--from-beginning", "--max-messages", str(RECORDS), "--timeout-ms", "30000"),
            says=f"Processed a total of {RECORDS} messages",
        )

    return check


def _perf(acks: str, idempotent: str) -> Check:
    def check(bench: Bench) -> None:
        _create(bench)
        _fill(bench, bench.target.records, f"acks={acks}", f"enable.idempotence={idempotent}")

    return check


def _perf_transactions(bench: Bench) -> None:
    _create(bench)
    bench.run(
        *("kafka-producer-perf-test.sh", "--topic", bench.topic),
        *("--num-records", str(bench.target.records), "--record-size", "200"),
        *("--throughput", "-1", "--transactional-id", bench.group),
        *("--transaction-duration-ms", "100", "--producer-props"),
        f"bootstrap.servers={bench.target.bootstrap}",
        says=f"{bench.target.records} records sent",
    )
    committed = bench.file("committed.properties", "isolation.level=read_committed\n")
    bench.run(
        *("kafka-console-consumer.sh", *_at(bench), "--topic", bench.topic, "--from-beginning"),
        *("--max-messages", str(bench.target.records), "--timeout-ms", "30000"),
        *("--consumer.config", committed),
        says=f"Processed a total of {bench.target.records} messages",
    )


def _perf_consumer(protocol: str) -> Check:
    def check(bench: Bench) -> None:
        _create(bench)
        records = bench.target.records
        _fill(bench, records)
        config = bench.file("consumer.properties", f"group.protocol={protocol}\n")
        said = bench.run(
            *("kafka-consumer-perf-test.sh", *_at(bench), "--topic", bench.topic),
            *("--messages", str(records), "--group", bench.group, "--consumer.config", config),
            *("--timeout", "30000", "--hide-header"),
        )
        columns = said.rstrip().rpartition("\n")[2].split(", ")
        if len(columns) != 10 or int(columns[4]) < records:
            raise UnexpectedError(f"it read less: {said[-300:]}")

    return check


def _latency(bench: Bench) -> None:
    _create(bench, partitions=1)
    bench.run(
        *("kafka-e2e-latency.sh", bench.target.bootstrap, bench.topic, "200", "all", "100"),
        says="Avg latency",
    )


def _verifiable(protocol: str) -> Check:
    def check(bench: Bench) -> None:
        _create(bench)
        sent = bench.run(
            *("kafka-verifiable-producer.sh", *_at(bench), "--topic", bench.topic),
            *("--max-messages", str(RECORDS), "--acks", "-1"),
            says='"name":"tool_data"',
        )
        if sent.count('"producer_send_success"') != RECORDS:
            raise UnexpectedError(f"not all were acknowledged: {sent[-300:]}")
        read = bench.run(
            *("kafka-verifiable-consumer.sh", *_at(bench), "--topic", bench.topic),
            *("--group-id", bench.group, "--group-protocol", protocol),
            *("--max-messages", str(RECORDS), "--reset-policy", "earliest"),
            says="offsets_committed",
        )
        counts = [
            json.loads(line)["count"]
            for line in read.splitlines()
            if '"name":"records_consumed"' in line
        ]
        if sum(counts) < RECORDS:
            raise UnexpectedError(f"it read {sum(counts)}: {read[-300:]}")

    return check


def _groups(bench: Bench) -> None:
    _create(bench)
    _fill(bench)
    bench.run(
        *("kafka-console-consumer.sh", *_at(bench), "--topic", bench.topic, "--from-beginning"),
        *("--group", bench.group, "--max-messages", str(RECORDS), "--timeout-ms", "30000"),
        says=f"Processed a total of {RECORDS} messages",
    )
    groups = ("kafka-consumer-groups.sh", *_at(bench))
    of_group = (*groups, "--group", bench.group)
    bench.run(*groups, "--list", says=bench.group)
    bench.run(*of_group, "--describe", says=rf"{bench.topic}\s+\d\s+\d+\s+\d+\s+0\s")
    bench.run(*of_group, "--describe", "--state", says="Empty")
    reset = ("--reset-offsets", "--topic", bench.topic, "--to-earliest", "--execute")
    bench.run(*of_group, *reset, says=rf"{bench.topic}\s+\d\s+0\b")
    bench.run(*of_group, "--delete-offsets", "--topic", bench.topic, says="Successful")
    bench.run(*of_group, "--delete", says="successful")
    if bench.group in bench.run(*groups, "--list"):
        raise UnexpectedError("the group is still listed")


def _transactions(bench: Bench) -> None:
    _create(bench)
    bench.run(
        *("kafka-producer-perf-test.sh", "--topic", bench.topic, "--num-records", str(RECORDS)),
        *("--record-size", "200", "--throughput", "-1", "--transactional-id", bench.group),
        *("--producer-props", f"bootstrap.servers={bench.target.bootstrap}"),
    )
    transactions = ("kafka-transactions.sh", *_at(bench))
    bench.run(*transactions, "list", says=bench.group)
    bench.run(*transactions, "describe", "--transactional-id", bench.group, says="CompleteCommit")
    bench.run(
        *(*transactions, "describe-producers", "--topic", bench.topic, "--partition", "0"),
        says="ProducerId",
    )


CODECS = ("gzip", "snappy", "lz4", "zstd")
CHECKS: dict[str, Check] = {
    "topics": _topics,
    "topic_refused": _topic_refused,
    "configs": _configs,
    "api_versions": _api_versions,
    "cluster_id": _cluster_id,
    "offsets": _offsets,
    "delete_records": _delete_records,
    "log_dirs": _log_dirs,
    "acls": _acls,
    "console": _console,
    "console_partition": _console_partition,
    **{f"console_{codec}": _console_compressed(codec) for codec in CODECS},
    "producer_perf": _perf("all", "true"),
    "producer_perf_acks_1": _perf("1", "false"),
    "producer_perf_acks_0": _perf("0", "false"),
    "producer_perf_transactions": _perf_transactions,
    "consumer_perf": _perf_consumer("classic"),
    "consumer_perf_848": _perf_consumer("consumer"),
    "end_to_end_latency": _latency,
    "verifiable": _verifiable("classic"),
    "verifiable_848": _verifiable("consumer"),
    "groups": _groups,
    "transactions": _transactions,
}
KAFKA_TOOLS = CheckedSuite(
    name="kafka-tools",
    version=KAFKA_VERSION,
    about="Kafka's perf, verifiable, console and administration tools (Java)",
    checks=CHECKS,
    fetch=scripts,
    program=lambda name: scripts() / "bin" / name,
    timeout_s=COMMAND_TIMEOUT_S,
)
