"""`docs/safety.md` has each rule, fault, checker and bug that anything in the project refers to."""

import re
from collections import Counter
from pathlib import Path

import pytest
from docs.generate import SAFETY
from docs.safety_page import RULE, safety
from tests import changes
from tests.arch.repository import ROOT, files
from tests.faults.__main__ import NEVER_HERE
from tests.faults.fault import FAULTS
from tests.sim.mutants import catalogue
from tests.sim.scenarios.catalogue import ALL_SCENARIOS

REFERENCE = re.compile(r"(?<!\w)(?:[PTGK]\d{1,2}|F\d{2}b?|[BC]\d{1,2})(?!\w)")
DEFINITION = re.compile(r"^(?:### ([PTGK]\d+): |\| ([FCB]\d+b?) \| )", re.MULTILINE)
KEPT_BY = re.compile(r"^- Kept by: (.*?)^- Mutants: ", re.MULTILINE | re.DOTALL)
ELSEWHERE = re.compile(r"^\| (F\d{2}(?:(?:, | to )F\d{2})*) \| [^|]+ \| [^|]+ \|$", re.MULTILINE)
LINK = re.compile(r"\]\(\.\./([^)]+)\)")

TEXTS = {".go", ".md", ".proto", ".py", ".txt", ".yaml"}
OTHERS = {
    "docs/safety.md",  # Refers to itself: that does not count.
    "tests/arch/test_safety_rules.py",  # Makes up ids.
    "tests/unit/broker/storage/test_cleaner.py",  # K1 is a key.
    "tests/unit/demo/test_checks.py",  # B6 is an airline.
}
DOCUMENT = SAFETY.read_text(encoding="utf-8")


def references(text: str) -> set[str]:
    """Return the ids that a text refers to."""
    return set(REFERENCE.findall(text))


def definitions(text: str) -> Counter[str]:
    """Return the ids that a document has a heading or a row for, and how many."""
    return Counter(rule or row for rule, row in DEFINITION.findall(text))


def spelt_out(text: str) -> set[str]:
    """Return the faults of a cell: `F18, F32`, or `F42 to F44`."""
    found = sorted(references(text))
    if " to " in text:
        first, last = (int(id_[1:]) for id_ in found)
        return {f"F{number:02}" for number in range(first, last + 1)}
    return set(found)


def kept_by(text: str) -> dict[str, list[str]]:
    """Return the files that a document names for each rule."""
    return {
        rule[1]: [link for part in KEPT_BY.findall(rule[0]) for link in LINK.findall(part)]
        for rule in RULE.finditer(text)
    }


@pytest.fixture(scope="module")
def referred() -> dict[Path, set[str]]:
    """What each file refers to."""
    found = {
        path: references((ROOT / path).read_text(encoding="utf-8"))
        for path in files()
        if (path.suffix in TEXTS or path.name == "Makefile") and str(path) not in OTHERS
    }
    return {path: ids for path, ids in found.items() if ids}


def test_every_id_stands_on_the_page_once() -> None:
    assert [definition for definition, count in definitions(DOCUMENT).items() if count > 1] == []


def test_every_reference_is_to_something_on_the_page(referred: dict[Path, set[str]]) -> None:
    known = definitions(DOCUMENT).keys()
    lost = {str(path): ids - known for path, ids in referred.items() if ids - known}
    assert lost == {}
    assert references(DOCUMENT) <= known


def test_everything_on_the_page_is_referred_to(referred: dict[Path, set[str]]) -> None:
    assert definitions(DOCUMENT).keys() - set().union(*referred.values()) == set()


def test_the_files_that_keep_a_rule_refer_to_it(referred: dict[Path, set[str]]) -> None:
    rules = kept_by(DOCUMENT)
    assert [rule for rule, paths in rules.items() if not paths] == []
    wrong = [
        (rule, path)
        for rule, paths in rules.items()
        for path in paths
        if rule not in referred.get(Path(path), set())
    ]
    assert wrong == []


def test_mutants_and_checkers_on_the_page_are_those_of_the_code() -> None:
    assert safety(DOCUMENT) == DOCUMENT, "Run: make docs"


def test_rules_without_a_mutant_are_explained_in_the_catalogue() -> None:
    assert catalogue.__doc__ is not None
    with_mutants = {mutant.rule for mutant in catalogue.MUTANTS}
    assert kept_by(DOCUMENT).keys() - with_mutants - references(catalogue.__doc__) == set()


def test_every_rule_has_a_test_by_day(referred: dict[Path, set[str]]) -> None:
    mutants = {mutant.name: mutant for mutant in catalogue.MUTANTS}
    of_tests = {path: ids for path, ids in referred.items() if path.parts[0] == "tests"}
    some_nights = ("tests/faults", "tests/sim", *changes.ABOUT)
    by_day = {
        rule
        for path, ids in of_tests.items()
        if not any(changes.is_in(str(path), some_night) for some_night in some_nights)
        for rule in ids
    }
    for scenario in ALL_SCENARIOS:
        if scenario.by_day:
            by_day |= references(scenario.about) | {mutants[name].rule for name in scenario.mutants}
    assert kept_by(DOCUMENT).keys() - by_day == set()


def test_every_fault_is_injected_into_real_brokers_or_it_is_said_where_else() -> None:
    known = {of_page for of_page in definitions(DOCUMENT) if of_page.startswith("F")}
    assert known == FAULTS.keys() | NEVER_HERE.keys()
    page = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    here, elsewhere = page.split("These are done elsewhere")
    assert [id_ for id_, fault in FAULTS.items() if f"| {id_} | {fault.what} |" not in here] == []
    said = set().union(*(spelt_out(row) for row in ELSEWHERE.findall(elsewhere)))
    assert NEVER_HERE.keys() - said == set()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("(P1)", {"P1"}),
        ("P34-P36, P4's", {"P34", "P36", "P4"}),
        ('"F02,F36b"', {"F02", "F36b"}),
        ("C9: as B1", {"C9", "B1"}),
        ("T2, T18's", {"T2", "T18"}),
        ("(G10)", {"G10"}),
        ("# noqa: F401, B023", set()),
        ("UP017 0xB1 MP3 P100 F1", set()),
    ],
)
def test_references_are_told_from_other_words(text: str, found: set[str]) -> None:
    assert references(text) == found


PAGE = """\
### P1: A rule

See P2.

- Kept by: [a](../core/a.py),
  [b](../core/b.py).
- Mutants: an old name,
  and more.

### P99: Another one

- Kept by: nothing.
- Mutants: none.

## Others

| C1 | old |
| F36b | a fault |
"""


def test_what_a_page_defines_is_found() -> None:
    assert definitions(PAGE + "### P1: Again\n") == {"P1": 2, "P99": 1, "C1": 1, "F36b": 1}
    assert kept_by(PAGE) == {"P1": ["core/a.py", "core/b.py"], "P99": []}


def test_what_comes_from_the_code_is_written_anew() -> None:
    written = safety(PAGE)
    assert "an old name" not in written
    assert "- Mutants: batches are stamped with no leader's epoch.\n\n### P99: " in written
    assert "- Mutants: none; the [catalogue]" in written
    assert "| C1 | `inconsistent-offset`: one offset held two values |\n| C2 |" in written
    assert written.endswith("| F36b | a fault |\n")
    assert safety(written) == written
