"""No class and no file grows beyond what can be understood at one sitting.

A class or a file that reaches its bound holds two ideas: divide it by them.
"""

import ast

from tests.arch.repository import GENERATED_SUFFIXES, modules

CLASS_LINES_MAX = 450
FILE_LINES_MAX = 600
TABLES = {"millrace.broker.events", "millrace.core.broker_config", "millrace.core.errors"}
"""Tables of settings, errors and events, a row for each: they may be longer."""


def test_no_class_is_too_long() -> None:
    long = []
    for name, path in modules().items():
        if path.name.endswith(GENERATED_SUFFIXES):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                if lines > CLASS_LINES_MAX:
                    long.append(f"{name}.{node.name}: {lines}")
    assert long == []


def test_no_file_is_too_long() -> None:
    long = {
        name: lines
        for name, path in modules().items()
        if not path.name.endswith(GENERATED_SUFFIXES)
        and (lines := len(path.read_text().splitlines())) > FILE_LINES_MAX
    }
    assert not long.keys() - TABLES
    assert not TABLES - long.keys(), "it is no longer long: take it off the list"
