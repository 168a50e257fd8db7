"""Transactions through the command line and a real broker."""

import json
from pathlib import Path

import pytest
from tests.integration.cli.command_line import CommandLine
from tests.integration.running_broker import wait_until

from millrace.cli.console.failures import ExitCode
from millrace.client import (
    ApplicationVersion,
    SyncAdmin,
    SyncProducer,
    TransactionAbortedError,
)


def values(millrace: CommandLine, topic: str, *words: str) -> list[str]:
    return millrace.ok("consume", topic, "--timeout", "20", *words).split()


def is_decided(millrace: CommandLine, topic: str) -> bool:
    """Return whether nothing is open in a topic: what is there ends for readers before it."""
    words = ("offsets", topic, "-o", "json", "--isolation")
    committed, every = (
        millrace.ok(*words, level) for level in ("read_committed", "read_uncommitted")
    )
    return committed == every


def test_a_run_is_one_transaction_of_which_readers_see_all_or_nothing(
    millrace: CommandLine, topic: str, tmp_path: Path
) -> None:
    good, bad = tmp_path / "good.txt", tmp_path / "bad.jsonl"
    good.write_text("a\nb\nc\n")
    bad.write_text('{"key": "1"}\n{"key": "2"}\nno JSON\n')
    written = millrace.ok("produce", topic, str(good), "--transactional", "load", "-o", "json")
    assert json.loads(written)["records"] == 3
    refused = millrace.run("produce", topic, str(bad), "--transactional", "load")
    assert refused.exit_code == ExitCode.FAILED
    assert "0 records written; 2 not, as their transaction was aborted" in refused.stderr
    assert values(millrace, topic) == ["a", "b", "c"]
    described = json.loads(millrace.ok("transaction", "describe", "load", "-o", "json"))
    assert described["ended_committed"] is False
    assert described["ending"] == "producer"


def test_a_long_input_may_be_committed_on_the_way(
    millrace: CommandLine, topic: str, tmp_path: Path
) -> None:
    lines = tmp_path / "bad.jsonl"
    lines.write_text("".join(f'{{"n": {number}}}\n' for number in range(10)) + "no JSON\n")
    name = f"every of {topic}"
    words = ("produce", topic, str(lines), "--transactional", name, "--commit-every", "1")
    refused = millrace.run(*words)
    assert refused.exit_code == ExitCode.FAILED
    assert "10 records written, the last from" in refused.stderr
    assert "--from-row 11" in refused.stderr
    wait_until(lambda: is_decided(millrace, topic), "the partition knows of the last commit")
    assert len(millrace.ok("consume", topic, "--timeout", "20").splitlines()) == 10
    usage = millrace.run("produce", topic, str(lines), "--commit-every", "1")
    assert usage.exit_code == ExitCode.USAGE
    assert "--transactional" in usage.stderr


def test_ids_are_listed_described_and_their_transactions_aborted(
    millrace: CommandLine, topic: str
) -> None:
    with SyncProducer(millrace.address, transactional_id="team/open one") as producer:
        producer.begin_transaction()
        producer.send(topic, b"1").result()
        listed = json.loads(millrace.ok("transaction", "list", "--state", "ongoing", "-o", "json"))
        (found,) = [entry for entry in listed if entry["transactional_id"] == "team/open one"]
        assert found["open_ms"] > 0
        by_producer = millrace.ok("transaction", "list", "--producer-id", str(found["producer_id"]))
        assert "team/open one" in by_producer
        table = millrace.ok("transaction", "describe", "team/open one")
        assert "ongoing" in table
        assert topic in table
        refused = millrace.run("transaction", "abort", "team/open one")
        assert refused.exit_code == ExitCode.FAILED
        assert "--yes" in refused.stderr
        assert "no transaction hangs" in millrace.run("transaction", "hanging", topic).stderr
        aborted = millrace.ok("transaction", "abort", "team/open one", "--yes", "-o", "json")
        assert json.loads(aborted) == {"aborted": "team/open one"}
        with pytest.raises(TransactionAbortedError):
            producer.commit_transaction()
        again = millrace.run("transaction", "abort", "team/open one", "--yes")
        assert again.exit_code == ExitCode.FAILED
        wait_until(
            lambda: "complete_abort" in millrace.ok("transaction", "describe", "team/open one"),
            "the abort to be written",
        )
        assert "aborted by a person" in millrace.ok("transaction", "describe", "team/open one")
    assert values(millrace, topic) == []


def test_what_is_unknown_is_not_found(millrace: CommandLine) -> None:
    for words in (["describe"], ["abort", "--yes"]):
        result = millrace.run("transaction", *words, "nobody")
        assert result.exit_code == ExitCode.NOT_FOUND
        assert "transaction list" in result.stderr
    assert json.loads(millrace.ok("transaction", "hanging", "-o", "json")) == []
    result = millrace.run("transaction", "hanging", "no-such-topic")
    assert result.exit_code == ExitCode.NOT_FOUND


def test_an_applications_version_is_shown_and_forgotten(millrace: CommandLine, topic: str) -> None:
    name = f"etl@{topic}"
    with SyncAdmin(millrace.address) as admin:
        shared = admin.open_shared_transaction(name, "run 1", ApplicationVersion(7, "query", "s3:"))
        with SyncProducer(millrace.address, transactional_id=name) as producer:
            producer.join_transaction(shared)
            producer.send(topic, b"1")
            part = producer.leave_transaction()
            table = millrace.ok("transaction", "describe", name)
            assert "transaction 1 of run run 1, 1 participant, no version" in table
            assert "no transaction hangs" in millrace.run("transaction", "hanging", topic).stderr
            refused = millrace.run("transaction", "forget-version", name, "--yes")
            assert refused.exit_code == ExitCode.FAILED
            assert "has no version" in refused.stderr
            admin.commit_shared_transaction(shared, [part])
    wait_until(
        lambda: "complete_commit" in millrace.ok("transaction", "describe", name),
        "the commit to be written",
    )
    assert "version 7 (query, s3:)" in millrace.ok("transaction", "describe", name)
    assert name in millrace.ok("transaction", "list")
    assert "--yes" in millrace.run("transaction", "forget-version", name).stderr
    forgotten = millrace.ok("transaction", "forget-version", name, "--yes", "-o", "json")
    assert json.loads(forgotten) == {"forgotten": name}
    assert "no version" in millrace.ok("transaction", "describe", name)
    assert values(millrace, topic) == ["1"]
