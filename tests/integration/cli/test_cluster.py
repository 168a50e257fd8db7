"""The commands for whole clusters, on three real brokers."""

import contextlib
import json
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.cli.command_line import CommandLine
from tests.integration.running_broker import wait_until
from tests.integration.running_cluster import RunningCluster

from millrace.cli.console.failures import ExitCode
from millrace.client import LogTruncatedError, SyncAdmin, SyncConsumer
from millrace.core.errors import Appended, NotControllerError


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """A cluster whose brokers are not stopped by any test."""
    with RunningCluster(tmp_path_factory.mktemp("cluster"), racks=("a", "b", "c")) as running:
        yield running


@pytest.fixture
def millrace(shared_cluster: RunningCluster) -> CommandLine:
    return CommandLine(shared_cluster.bootstrap)


def described(millrace: CommandLine, topic: str) -> list[dict[str, Any]]:
    document = json.loads(millrace.ok("topic", "describe", topic, "-o", "json"))
    partitions: list[dict[str, Any]] = document["partitions"]
    return partitions


def leads(millrace: CommandLine) -> dict[int, int]:
    """How many partitions each broker leads."""
    brokers = json.loads(millrace.ok("cluster", "describe", "-o", "json"))["brokers"]
    return {broker["broker"]: broker["leads"] for broker in brokers}


def test_describe_shows_every_broker_and_the_controller(
    millrace: CommandLine, shared_cluster: RunningCluster
) -> None:
    found = json.loads(millrace.ok("cluster", "describe", "-o", "json"))
    assert found["controller"] in (0, 1, 2)
    assert found["controller_epoch"] > 0
    assert [
        (broker["name"], broker["address"], broker["rack"], broker["state"])
        for broker in found["brokers"]
    ] == [
        (f"broker-{number}", shared_cluster[number].address, rack, "alive")
        for number, rack in enumerate("abc")
    ]
    epochs = [broker["broker_epoch"] for broker in found["brokers"]]
    assert len({*epochs}) == 3
    table = millrace.ok("cluster", "describe")
    assert found["cluster_id"] in table
    assert "ZONE" in table


def test_settings_of_brokers_are_shown_with_where_they_come_from(
    millrace: CommandLine, shared_cluster: RunningCluster
) -> None:
    found = json.loads(millrace.ok("cluster", "settings", "--output", "json"))
    assert list(found) == ["0", "1", "2"]
    assert found["1"]["node.rack"] == {"value": "b", "source": "environment"}
    assert found["1"]["storage.trash_delay_ms"] == {"value": "86400000", "source": "default"}
    changed = json.loads(millrace.ok("cluster", "settings", "broker-2", "--changed", "-o", "json"))
    assert list(changed) == ["2"]
    assert changed["2"]["node.name"]["value"] == "broker-2"
    assert "storage.trash_delay_ms" not in changed["2"]
    rows = [line.split() for line in millrace.ok("cluster", "settings").splitlines()]
    assert ["node.rack", "a", "environment", "0"] in rows
    assert ["node.rack", "c", "environment", "2"] in rows
    assert ["storage.trash_delay_ms", "86400000", "default", "0,", "1,", "2"] in rows
    unknown = millrace.run("cluster", "settings", "7")
    assert unknown.exit_code == ExitCode.NOT_FOUND


def test_topic_describe_shows_how_far_followers_are(millrace: CommandLine) -> None:
    millrace.ok("topic", "create", "lags", "--replication-factor", "3")
    millrace.ok("produce", "lags", stdin="a\nb\n")

    def followers() -> list[dict[str, Any]]:
        document = json.loads(millrace.ok("topic", "describe", "lags", "-o", "json"))
        (leader,) = (log for log in document["logs"] if log["leads"])
        found: list[dict[str, Any]] = leader["followers"]
        return found

    wait_until(lambda: [f["log_end_offset"] for f in followers()] == [2, 2], "both have both")
    assert [follower["in_sync"] for follower in followers()] == [True, True]
    leader = described(millrace, "lags")[0]["leader"]
    shown = ", ".join(f"{number}: 0" for number in range(3) if number != leader)
    assert shown in millrace.ok("topic", "describe", "lags")


def test_a_drained_broker_leads_nothing_until_it_is_taken_back(millrace: CommandLine) -> None:
    millrace.ok("topic", "create", "drained", "--partitions", "6", "--replication-factor", "3")
    wait_until(lambda: leads(millrace)[1] > 0, "broker 1 leads something")
    before = leads(millrace)[1]
    drained = millrace.run("cluster", "drain", "broker-1", "--timeout", "30")
    assert drained.exit_code == ExitCode.DONE, drained.output
    assert f"{before} partition" in drained.stderr
    assert leads(millrace)[1] == 0
    states = {
        broker["broker"]: broker["state"]
        for broker in json.loads(millrace.ok("cluster", "describe", "-o", "json"))["brokers"]
    }
    assert states == {0: "alive", 1: "drained", 2: "alive"}
    millrace.ok("cluster", "undrain", "1", "--timeout", "30")
    assert leads(millrace)[1] == before
    assert {partition["leader"] for partition in described(millrace, "drained")} == {0, 1, 2}


def test_draining_says_what_nobody_else_holds_and_how_to_move_it(millrace: CommandLine) -> None:
    millrace.ok("topic", "create", "alone", "--partitions", "1", "--replication-factor", "1")
    holder = described(millrace, "alone")[0]["leader"]
    drained = millrace.run("cluster", "drain", str(holder), "--timeout", "30")
    try:
        assert drained.exit_code == ExitCode.FAILED
        assert "alone-0" in drained.stderr
        assert f"reassign plan --remove-broker {holder}" in drained.stderr
        plan = millrace.ok("reassign", "plan", "alone")  # Drained brokers hold nothing new.
        millrace.ok("reassign", "apply", "-", "--timeout", "30", stdin=plan)
        assert described(millrace, "alone")[0]["replicas"] != [holder]
        millrace.ok("cluster", "drain", str(holder), "--timeout", "30")
    finally:
        millrace.ok("cluster", "undrain", str(holder), "--no-wait")


def test_a_broker_that_is_not_there_is_answered_with_those_that_are(millrace: CommandLine) -> None:
    for command in ("drain", "undrain", "unregister"):
        result = millrace.run("cluster", command, "9")
        assert result.exit_code == ExitCode.NOT_FOUND
        assert "there are: 0 (broker-0), 1 (broker-1), 2 (broker-2)" in result.stderr


def test_a_plan_is_edited_applied_and_watched(millrace: CommandLine, tmp_path: Path) -> None:
    millrace.ok("topic", "create", "moved", "--partitions", "2", "--replication-factor", "1")
    millrace.ok("produce", "moved", stdin="a\nb\nc\n")
    words = ("--remove-broker", "2", "--replication-factor", "2")
    plan = json.loads(millrace.ok("reassign", "plan", "moved", *words))
    assert [sorted(entry["replicas"]) for entry in plan["partitions"]] == [[0, 1], [0, 1]]
    wanted = [2, 0, 1]  # An editor's choice.
    for entry in plan["partitions"]:
        assert entry["was"] == described(millrace, "moved")[entry["partition"]]["replicas"]
        entry["replicas"] = wanted
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan))
    millrace.ok("reassign", "apply", str(path), "--timeout", "60")
    for entry in plan["partitions"]:
        partition = described(millrace, "moved")[entry["partition"]]
        assert partition["replicas"] == wanted
        assert sorted(partition["isr"]) == [0, 1, 2]
    assert json.loads(millrace.ok("reassign", "status", "--wait", "-o", "json")) == []
    assert sorted(millrace.ok("consume", "moved").split()) == ["a", "b", "c"]


def test_a_plan_that_is_larger_than_the_cluster_takes_at_a_time_is_worked_through(
    tmp_path: Path,
) -> None:
    with RunningCluster(tmp_path, {"cluster.reassigning_partitions_max": 2}) as cluster:
        millrace = CommandLine(cluster.bootstrap)
        millrace.ok("topic", "create", "moved", "--partitions", "7", "--replication-factor", "1")
        plan = millrace.ok("reassign", "plan", "moved", "--replication-factor", "3")
        begun = millrace.run("reassign", "apply", "-", "--no-wait", stdin=plan)
        assert begun.exit_code == ExitCode.FAILED
        assert "run the same command again" in begun.stderr
        words = ("reassign", "apply", "-", "--timeout", "60", "--output", "json")
        outcome = json.loads(millrace.ok(*words, stdin=plan))
        assert len(outcome["done"]) == 7
        assert all(len(partition["isr"]) == 3 for partition in described(millrace, "moved"))
        assert (
            "7 partitions reassigned" in millrace.run("reassign", "apply", "-", stdin=plan).stderr
        )


def test_a_plan_that_is_interrupted_goes_on_when_it_is_applied_again(
    millrace: CommandLine, tmp_path: Path
) -> None:
    # So many that some are left when a machine that is busy gets to the signal.
    millrace.ok("topic", "create", "paused", "--partitions", "40", "--replication-factor", "1")
    path = tmp_path / "plan.json"
    path.write_text(millrace.ok("reassign", "plan", "paused", "--replication-factor", "3"))

    def moved() -> int:
        return sum(len(partition["isr"]) == 3 for partition in described(millrace, "paused"))

    with millrace.start("reassign", "apply", str(path), "--at-once", "1") as command:
        wait_until(moved, "the first one is moved")
        command.send_signal(signal.SIGINT)
        assert command.stderr is not None
        said = command.stderr.read().decode()
        assert command.wait(30) == ExitCode.INTERRUPTED
    assert "not begun; run the same command again to go on" in said
    assert moved() < 40
    millrace.ok("reassign", "apply", str(path), "--timeout", "60")
    assert moved() == 40


def test_a_broker_that_is_gone_for_good_is_unregistered(cluster: RunningCluster) -> None:
    millrace = CommandLine(cluster.bootstrap)
    millrace.ok("topic", "create", "t", "--partitions", "3", "--replication-factor", "2")
    wait_until(lambda: is_healthy(millrace), "all brokers are there")
    report = json.loads(millrace.ok("cluster", "health", "-o", "json"))
    few = [(topic["partition"], topic["replicas_wanted"]) for topic in report["few_replicas"]]
    assert (report["healthy"], few) == (True, [(0, 3), (1, 3), (2, 3)])
    alive = millrace.run("cluster", "unregister", "2")
    assert alive.exit_code == ExitCode.FAILED
    assert "stop" in alive.stderr
    cluster[2].kill()
    wait_until(lambda: states(millrace)[2] == "fenced", "broker 2 is fenced")
    holds = millrace.run("cluster", "unregister", "2")
    assert holds.exit_code == ExitCode.FAILED
    assert "t-" in holds.stderr
    assert "reassign plan --remove-broker 2" in holds.stderr
    plan = millrace.ok("reassign", "plan", "--remove-broker", "2")
    millrace.ok("reassign", "apply", "-", "--timeout", "60", stdin=plan)
    assert json.loads(millrace.ok("cluster", "unregister", "2", "-o", "json")) == {
        "unregistered": 2
    }
    assert states(millrace).keys() == {0, 1}
    wait_until(lambda: is_healthy(millrace), "nothing is missed any more")
    assert millrace.run("cluster", "unregister", "2").exit_code == ExitCode.NOT_FOUND
    code, log = cluster[2].refused_start()
    assert code == 1
    assert "new log_dirs" in log


def test_what_is_left_of_a_topic_can_be_read_while_a_partition_has_no_leader(
    cluster: RunningCluster,
) -> None:
    millrace = CommandLine(cluster.bootstrap)
    millrace.ok("topic", "create", "t", "--partitions", "3", "--replication-factor", "1")
    millrace.ok("produce", "t", stdin="".join(f"{number}\n" for number in range(30)))
    leaders = [partition["leader"] for partition in described(millrace, "t")]
    gone = leaders[0]
    cluster[gone].kill()
    wait_until(lambda: described(millrace, "t")[0]["leader"] == -1, "nobody leads it")
    began = time.monotonic()
    shown = json.loads(millrace.ok("offsets", "t", "--at", "1h", "-o", "json"))
    assert [row["latest"] is None for row in shown] == [leader == gone for leader in leaders]
    assert shown[0]["records"] is shown[0]["at"] is None
    lines = millrace.run("offsets", "t")
    assert lines.stdout.splitlines()[1].split() == ["t", "0", "-", "-", "-"]
    assert "millrace cluster health" in lines.stderr
    assert len(millrace.ok("consume", "t", "-p", "1").split()) == shown[1]["records"]
    assert time.monotonic() - began < 29  # Each would wait for 30 s for the one that is gone.


def test_reading_says_what_it_waits_for_and_gives_up_in_time(cluster: RunningCluster) -> None:
    millrace = CommandLine(cluster.bootstrap)
    millrace.ok("topic", "create", "t", "--partitions", "1", "--replication-factor", "1")
    line = "v" * 1000 + "\n"
    millrace.ok("produce", "t", stdin=line * 100_000)  # More than is read ahead.
    with millrace.start("consume", "t", "--timeout", "8") as command:
        assert command.stdout is not None
        assert command.stderr is not None
        assert command.stdout.readline() == line.encode(), command.stderr.read()
        cluster[described(millrace, "t")[0]["leader"]].kill()
        while command.stdout.read(1 << 20):
            pass
        assert command.wait(60) == ExitCode.TIMED_OUT
        said = command.stderr.read().decode()
    assert "waiting for t-0 ..." in said
    assert "nothing came for 8 s" in said
    assert "millrace cluster health" in said


def test_a_cluster_whose_controller_has_just_died_is_not_healthy(
    cluster: RunningCluster,
) -> None:
    millrace = CommandLine(cluster.bootstrap)
    millrace.ok("topic", "create", "t", "--replication-factor", "3")
    wait_until(lambda: is_healthy(millrace), "all is well")
    controller = json.loads(millrace.ok("cluster", "describe", "-o", "json"))["controller"]
    cluster[controller].kill()
    at_once = millrace.run("cluster", "health", "-o", "json")
    assert at_once.exit_code == ExitCode.UNHEALTHY
    report = json.loads(at_once.stdout)
    assert controller in report["unreachable_brokers"] + report["fenced_brokers"]
    assert states(millrace)[controller] in ("unreachable", "fenced")
    wait_until(lambda: states(millrace)[controller] == "fenced", "a new controller knows it")


@contextlib.contextmanager
def store_away(cluster: RunningCluster) -> Iterator[None]:
    """Keep every broker from writing the coordination store, as when nobody can reach it."""
    path = str(cluster[0].settings["coordination.path"])
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def test_a_cluster_whose_store_is_away_has_no_controller_and_says_why(
    cluster: RunningCluster,
) -> None:
    millrace = CommandLine(cluster.bootstrap)
    millrace.ok("topic", "create", "t", "--replication-factor", "3")
    wait_until(lambda: is_healthy(millrace), "all is well")
    with store_away(cluster):
        wait_until(
            lambda: "database is locked" in millrace.run("cluster", "health").output,
            "health says what is away",
        )
        for _ in range(20):
            health = millrace.run("cluster", "health")
            assert health.exit_code == ExitCode.UNHEALTHY
            assert "no broker is the controller" in health.stdout
        assert "controller: none now" in millrace.ok("cluster", "describe")
        report = json.loads(millrace.run("cluster", "health", "-o", "json").stdout)
        assert not report["has_controller"]
        assert "the coordination store" in report["controller_problem"]
        assert any(broker.log_has("the coordination store is away") for broker in cluster.brokers)
        with SyncAdmin(cluster.bootstrap, request_timeout_ms=4000) as admin:
            began = time.monotonic()
            with pytest.raises(NotControllerError, match="database is locked") as raised:
                admin.create_topic("u")
            assert raised.value.appended is Appended.NO
            assert time.monotonic() - began < 15  # By default a call may take 30 s.
    wait_until(lambda: is_healthy(millrace), "all is well again")
    assert "controller: broker" in millrace.ok("cluster", "describe")


def is_healthy(millrace: CommandLine) -> bool:
    return bool(millrace.run("cluster", "health").exit_code == ExitCode.DONE)


def states(millrace: CommandLine) -> dict[int, str]:
    brokers = json.loads(millrace.ok("cluster", "describe", "-o", "json"))["brokers"]
    return {broker["broker"]: broker["state"] for broker in brokers}


def test_a_plan_that_is_no_plan_is_refused_with_the_place(millrace: CommandLine) -> None:
    millrace.ok("topic", "create", "planned", "--partitions", "1")
    wrong = {"version": 1, "partitions": [{"topic": "planned", "partition": 0, "replicas": [9]}]}
    result = millrace.run("reassign", "apply", "-", stdin=json.dumps(wrong))
    assert result.exit_code == ExitCode.FAILED
    assert "planned-0" in result.stderr
    assert "broker 9" in result.stderr
    result = millrace.run("reassign", "plan", "no-such-topic")
    assert result.exit_code == ExitCode.NOT_FOUND


def test_preferred_leaders_are_elected_by_name_or_everywhere(millrace: CommandLine) -> None:
    millrace.ok("topic", "create", "elected", "--partitions", "3", "--replication-factor", "3")
    for words in ((), ("elected",), ("elected:1",)):
        result = millrace.run("elect-leaders", *words)
        assert result.exit_code == ExitCode.DONE, result.output
    assert all(
        partition["leader"] == partition["replicas"][0]
        for partition in described(millrace, "elected")
    )
    result = millrace.run("elect-leaders", "elected:7")
    assert result.exit_code == ExitCode.NOT_FOUND
    assert "elected-7" in result.stderr


def test_an_unclean_election_needs_partitions_by_name_and_a_yes(millrace: CommandLine) -> None:
    millrace.ok("topic", "create", "unclean", "--partitions", "1")
    for words in ((), ("unclean",)):
        result = millrace.run("elect-leaders", "--unclean", "--yes", *words)
        assert result.exit_code == ExitCode.USAGE
        assert "TOPIC:PARTITION" in result.stderr
    result = millrace.run("elect-leaders", "--unclean", "unclean:0")
    assert result.exit_code == ExitCode.FAILED
    assert "--yes" in result.stderr


def test_settings_of_a_broker_that_is_gone_are_missed(cluster: RunningCluster) -> None:
    millrace = CommandLine(cluster.bootstrap)
    cluster[2].kill()
    missed = millrace.run("cluster", "settings", "--changed")
    assert missed.exit_code == ExitCode.UNREACHABLE
    assert "no answer from broker 2" in missed.stderr
    assert "node.name" in missed.stdout


def test_health_says_what_is_missing_and_a_lost_tail_is_told(cluster: RunningCluster) -> None:
    millrace = CommandLine(cluster.bootstrap)
    settings = ("--set", "min.insync.replicas=1", "--replication-factor", "2")
    millrace.ok("topic", "create", "t", "--partitions", "1", *settings)
    wait_until(lambda: is_healthy(millrace), "all brokers are there")
    millrace.ok("produce", "t", stdin="kept\n")
    with SyncConsumer(cluster.bootstrap) as consumer:
        consumer.subscribe(["t"])
        found: list[bytes | None] = []

        def read(count: int) -> None:
            def has_all() -> bool:
                found.extend(record.value for record in consumer.poll(timeout_ms=100))
                return len(found) >= count

            wait_until(has_all, f"{count} records come")

        read(1)
        partition = described(millrace, "t")[0]
        leader = partition["leader"]
        (follower,) = (replica for replica in partition["replicas"] if replica != leader)
        cluster[follower].kill()

        def health() -> tuple[int, dict[str, Any]]:
            result = millrace.run("cluster", "health", "-o", "json")
            return result.exit_code, json.loads(result.stdout)

        wait_until(
            lambda: health()[1]["under_replicated"] and health()[1]["fenced_brokers"] == [follower],
            "the follower is missed",
        )
        code, report = health()
        assert code == ExitCode.UNHEALTHY
        assert report["fenced_brokers"] == [follower]
        assert report["under_replicated"][0]["missing"] == [follower]
        assert report["offline"] == report["under_min_isr"] == []

        millrace.ok("produce", "t", stdin="lost\n")  # The leader alone is enough here.
        read(2)
        cluster[leader].kill()
        wait_until(lambda: health()[1]["offline"], "nobody leads")
        cluster[follower].start()
        wait_until(lambda: follower not in health()[1]["fenced_brokers"], "the follower is back")
        assert health()[1]["offline"][0]["leader"] == -1
        assert "offline" in millrace.run("cluster", "health").stdout

        refused = millrace.run("elect-leaders", "t:0")
        assert refused.exit_code == ExitCode.UNHEALTHY
        assert "PREFERRED_LEADER_NOT_AVAILABLE" in refused.stderr
        millrace.ok("elect-leaders", "--unclean", "--yes", "t:0")
        assert described(millrace, "t")[0]["leader"] == follower
        millrace.ok("produce", "t", stdin="in its place\n")
        with pytest.raises(LogTruncatedError) as caught:
            read(3)
        assert (caught.value.position, caught.value.end_offset) == (2, 1)
        consumer.seek(("t", 0), caught.value.end_offset)
        read(3)
        assert found == [b"kept", b"lost", b"in its place"]

        cluster[leader].start()
        count = 'millrace_topic_lost_records_total{topic="t"}'
        wait_until(lambda: cluster[leader].metrics().get(count) == 1, "the loss is counted")
