"""What people read of damaged replicas."""

import pytest

from millrace.cli.topics.damage import damage_document, print_damage
from millrace.client import DamagedReplica
from millrace.core.ids import BrokerId

OFFLINE = DamagedReplica("orders", 0, BrokerId(2), "the log is damaged", ())
RENEWED = DamagedReplica("orders", 1, BrokerId(1), "", ("/data/x.5.damaged", "/data/x.9.damaged"))


def test_each_replica_is_named_with_what_became_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_damage([OFFLINE, RENEWED])
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "offline: orders-0 on broker 2: the log is damaged"
    for line, path in ((second, "/data/x.5.damaged"), (third, "/data/x.9.damaged")):
        assert line.startswith("damaged: orders-1 on broker 1 was fetched again")
        assert path in line


def test_a_document_says_the_same() -> None:
    assert damage_document(RENEWED) == {
        "topic": "orders",
        "partition": 1,
        "broker": 1,
        "error": "",
        "kept_in": ("/data/x.5.damaged", "/data/x.9.damaged"),
    }
