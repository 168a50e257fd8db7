"""Groups and other readers under a name, through the command line and a real broker."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.cli.command_line import CommandLine
from tests.integration.running_broker import wait_until

from millrace.cli.console.failures import ExitCode
from millrace.client import Position, SyncAdmin, SyncConsumer, SyncProducer


@pytest.fixture
def admin(millrace: CommandLine, topic: str) -> Iterator[SyncAdmin]:
    """With five records in each of two partitions of the topic."""
    millrace.ok("topic", "alter", topic, "--partitions", "2")
    with SyncProducer(millrace.address) as producer:
        for number in range(10):
            producer.send(topic, b"v", partition=number % 2)
    with SyncAdmin(millrace.address) as admin:
        yield admin


def test_readers_are_listed_described_and_deleted(
    millrace: CommandLine, topic: str, admin: SyncAdmin
) -> None:
    name = f"reader of {topic}"
    admin.resolve_initial(name, {(topic, 0): Position(0), (topic, 1): Position(1)})
    admin.commit_positions(name, {(topic, 0): Position(3, 0, "m")})

    listed = json.loads(millrace.ok("group", "list", "-o", "json"))
    assert {"name": name, "kind": "spark", "members": 0} in listed
    described = json.loads(millrace.ok("group", "describe", name, "-o", "json"))
    columns = ("kind", "position", "end", "lag", "metadata")
    assert [[partition[column] for column in columns] for partition in described["partitions"]] == [
        ["committed", 3, 5, 2, "m"],
        ["initial", 1, 5, 4, ""],
    ]
    assert described["lag"] == 6
    assert described["lag_bytes"] > 0
    assert described["lag_ms"] > 0
    assert "RECORDS" in millrace.ok("group", "describe", name)
    assert "__positions" not in millrace.ok("topic", "list")
    assert "__positions" in millrace.ok("topic", "list", "--internal")

    refused = millrace.run("group", "delete", name)
    assert refused.exit_code == ExitCode.FAILED
    assert "--yes" in refused.stderr
    assert "2 positions" in millrace.run("group", "delete", name, "--dry-run").stderr
    deleted = millrace.ok("group", "delete", name, "--yes", "--output", "json")
    assert json.loads(deleted) == {"deleted": [name]}
    for command in (["describe"], ["delete", "--yes"], ["lag"]):
        result = millrace.run("group", *command, name)
        assert result.exit_code == ExitCode.NOT_FOUND
        assert "group list" in result.stderr


def test_a_position_that_an_open_transaction_commits_is_shown_as_pending(
    millrace: CommandLine, topic: str, admin: SyncAdmin
) -> None:
    name = f"copier of {topic}"

    def described() -> list[int | None]:
        document = json.loads(millrace.ok("group", "describe", name, "-o", "json"))
        return [partition["pending"] for partition in document["partitions"]]

    with (
        SyncConsumer(millrace.address, group=name, enable_auto_commit=False) as consumer,
        SyncProducer(millrace.address, transactional_id=name) as producer,
    ):
        consumer.subscribe([topic])
        wait_until(lambda: consumer.poll(100) or consumer.assignment(), "it has partitions")
        producer.begin_transaction()
        producer.send_offsets_to_transaction({(topic, 1): 4}, consumer)
        assert described() == [None, 4]
        assert "PENDING" in millrace.ok("group", "describe", name)
        # The consumer adds the epoch of the partition's leader once it knows that.
        (pending,) = admin.fetch_positions(name, kind="pending").items()
        assert (pending[0], pending[1].offset) == ((topic, 1), 4)
        producer.commit_transaction()
        wait_until(lambda: described() == [None, None], "the position counts")
        assert admin.fetch_positions(name)[topic, 1].offset == 4
        assert "PENDING" not in millrace.ok("group", "describe", name)


def test_a_group_of_consumers_shows_its_members_and_cannot_be_changed_meanwhile(
    millrace: CommandLine, topic: str, admin: SyncAdmin
) -> None:
    name = f"group of {topic}"
    with SyncConsumer(millrace.address, group=name, client_id="c1") as consumer:
        consumer.subscribe([topic])
        read = 0
        while read < 10:
            read += len(consumer.poll(1000))
        consumer.commit()
        described = json.loads(millrace.ok("group", "describe", name, "-o", "json"))
        assert described["kind"] == "consumer"
        assert described["state"] == "stable"
        (member,) = described["members"]
        assert (member["client_id"], member["state"]) == ("c1", "reads")
        assert [partition["partition"] for partition in member["partitions"]] == [0, 1]
        assert [partition["lag"] for partition in described["partitions"]] == [0, 0]
        shown = millrace.ok("group", "describe", name)
        assert f"{name}: consumer, stable, 1 member, assignor uniform" in shown
        for words in (["reset", name, "--to", "beginning", "--yes"], ["delete", name, "--yes"]):
            refused = millrace.run("group", *words)
            assert refused.exit_code == ExitCode.FAILED
            assert "has 1 member" in refused.stderr
    emptied = json.loads(millrace.ok("group", "describe", name, "-o", "json"))
    assert (emptied["state"], emptied["members"]) == ("empty", [])
    millrace.ok("group", "delete", name, "--yes")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--to", "beginning"], [0, 0]),
        (["--to", "end"], [5, 5]),
        (["--to", "-2"], [3, 3]),
        (["--to", "4"], [4, 4]),
        (["--to", "400"], [5, 5]),
        (["--to", "1h"], [0, 0]),
        (["--to", "2999-01-01"], [5, 5]),
        (["--shift", "-1"], [1, None]),
        (["--shift", "-100"], [0, None]),
        (["--to", "current"], [2, None]),
        (["--to", "end", "--topic", "{topic}:1"], [2, 5]),
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_a_reset_moves_positions(
    millrace: CommandLine,
    topic: str,
    admin: SyncAdmin,
    words: list[str],
    expected: list[int | None],
) -> None:
    name = f"reset of {topic}"
    admin.commit_positions(name, {(topic, 0): Position(2)})
    words = [word.format(topic=topic) for word in words]
    dry = millrace.run("group", "reset", name, *words, "--dry-run")
    assert "dry run" in dry.stderr
    assert admin.fetch_positions(name) == {(topic, 0): Position(2)}
    millrace.ok("group", "reset", name, *words, "--yes")
    kept = {place: position.offset for place, position in admin.fetch_positions(name).items()}
    assert [kept.get((topic, number)) for number in (0, 1)] == expected
    millrace.ok("group", "delete", name, "--yes")


def test_positions_come_back_from_the_file_of_a_dry_run(
    millrace: CommandLine, topic: str, admin: SyncAdmin, tmp_path: Path
) -> None:
    name = f"file of {topic}"
    admin.commit_positions(name, {(topic, 0): Position(2), (topic, 1): Position(3)})
    kept = millrace.ok("group", "reset", name, "--to", "current", "--dry-run", "-o", "json")
    file = tmp_path / "positions.json"
    file.write_text(kept)
    millrace.ok("group", "delete", name, "--yes")
    millrace.ok("group", "reset", name, "--file", str(file), "--yes")
    assert admin.fetch_positions(name) == {(topic, 0): Position(2), (topic, 1): Position(3)}
    millrace.ok("group", "delete", name, "--yes")


def test_what_cannot_be_reset_is_refused(
    millrace: CommandLine, topic: str, admin: SyncAdmin, tmp_path: Path
) -> None:
    file = tmp_path / "positions.json"
    file.write_text('[{"topic": "t", "partition": 0}]')
    for words, said in (
        ([], "name one of"),
        (["--to", "end", "--shift", "1"], "name one of"),
        (["--to", "yesterday"], "is not a position"),
        (["--to", "end"], "no positions"),
        (["--to", "end", "--topic", f"{topic}:7"], "no partition 7"),
        (["--file", str(file)], "entry 1"),
    ):
        refused = millrace.run("group", "reset", f"none of {topic}", *words, "--yes")
        assert refused.exit_code, words
        assert said in refused.stderr, words
    admin.resolve_initial(f"spark of {topic}", {(topic, 0): Position(0)})
    refused = millrace.run("group", "reset", f"spark of {topic}", "--to", "end", "--yes")
    assert "checkpoint" in refused.stderr


def test_a_topic_that_a_group_has_left_is_forgotten(
    millrace: CommandLine, topic: str, admin: SyncAdmin
) -> None:
    name, left = f"left by {topic}", f"{topic}-left"
    admin.create_topic(left, 1)
    admin.commit_positions(name, {(topic, 0): Position(2), (left, 0): Position(0)})
    for words, said in (
        (["nobody", left, "--yes"], "there is no group"),
        ([name, f"{topic}-lefd", "--yes"], f"did you mean {left}?"),
        ([name, left], "needs a yes"),
    ):
        assert said in millrace.run("group", "forget", *words).stderr
    assert (
        "would forget 1 position" in millrace.run("group", "forget", name, left, "--dry-run").stderr
    )
    with SyncConsumer(millrace.address, group=name) as consumer:
        consumer.subscribe([topic])
        wait_until(
            lambda: any(record.partition == 1 for record in consumer.poll(100)),
            "its position in partition 1 is worth keeping",
        )
        refused = millrace.run("group", "forget", name, topic, "--yes")
        assert "members of the group" in refused.stderr
        millrace.ok("group", "forget", name, left, "--yes")
    assert list(admin.fetch_positions(name)) == [(topic, 0), (topic, 1)]
    millrace.ok("group", "delete", name, "--yes")


def test_an_unknown_lag_is_not_zero(millrace: CommandLine, topic: str, admin: SyncAdmin) -> None:
    name = f"ahead of {topic}"
    admin.commit_positions(name, {(topic, 0): Position(900), (topic, 1): Position(5)})
    (lag,) = json.loads(millrace.ok("group", "lag", name, "-o", "json"))
    assert (lag["partitions"], lag["unknown"], lag["lag"], lag["lag_ms"]) == (2, 1, None, None)
    described = millrace.run("group", "describe", name, "-o", "json")
    assert [partition["lag"] for partition in json.loads(described.stdout)["partitions"]] == [
        None,
        0,
    ]
    assert "before the position 900" in described.stderr
    refused = millrace.run("group", "lag", name, "--watch")
    assert "needs a terminal" in refused.stderr


def test_a_group_without_a_position_has_read_nothing_of_a_partition(
    millrace: CommandLine, topic: str, admin: SyncAdmin
) -> None:
    nothing, half = f"nothing of {topic}", f"half of {topic}"
    for group in (nothing, half):
        with SyncConsumer(millrace.address, group=group, enable_auto_commit=False) as consumer:
            consumer.subscribe([topic])
            while len(consumer.assignment()) < 2:
                consumer.poll(100)
    admin.commit_positions(half, {(topic, 0): Position(5)})
    found = json.loads(millrace.ok("group", "lag", nothing, half, "-o", "json"))
    assert [(group["partitions"], group["unknown"], group["lag"]) for group in found] == [
        (0, 0, None),
        (2, 0, 5),
    ]
    described = json.loads(millrace.ok("group", "describe", half, "-o", "json"))
    assert [
        (partition["position"], partition["lag"], partition["lost"])
        for partition in described["partitions"]
    ] == [
        (5, 0, 0),
        (None, 5, 0),
    ]
    (row,) = (line for line in millrace.ok("group", "lag", nothing).splitlines() if topic in line)
    assert row.split()[-3:] == ["-", "-", "-"]
    described = millrace.ok("group", "describe", half)
    assert len([line for line in described.splitlines() if line.startswith(topic)]) == 2


def test_consume_as_a_member_goes_on_where_the_group_has_committed(
    millrace: CommandLine, topic: str, admin: SyncAdmin
) -> None:
    group = f"member of {topic}"
    form = ("--group", group, "--format", "%p-%o\n", "--timeout", "60")
    first = millrace.ok("consume", topic, *form, "--max", "7").splitlines()
    second = millrace.ok("consume", topic, *form, "--max", "3").splitlines()
    assert sorted(first + second) == sorted(f"{p}-{o}" for p in (0, 1) for o in range(5))
    described = json.loads(millrace.ok("group", "describe", group, "-o", "json"))
    assert (described["kind"], described["lag"], described["members"]) == ("consumer", 0, [])


def test_a_new_group_may_begin_at_the_end_and_follow_a_pattern(
    millrace: CommandLine, topic: str, admin: SyncAdmin
) -> None:
    group = f"tail of {topic}"
    arguments = ("--group", group, "--from", "end", "--regex", "--timeout", "1")
    result = millrace.run("consume", f"{topic}.*", *arguments)
    assert (result.exit_code, result.stdout) == (ExitCode.TIMED_OUT, "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--partition", "0"], "leave --partition"),
        (["--to", "5"], "leave --to"),
        (["--from", "5"], "group reset"),
        (["--from", "2h"], "group reset"),
        (["--output", "parquet"], "another --output"),
    ],
)
def test_what_a_member_cannot_choose_is_refused(
    millrace: CommandLine, topic: str, arguments: list[str], words: str
) -> None:
    result = millrace.run("consume", topic, "--group", "g", *arguments)
    assert result.exit_code == ExitCode.USAGE
    assert words in result.stderr
