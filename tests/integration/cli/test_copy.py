"""Copies of topics, in one cluster and from one to another, whole or up to where they stopped."""

import json
import signal
import subprocess
from typing import Any

from tests.integration.cli.broker_process import BrokerProcess
from tests.integration.cli.command_line import CommandLine

from millrace.cli.console.failures import ExitCode
from millrace.client import SyncProducer


def records(millrace: CommandLine, topic: str, *fields: str) -> list[tuple[Any, ...]]:
    """Return these fields of all records, by partition and offset."""
    lines = millrace.ok("consume", topic, "--output", "json").splitlines()
    rows = sorted(map(json.loads, lines), key=lambda row: (row["partition"], row["offset"]))
    return [tuple(row[field] for field in fields) for row in rows]


def fill(millrace: CommandLine, topic: str) -> None:
    """Create a topic of two partitions with records of all kinds."""
    millrace.ok("topic", "create", topic, "--partitions", "2", "--set", "retention.ms=-1")
    with SyncProducer(millrace.address) as producer:
        for number in range(100):
            producer.send(
                topic,
                None if number % 10 == 0 else b"value %d" % number,
                None if number % 7 == 0 else b"key %d" % number,
                partition=number % 2,
                headers=[("number", b"%d" % number), ("null", None)] if number % 3 else None,
                timestamp=1_000_000 + number,
            )


ALL = ("partition", "offset", "timestamp", "key", "value", "headers")


def test_a_copy_in_another_cluster_has_the_same_records_in_the_same_partitions(
    millrace: CommandLine, own_broker: BrokerProcess
) -> None:
    fill(millrace, "copied")
    other = CommandLine(own_broker.address)
    words = ("copy", "copied", "copied", "--to-bootstrap", other.address)
    missing = millrace.run(*words)
    assert missing.exit_code == ExitCode.NOT_FOUND
    assert "--create makes it" in missing.stderr
    done = json.loads(millrace.ok(*words, "--create", "--output", "json"))
    assert done["records"] == 100
    assert done["next_offsets"] == [
        {"partition": 0, "offset": 50},
        {"partition": 1, "offset": 50},
    ]
    assert records(other, "copied", *ALL) == records(millrace, "copied", *ALL)
    settings = json.loads(other.ok("topic", "describe", "copied", "-o", "json"))["config"]
    assert settings["retention.ms"] == {"value": "-1", "source": "topic"}


def test_where_partitions_differ_keys_choose_them(millrace: CommandLine, topic: str) -> None:
    fill(millrace, "to-fewer")
    result = millrace.run("copy", "to-fewer", topic)
    assert result.exit_code == ExitCode.DONE
    assert "a record's key chooses its partition" in result.stderr
    fields = ("key", "value", "headers", "timestamp")
    copied, originals = records(millrace, topic, *fields), records(millrace, "to-fewer", *fields)
    assert sorted(copied, key=repr) == sorted(originals, key=repr)


def test_a_part_of_a_topic_is_copied(millrace: CommandLine, topic: str) -> None:
    millrace.ok("produce", topic, "--key-separator", ":", stdin="a:1\nb:2\na:3\na:4\na:5\n")
    millrace.ok("copy", topic, "part", "--create", "--from", "1", "--to", "4", "--key", "a")
    assert millrace.ok("consume", "part") == "3\n4\n"
    millrace.ok("copy", topic, "part", "--max", "2")
    assert millrace.ok("consume", "part") == "3\n4\n1\n2\n"


def test_a_topic_is_not_copied_into_itself(millrace: CommandLine, topic: str) -> None:
    host, _, port = millrace.address.rpartition(":")
    assert host == "127.0.0.1"
    result = millrace.run("copy", topic, f"default/{topic}", "--to-bootstrap", f"localhost:{port}")
    assert result.exit_code == ExitCode.FAILED
    assert "would be copied into itself" in result.stderr


def test_a_copy_under_a_name_goes_on_where_it_was(millrace: CommandLine, topic: str) -> None:
    millrace.ok("produce", topic, stdin="1\n2\n")
    words = ("copy", topic, "named", "--create", "--name", "nightly")
    millrace.ok(*words)
    again = millrace.run(*words)
    assert "0 records from" in again.stderr
    millrace.ok("produce", topic, stdin="3\n")
    millrace.ok(*words)
    assert millrace.ok("consume", "named") == "1\n2\n3\n"
    other = millrace.run("copy", topic, "elsewhere", "--create", "--name", "nightly")
    assert other.exit_code == ExitCode.FAILED
    assert "'nightly' are not of this copy, but copied to named of cluster" in other.stderr


def test_a_copy_of_some_keys_under_a_name_goes_on_after_the_others(
    millrace: CommandLine, topic: str
) -> None:
    words = ("copy", topic, "of-b", "--create", "--name", "of-b", "--key", "b", "-o", "json")
    for stdin, copied, at in (("a:1\na:2\n", 0, 2), ("a:3\nb:4\na:5\n", 1, 5)):
        millrace.ok("produce", topic, "--key-separator", ":", stdin=stdin)
        done = json.loads(millrace.ok(*words))
        assert done["records"] == copied
        assert done["next_offsets"] == [{"partition": 0, "offset": at}]
        lag = json.loads(millrace.ok("group", "lag", "of-b", "-o", "json"))
        assert [row["lag"] for row in lag] == [0]
    assert millrace.ok("consume", "of-b") == "4\n"


def test_following_copies_what_comes_until_ctrl_c_and_says_how_far_it_came(
    millrace: CommandLine, topic: str
) -> None:
    millrace.ok("topic", "create", "mirror")
    words = ("copy", topic, "mirror", "--follow", "--name", "mirror")
    with millrace.start(*words) as command:
        for line in ("1\n", "2\n"):
            millrace.ok("produce", topic, stdin=line)
            one = ("consume", "mirror", "--from", str(int(line) - 1), "--follow", "--max", "1")
            assert millrace.ok(*one) == line
        command.send_signal(signal.SIGINT)
        assert command.wait(30) == ExitCode.INTERRUPTED
        assert command.stderr is not None
        said = command.stderr.read().decode()
    assert f"2 records copied; not copied: {topic}-0 from 2\n" in said
    assert "the same command goes on from there" in said
    millrace.ok("produce", topic, stdin="3\n")
    millrace.ok("copy", topic, "mirror", "--name", "mirror")
    assert millrace.ok("consume", "mirror") == "1\n2\n3\n"


def test_following_soon_copies_partitions_that_come_later(
    millrace: CommandLine,
) -> None:
    for topic in ("growing", "growing-copied"):
        millrace.ok("topic", "create", topic, "--partitions", "1")
    with millrace.start("copy", "growing", "growing-copied", "--follow") as command:
        try:
            millrace.ok("produce", "growing", stdin="1\n")
            assert millrace.ok("consume", "growing-copied", "--follow", "--max", "1") == "1\n"
            for topic in ("growing-copied", "growing"):
                millrace.ok("topic", "alter", topic, "--partitions", "2")
            millrace.ok("produce", "growing", "--partition", "1", stdin="2\n")
            one = ("--partition", "1", "--follow", "--max", "1", "--timeout", "60")
            assert millrace.ok("consume", "growing-copied", *one) == "2\n"
        finally:
            command.kill()


def test_a_copy_of_what_comes_leaves_nothing_out_that_comes_while_it_is_not_running(
    millrace: CommandLine, topic: str
) -> None:
    millrace.ok("produce", topic, stdin="before\n")
    millrace.ok("topic", "create", "later")
    words = ("copy", topic, "later", "--from", "end", "--name", "later")
    assert json.loads(millrace.ok(*words, "-o", "json"))["next_offsets"] == [
        {"partition": 0, "offset": 1}
    ]
    millrace.ok("produce", topic, stdin="after\n")
    millrace.ok(*words)
    assert millrace.ok("consume", "later") == "after\n"


def test_ctrl_c_ends_a_copy_to_a_cluster_that_is_away_and_it_goes_on_when_that_is_back(
    millrace: CommandLine, topic: str, own_broker: BrokerProcess
) -> None:
    other = CommandLine(own_broker.address)
    other.ok("topic", "create", "away")
    words = ("copy", topic, "away", "--to-bootstrap", other.address, "--name", "away")
    with millrace.start(*words, "--follow") as command:
        assert command.stderr is not None
        millrace.ok("produce", topic, stdin="1\n")
        assert other.ok("consume", "away", "--follow", "--max", "1") == "1\n"
        own_broker.kill()
        millrace.ok("produce", topic, stdin="2\n")
        assert command.stderr.readline().startswith(b"waiting for ")
        command.send_signal(signal.SIGINT)
        assert command.wait(30) == ExitCode.INTERRUPTED
        said = command.stderr.read().decode()
    assert f"1 record copied; not copied: {topic}-0 from 1\n" in said
    own_broker.start()
    millrace.ok(*words)
    assert other.ok("consume", "away") == "1\n2\n"


def test_a_copier_that_is_killed_loses_nothing(millrace: CommandLine, topic: str) -> None:
    lines = "".join(f"{number}\n" for number in range(200_000))
    millrace.ok("produce", topic, stdin=lines)
    millrace.ok("topic", "create", "after-kill")
    words = ("copy", topic, "after-kill", "--name", "after-kill")
    with millrace.start(*words, "--follow", stdout=subprocess.DEVNULL) as command:
        millrace.ok("consume", "after-kill", "--follow", "--max", "1")  # It has begun.
        command.kill()
    millrace.ok(*words)
    copied = millrace.ok("consume", "after-kill").splitlines()
    assert list(dict.fromkeys(copied)) == lines.splitlines()


def test_a_copy_says_how_far_it_came_when_a_record_is_refused(
    millrace: CommandLine, topic: str
) -> None:
    millrace.ok("produce", topic, stdin="1\n2\n")
    millrace.ok("produce", topic, stdin="x" * 5000 + "\n")
    millrace.ok("topic", "create", "small", "--set", "max.message.bytes=2000")
    words = ("copy", topic, "small", "--name", "small")
    refused = millrace.run(*words)
    assert refused.exit_code == ExitCode.FAILED
    assert "(MESSAGE_TOO_LARGE)" in refused.stderr
    assert f"2 records copied; not copied: {topic}-0 from 2\n" in refused.stderr
    millrace.ok("topic", "alter", "small", "--set", "max.message.bytes=1MiB")
    millrace.ok(*words)
    assert millrace.ok("consume", "small").splitlines() == ["1", "2", "x" * 5000]


def test_a_named_copy_tells_what_was_deleted_copies_new_partitions_and_knows_its_destination(
    millrace: CommandLine,
) -> None:
    for topic in ("grows", "grows-copied"):
        millrace.ok("topic", "create", topic, "--partitions", "1")
    words = ("copy", "grows", "grows-copied", "--name", "grows", "--output", "json")
    with SyncProducer(millrace.address) as producer:
        producer.send("grows", b"first", partition=0).result(10)
        millrace.ok(*words, "--from", "end")
        for topic in ("grows", "grows-copied"):
            millrace.ok("topic", "alter", topic, "--partitions", "2")
        for partition in (0, 0, 1):
            producer.send("grows", b"later", partition=partition).result(10)
    millrace.ok("topic", "trim", "grows", "--before", "2", "-p", "0", "--yes")
    done = json.loads(millrace.ok(*words, "--from", "end"))
    assert done["deleted_uncopied"] == 1
    assert done["records"] == 2, "one of the two that are left, and that of the new partition"
    millrace.ok("topic", "delete", "grows-copied", "--yes")
    again = millrace.run(*words, "--create")
    assert again.exit_code == ExitCode.FAILED
    assert "the destination was deleted and made again" in again.stderr
