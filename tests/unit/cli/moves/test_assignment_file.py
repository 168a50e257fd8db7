"""Plans as files: what is written can be read, and what cannot be meant is refused."""

import json

import pytest

from millrace.cli.console.failures import Failure
from millrace.cli.moves import assignment_file

PLAN = {("b", 0): (1, 2), ("a", 1): (0, 1)}
BEFORE = {("b", 0): (2, 1), ("a", 1): (1,)}


def test_what_is_written_can_be_read_again() -> None:
    text = assignment_file.text(assignment_file.document(PLAN, BEFORE))
    assert assignment_file.parse(text.encode(), "plan") == {
        place: list(replicas) for place, replicas in PLAN.items()
    }


def test_each_partition_has_a_line_in_order_with_what_it_was() -> None:
    text = assignment_file.text(assignment_file.document(PLAN, BEFORE))
    _, first, second, _ = text.splitlines()
    assert json.loads(first.rstrip(",")) == {
        "topic": "a",
        "partition": 1,
        "replicas": [0, 1],
        "was": [1],
    }
    assert json.loads(second)["topic"] == "b"


def test_an_empty_plan_is_a_plan() -> None:
    text = assignment_file.text(assignment_file.document({}, {}))
    assert assignment_file.parse(text.encode(), "plan") == {}


def entry(**changes: object) -> dict[str, object]:
    return {"topic": "t", "partition": 0, "replicas": [1], **changes}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("{", "no JSON"),
        (b"\xff".decode("latin-1"), "no JSON"),
        ("[]", 'no list "partitions"'),
        ({"version": 2, "partitions": []}, "version is 2"),
        ({"partitions": []}, "version is None"),
        ([entry(), "nonsense"], "entry 2"),
        ([entry(topic=1)], '"topic"'),
        ([entry(topic="")], '"topic"'),
        ([entry(partition=-1)], '"partition"'),
        ([entry(partition=True)], '"partition"'),
        ([entry(replicas=[])], '"replicas"'),
        ([entry(replicas=["1"])], '"replicas"'),
        ([entry(replicas=[1, 1])], "names a broker twice"),
        ([entry(), entry()], "t 0 is named twice"),
    ],
)
def test_what_is_no_plan_is_refused_with_the_place(data: object, problem: str) -> None:
    if isinstance(data, list):
        data = {"version": 1, "partitions": data}
    text = data if isinstance(data, str) else json.dumps(data)
    with pytest.raises(Failure, match=problem):
        assignment_file.parse(text.encode(), "plan.json")
