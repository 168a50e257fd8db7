"""Conditions keep the time of their last transition, and each reason is explained."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import millrace.operator.model.conditions
from millrace.operator.model.conditions import MESSAGE_LENGTH_MAX, Condition, Reason, merged
from millrace.operator.plan.issued import CERTIFIED_CONDITION
from millrace.operator.reconcile.outside import OUTSIDE_CONDITION
from millrace.operator.reconcile.topics import PLACED

SOURCE = Path(millrace.operator.model.conditions.__file__).parents[1]
PAGE = Path(__file__).resolve().parents[3] / "docs" / "kubernetes.md"


def test_the_time_of_a_transition_stays_while_the_status_does() -> None:
    first = merged([], [Condition("Ready", False, Reason.MOVING)], generation=1, now="t1")
    second = merged(first, [Condition("Ready", False, Reason.REFUSED)], generation=2, now="t2")
    third = merged(second, [Condition("Ready", True, Reason.READY)], generation=2, now="t3")
    times = [made[0]["lastTransitionTime"] for made in (first, second, third)]
    assert times == ["t1", "t1", "t3"]
    assert third[0]["status"] == "True"


def test_a_message_is_cut_to_its_bound() -> None:
    condition = Condition("Ready", None, Reason.REFUSED, "y" * 9999)
    (made,) = merged([], [condition], generation=1, now="t")
    assert made["status"] == "Unknown"
    assert len(made["message"]) == MESSAGE_LENGTH_MAX


def told_in_the_code() -> Iterator[tuple[str, str]]:
    """Yield type and reason of each condition that the code names both of."""
    types = {
        "PLACED": PLACED,
        "OUTSIDE_CONDITION": OUTSIDE_CONDITION,
        "CERTIFIED_CONDITION": CERTIFIED_CONDITION,
    }
    for path in SOURCE.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            match call:
                case ast.Call(ast.Name("Condition"), [ast.Constant(str(type)), _, reason, *_]):
                    pass
                case ast.Call(ast.Name("Condition"), [ast.Name(name), _, reason, *_]):
                    type = types[name]
                case ast.Call(ast.Name("not_ready"), [reason, *_]):
                    type = "Ready"
                case _:
                    continue
            for node in ast.walk(reason):
                if isinstance(node, ast.Attribute) and node.attr in Reason.__members__:
                    yield type, Reason[node.attr]


def explained_in_the_page() -> Iterator[tuple[str, str]]:
    """Yield type and reason of each row; a row that leaves the type out has the one above's."""
    type = ""
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 6 and re.match("`[A-Z]", cells[2]):
            type = cells[1] or type
            for reason in re.findall("`([A-Za-z]+)`", cells[2]):
                yield type, reason


def test_every_condition_is_explained_with_what_to_do() -> None:
    explained = {*explained_in_the_page()}
    told = {*told_in_the_code()}
    assert len(told) > 20
    assert told <= explained
    assert {*Reason} == {reason for _, reason in explained}
