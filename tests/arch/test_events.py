"""Everything that is logged is an event, with its declared fields: `docs/events.md` is true."""

import ast
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs.events_page import PARTS, declared, events, explained
from docs.generate import EVENTS as PAGE
from tests.arch.repository import IMPORT_ROOTS, ROOT, files

from millrace.core.callers import CALLER_FIELDS
from millrace.core.events import Event, Level

EVENTS: dict[str, Event] = {
    constant: event for part in PARTS.values() for constant, event in declared(part).items()
}
HOME = Path("core/millrace/core/events.py")
MODULES = [
    path
    for path in files()
    if path.parts[0] in IMPORT_ROOTS and path.suffix == ".py" and path != HOME
]
LOGGING = {"debug", "info", "warning", "error", "exception", "critical", "log"}
OF_LOG = {"cause", "is_repeat"}
"""Arguments of `Event.log` that are no fields."""
RESERVED = {*vars(logging.makeLogRecord({})), "message", "asctime", "left_out"}
"""Attributes of a record that no field may hide."""


def calls(text: str) -> Iterator[ast.Call]:
    """Yield the calls of methods of a module that may log."""
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in LOGGING
        ):
            yield node


def is_logger(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id.lstrip("_") in ("log", "logger", "audit")


def problems(text: str) -> list[str]:
    """Return what a module logs otherwise than by an event and its fields."""
    found = []
    for call in calls(text):
        assert isinstance(call.func, ast.Attribute)
        logger, method = call.func.value, call.func.attr
        if is_logger(logger) or ast.unparse(logger) in ("logging", "structlog"):
            found.append(f"line {call.lineno} logs what is no event")
        elif method == "log" and call.args and is_logger(call.args[0]):
            given: set[str] = set()
            is_whole = True
            for keyword in call.keywords:
                if keyword.arg is not None:
                    given.add(keyword.arg)
                elif ast.unparse(keyword.value).endswith(".log_fields()"):
                    given.update(CALLER_FIELDS)
                else:
                    is_whole = False
            constant = ast.unparse(logger).rpartition(".")[2]
            known = [EVENTS[constant]] if constant in EVENTS else EVENTS.values()
            wanted = given - OF_LOG
            if not any(
                wanted == set(event.fields) if is_whole else wanted <= set(event.fields)
                for event in known
            ):
                found.append(f"line {call.lineno} gives other fields than {constant} has")
    return found


def test_modules_log_declared_events_with_their_fields() -> None:
    found = {str(path): problems((ROOT / path).read_text()) for path in MODULES}
    assert {path: faults for path, faults in found.items() if faults} == {}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("_log.warning('it is broken')", 1),
        ("_log.log(30, 'it is broken')", 1),
        ("logging.info('it is broken')", 1),
        ("events.BROKER_READY.log(_log, address=1, cluster_id=2)", 0),
        ("events.BROKER_READY.log(_log, address=1, cluster_id=2, cause=error)", 0),
        ("events.BROKER_READY.log(_log, address=1)", 1),
        ("BROKER_READY.log(_log, address=1, cluster_id=2, more=3)", 1),
        ("event.log(_log, address=1, cluster_id=2)", 0),
        ("event.log(_log, adress=1, cluster_id=2)", 1),
        ("problem.error()", 0),
    ],
)
def test_what_is_logged_otherwise_is_found(text: str, count: int) -> None:
    assert len(problems(text)) == count


@pytest.mark.parametrize("constant", EVENTS)
def test_an_event_is_whole(constant: str) -> None:
    event = EVENTS[constant]
    assert event.name == constant.lower()
    assert set(event.fields) <= dict(explained()).keys(), "a field that no `FIELDS` explains"
    assert not set(event.fields) & RESERVED
    assert event.text % dict.fromkeys(event.fields, 0)
    assert event.meaning.endswith(".")
    assert event.action.endswith(".")


def test_the_page_is_what_the_declarations_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == events(), "Run: make docs"


def test_no_two_parts_have_an_event_of_one_name() -> None:
    assert len(EVENTS) == sum(len(declared(part)) for part in PARTS.values())


def test_each_explained_field_is_one_of_an_event() -> None:
    assert set(dict(explained())) == {field for event in EVENTS.values() for field in event.fields}


def test_a_field_is_explained_once() -> None:
    names = [name for name, _ in explained()]
    assert sorted(names) == sorted(set(names))


def test_each_event_is_logged_somewhere() -> None:
    text = "".join((ROOT / path).read_text() for path in MODULES if path.name != "events.py")
    assert [event for event in EVENTS if event not in text] == []


def test_levels_have_the_numbers_of_the_standard_library() -> None:
    assert {level.name: level.value for level in Level} == {
        name: number
        for name, number in logging.getLevelNamesMapping().items()
        if name in Level.__members__
    }
