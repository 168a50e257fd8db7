"""`docs/semantics.md` names tests that exist, rules that exist, and nothing without either."""

import re

import pytest
from tests.arch.repository import ROOT

PAGE = (ROOT / "docs" / "semantics.md").read_text(encoding="utf-8")
TEST = re.compile(r"`([\w/.]+\.py)::(\w+)`")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| promise")
]


def test_the_page_has_promises() -> None:
    assert len(ROWS) > 40
    assert all(len(row) == 3 for row in ROWS)


@pytest.mark.parametrize(("path", "name"), sorted(set(TEST.findall(PAGE))))
def test_every_test_that_is_named_exists(path: str, name: str) -> None:
    source = (ROOT / "tests" / path).read_text(encoding="utf-8")
    assert re.search(rf"^(?:async )?(?:def |class )?{name}\b", source, re.MULTILINE)


def test_each_promise_has_a_test() -> None:
    for promise, _, test in ROWS:
        assert TEST.fullmatch(test), promise
