"""Topics through the command line and a real broker."""

import json
import os
import pty
import subprocess
import sys

import pytest
from click.shell_completion import ShellComplete
from tests.integration.cli.command_line import CommandLine

from millrace.cli.console.failures import ExitCode
from millrace.cli.main import cli
from millrace.client import Position, SyncAdmin


def test_a_topic_is_made_described_altered_and_deleted(millrace: CommandLine) -> None:
    millrace.ok("topic", "create", "metrics/cpu", "--partitions", "2", "--set", "retention.ms=-1")
    listed = json.loads(millrace.ok("topic", "list", "-o", "json"))
    assert {"name": "metrics/cpu", "partitions": 2, "replication_factor": 1} in listed

    millrace.ok("topic", "alter", "metrics/cpu", "--partitions", "3", "--unset", "retention.ms")
    described = json.loads(millrace.ok("topic", "describe", "metrics/cpu", "-o", "json"))
    assert [partition["partition"] for partition in described["partitions"]] == [0, 1, 2]
    assert described["config"]["retention.ms"] == {"value": "604800000", "source": "default"}

    table = millrace.ok("topic", "describe", "metrics/cpu")
    assert "PARTITION" in table
    assert "retention.ms" in table

    deleted = millrace.run("topic", "delete", "metrics/cpu", "--yes")
    assert deleted.exit_code == ExitCode.DONE
    assert "`millrace topic undelete`" in deleted.stderr  # The space is not free yet.
    assert millrace.run("topic", "describe", "metrics/cpu").exit_code == ExitCode.NOT_FOUND


def test_the_shell_completes_the_settings_of_topics() -> None:
    completion = ShellComplete(cli, {}, "millrace", "_MILLRACE_COMPLETE")
    found = completion.get_completions(["topic", "alter", "t", "--set"], "retention")
    assert [item.value for item in found] == [
        "retention.ms=",
        "retention.bytes=",
        "retention.records=",
    ]
    found = completion.get_completions(["topic", "alter", "t", "--unset"], "retention.m")
    assert [item.value for item in found] == ["retention.ms"]


def test_the_shell_completes_names_that_the_broker_knows(
    millrace: CommandLine, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_BOOTSTRAP", millrace.address)
    completion = ShellComplete(cli, {}, "millrace", "_MILLRACE_COMPLETE")
    found = completion.get_completions(["consume"], topic[:-1])
    assert topic in [item.value for item in found]
    brokers = completion.get_completions(["cluster", "drain"], "bro")
    assert [item.value for item in brokers] == ["broker-0"]
    with SyncAdmin(millrace.address) as admin:
        admin.resolve_initial("hourly-report", {(topic, 0): Position(0)})
    names = completion.get_completions(["group", "describe"], "hourly-r")
    assert [item.value for item in names] == ["hourly-report"]
    monkeypatch.setenv("MILLRACE_BOOTSTRAP", "127.0.0.1:1")
    assert completion.get_completions(["consume"], topic[:-1]) == []


def test_validate_only_changes_nothing(millrace: CommandLine, topic: str) -> None:
    millrace.ok("topic", "create", "not-made", "--validate-only")
    millrace.ok("topic", "alter", topic, "--partitions", "9", "--validate-only")
    listed = json.loads(millrace.ok("topic", "list", "-o", "json"))
    assert "not-made" not in [topic["name"] for topic in listed]
    assert {"name": topic, "partitions": 1, "replication_factor": 1} in listed


def test_a_topic_that_exists_is_not_made_again(millrace: CommandLine, topic: str) -> None:
    result = millrace.run("topic", "create", topic)
    assert result.exit_code == ExitCode.FAILED
    assert "TOPIC_ALREADY_EXISTS" in result.stderr
    assert f"millrace topic alter {topic}" in result.stderr


def test_an_unknown_setting_is_answered_with_the_nearest(millrace: CommandLine) -> None:
    result = millrace.run("topic", "create", "settings", "--set", "retention.msec=1")
    assert result.exit_code == ExitCode.FAILED
    assert "INVALID_CONFIG" in result.stderr
    assert "retention.ms" in result.stderr.replace("retention.msec", "")


def test_a_deleted_topic_is_listed_brought_back_and_given_up(
    millrace: CommandLine, topic: str
) -> None:
    millrace.ok("produce", topic, stdin="a\nb\n")
    described = json.loads(millrace.ok("topic", "describe", topic, "-o", "json"))
    millrace.ok("topic", "delete", topic, "--yes")
    (listed,) = json.loads(millrace.ok("topic", "list", topic, "--deleted", "-o", "json"))
    assert (listed["name"], listed["topic_id"]) == (topic, described["topic_id"])
    assert listed["gone_at_ms"] - listed["deleted_at_ms"] == 86_400_000
    table = millrace.ok("topic", "list", "--deleted", "--regex", f"{topic[:-1]}.")
    assert table.splitlines()[0].split("  ")[0] == "TOPIC"
    assert described["topic_id"] in table

    back = json.loads(millrace.ok("topic", "undelete", topic, "-o", "json"))
    assert back["topic_id"] == described["topic_id"]
    assert millrace.ok("consume", topic).split() == ["a", "b"]
    again = millrace.run("topic", "undelete", topic)
    assert again.exit_code == ExitCode.NOT_FOUND
    assert "`millrace topic list --deleted`" in again.stderr

    millrace.ok("topic", "delete", topic, "--yes")
    millrace.ok("topic", "create", topic)
    taken = millrace.run("topic", "undelete", topic)
    assert taken.exit_code == ExitCode.FAILED
    assert "another one has its name by now" in taken.stderr
    unsure = millrace.run("topic", "purge", topic)
    assert unsure.exit_code == ExitCode.FAILED
    assert "--yes" in unsure.stderr
    millrace.ok("topic", "purge", topic, "--id", described["topic_id"], "--yes")
    gone = millrace.run("topic", "undelete", topic, "--id", described["topic_id"])
    assert gone.exit_code == ExitCode.NOT_FOUND
    wrong = millrace.run("topic", "undelete", topic, "--id", "12")
    assert wrong.exit_code == ExitCode.USAGE
    assert "32 digits" in wrong.stderr


def test_nothing_is_deleted_without_a_yes(millrace: CommandLine, topic: str) -> None:
    result = millrace.run("topic", "delete", topic)
    assert result.exit_code == ExitCode.FAILED
    assert "--yes" in result.stderr
    millrace.ok("topic", "describe", topic)


def test_several_topics_are_created_described_and_deleted_at_once(
    millrace: CommandLine, topic: str
) -> None:
    names = ["many/a", "many/b"]
    refused = millrace.run("topic", "create", *names, topic)
    assert refused.exit_code == ExitCode.FAILED
    assert millrace.run("topic", "list", "--regex", "many/.*").exit_code == ExitCode.NOT_FOUND
    created = json.loads(millrace.ok("topic", "create", *names, "--partitions", "2", "-o", "json"))
    assert [(topic["name"], len(topic["partitions"])) for topic in created] == [
        ("many/a", 2),
        ("many/b", 2),
    ]
    described = json.loads(millrace.ok("topic", "describe", *names, "--output", "json"))
    assert [found["name"] for found in described] == names
    tables = millrace.ok("topic", "describe", *names)
    assert tables.index("many/a (id") < tables.index("\n\nmany/b (id")
    listed = json.loads(millrace.ok("topic", "list", "many/b", "--output", "json"))
    assert [topic["name"] for topic in listed] == ["many/b"]
    millrace.ok("topic", "delete", *names, "--yes")


def test_following_a_regular_expression_reads_topics_that_are_made_later(
    millrace: CommandLine,
) -> None:
    millrace.ok("topic", "create", "late/cpu")
    millrace.ok("produce", "late/cpu", stdin="a\n")
    with millrace.start("consume", "--regex", "late/.*", "--follow") as command:
        try:
            assert command.stdout is not None
            assert command.stdout.readline() == b"a\n"
            millrace.ok("topic", "create", "late/disk", "later")
            millrace.ok("produce", "later", stdin="b\n")
            millrace.ok("produce", "late/disk", stdin="c\n")
            assert command.stdout.readline() == b"c\n"
        finally:
            command.terminate()
    assert command.returncode == ExitCode.TERMINATED


def test_following_an_expression_that_brokers_do_not_understand_says_so(
    millrace: CommandLine, topic: str
) -> None:
    pattern = f"{topic}(?!x)"
    assert millrace.run("consume", "--regex", pattern).exit_code == 0
    refused = millrace.run("consume", "--regex", pattern, "--follow")
    assert refused.exit_code == ExitCode.FAILED
    assert "is no regular expression of RE2" in refused.stderr


def test_a_regular_expression_stands_for_the_topics_with_such_names(
    millrace: CommandLine,
) -> None:
    names = ["trial/cpu", "trial/disk", "trials"]
    millrace.ok("topic", "create", *names)
    millrace.ok("produce", "trial/cpu", stdin="a\n")
    millrace.ok("produce", "trial/disk", stdin="b\n")
    assert sorted(millrace.ok("consume", "--regex", "trial/.*").split()) == ["a", "b"]
    offsets = json.loads(millrace.ok("offsets", "--regex", "trial.*", "--output", "json"))
    assert {offset["topic"]: offset["records"] for offset in offsets if offset["records"]} == {
        "trial/cpu": 1,
        "trial/disk": 1,
    }
    described = json.loads(millrace.ok("topic", "describe", "-r", "trials", "-o", "json"))
    assert [found["name"] for found in described] == ["trials"]

    unsure = millrace.run("topic", "delete", "--regex", "trial/.*")
    assert unsure.exit_code == ExitCode.FAILED
    assert "deleting trial/cpu, trial/disk needs a yes" in unsure.stderr
    part = millrace.run("topic", "delete", "--regex", "trial", "--yes")
    assert part.exit_code == ExitCode.NOT_FOUND
    assert "must match the whole name" in part.stderr
    deleted = millrace.ok("topic", "delete", "--regex", "trial/.*", "--yes", "-o", "json")
    assert json.loads(deleted) == {"deleted": ["trial/cpu", "trial/disk"]}
    millrace.ok("topic", "delete", "trials", "--yes")


def test_a_regular_expression_never_deletes_topics_of_the_cluster_itself(
    millrace: CommandLine, topic: str
) -> None:
    with SyncAdmin(millrace.address) as admin:
        admin.resolve_initial("reader", {(topic, 0): Position(0)})  # Makes __positions.
    result = millrace.run("topic", "delete", "--regex", "__.*", "--yes")
    assert result.exit_code == ExitCode.NOT_FOUND
    listed = millrace.ok("topic", "list", "--regex", "__.*", "--internal", "-o", "json")
    assert [row["name"] for row in json.loads(listed)] == ["__positions"]


@pytest.mark.parametrize(("answer", "is_deleted"), [(b"n\n", False), (b"y\n", True)])
def test_a_person_is_asked_with_the_names_before_topics_are_deleted(
    millrace: CommandLine, topic: str, answer: bytes, is_deleted: bool
) -> None:
    terminal, own = pty.openpty()
    with open(terminal, "wb", buffering=0) as keyboard:
        process = subprocess.Popen(
            [sys.executable, "-m", "millrace.cli", "topic", "delete", "-r", f"{topic[:-1]}."],
            stdin=own,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"MILLRACE_BOOTSTRAP": millrace.address},
        )
        os.close(own)
        keyboard.write(answer)
        _, said = process.communicate(timeout=60)
    assert f"Delete {topic} with all its records? [y/N]" in said.decode()
    assert process.returncode == (ExitCode.DONE if is_deleted else ExitCode.FAILED)
    left = json.loads(millrace.ok("topic", "list", "-o", "json"))
    assert (topic not in [found["name"] for found in left]) is is_deleted


def test_what_was_deleted_is_told_to_programs(millrace: CommandLine, topic: str) -> None:
    deleted = millrace.ok("topic", "delete", topic, "--yes", "--output", "json")
    assert json.loads(deleted) == {"deleted": [topic]}
    again = millrace.run("topic", "delete", topic, "--yes", "--output", "json")
    assert again.stdout == ""
    assert json.loads(again.stderr)["exit_code"] == again.exit_code == ExitCode.NOT_FOUND


def test_a_topic_that_is_protected_is_not_deleted_nor_others_beside_it(
    millrace: CommandLine, topic: str
) -> None:
    millrace.ok("topic", "create", "kept", "--set", "deletion.protection=true")
    result = millrace.run("topic", "delete", topic, "kept", "--yes")
    assert result.exit_code == ExitCode.FAILED
    assert "DELETION_PROTECTED" in result.stderr
    millrace.ok("topic", "describe", topic)
    assert "millrace topic alter kept --set deletion.protection=false" in result.stderr
    millrace.ok("topic", "alter", "kept", "--set", "deletion.protection=false")
    millrace.ok("topic", "delete", topic, "kept", "--yes")


def test_records_are_deleted_up_to_an_offset_a_time_or_a_number(
    millrace: CommandLine, topic: str
) -> None:
    def earliest() -> int:
        (found,) = json.loads(millrace.ok("offsets", topic, "-o", "json"))
        return int(found["earliest"])

    millrace.ok("produce", topic, stdin="".join(f"{number}\n" for number in range(100)))
    asked = millrace.run("topic", "trim", topic, "--before", "10")
    assert asked.exit_code == ExitCode.FAILED
    assert "--yes" in asked.stderr
    millrace.ok("topic", "trim", topic, "--before", "10", "--validate-only")
    assert earliest() == 0
    trimmed = json.loads(millrace.ok("topic", "trim", topic, "--before", "10", "-y", "-o", "json"))
    assert trimmed == {
        "partitions": [{"partition": 0, "earliest": 10, "deleted": 10}],
        "refused": [],
    }
    millrace.ok("topic", "trim", topic, "--before", "-30", "--yes")
    assert earliest() == 70
    millrace.ok("topic", "trim", topic, "--before", "2000-01-01", "--yes")
    assert earliest() == 70, "all are younger"
    beyond = millrace.run("topic", "trim", topic, "--before", "101", "-p", "0", "--yes")
    assert beyond.exit_code == ExitCode.NOT_FOUND
    assert "OFFSET_OUT_OF_RANGE" in beyond.stderr
    millrace.ok("topic", "trim", topic, "--before", "end", "--yes")
    assert earliest() == 100
    millrace.ok("topic", "alter", topic, "--partitions", "2")
    vague = millrace.run("topic", "trim", topic, "--before", "100", "--yes")
    assert vague.exit_code == ExitCode.USAGE
    assert "--partition" in vague.stderr


def test_nothing_is_deleted_when_one_of_the_names_is_wrong(
    millrace: CommandLine, topic: str
) -> None:
    result = millrace.run("topic", "delete", topic, "no-such-topic", "--yes")
    assert result.exit_code == ExitCode.NOT_FOUND
    assert "creat" not in result.stderr  # Nobody wants to make what is to be deleted.
    misspelt = millrace.run("topic", "delete", topic[:-1] + "x", "--yes")
    assert f"did you mean '{topic}'?" in misspelt.stderr
    millrace.ok("topic", "describe", topic)
