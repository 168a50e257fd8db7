"""Positions under names, through the command line and a real broker."""

import json

from tests.integration.cli.command_line import CommandLine

from millrace.cli.failures import ExitCode
from millrace.client import Position, SyncAdmin, SyncProducer


def test_positions_are_listed_shown_and_deleted(millrace: CommandLine, topic: str) -> None:
    millrace.ok("topic", "alter", topic, "--partitions", "2")
    with SyncProducer(millrace.address) as producer:
        for number in range(10):
            producer.send(topic, b"v", partition=number % 2)
    name = f"reader of {topic}"
    with SyncAdmin(millrace.address) as admin:
        admin.resolve_initial(name, {(topic, 0): Position(0), (topic, 1): Position(1)})
        admin.commit_positions(name, {(topic, 0): Position(3, 0, "m")})

    assert name in json.loads(millrace.ok("positions", "list", "-o", "json"))
    shown = json.loads(millrace.ok("positions", "show", name, "-o", "json"))
    assert [(each["kind"], each["position"], each["end"], each["lag"]) for each in shown] == [
        ("committed", 3, 5, 2),
        ("initial", 1, 5, 4),
    ]
    assert "LAG" in millrace.ok("positions", "show", name)
    assert "__positions" not in millrace.ok("topic", "list")
    assert "__positions" in millrace.ok("topic", "list", "--internal")

    refused = millrace.run("positions", "delete", name)
    assert refused.exit_code == ExitCode.FAILED
    assert "--yes" in refused.stderr
    deleted = millrace.ok("positions", "delete", name, "--yes", "--output", "json")
    assert json.loads(deleted) == {"deleted": name}
    for command in (["show"], ["delete", "--yes"]):
        result = millrace.run("positions", *command, name)
        assert result.exit_code == ExitCode.NOT_FOUND
        assert "positions list" in result.stderr
