"""The parts of `docs/safety.md` that come from the tests: mutants of rules, and checkers."""

import re
import textwrap
from typing import Final

from tests.checkers.report import ANOMALIES
from tests.sim.mutants.catalogue import MUTANTS

RULE: Final = re.compile(r"^### ([PTGK]\d+): .*?(?=^##|\Z)", re.MULTILINE | re.DOTALL)
"""The text of one rule, from its heading to the next."""
_MUTANTS: Final = re.compile(r"^- Mutants: .*?(?=^$)", re.MULTILINE | re.DOTALL)
_CHECKERS: Final = re.compile(r"(^\| C\d+ \|.*\n)+", re.MULTILINE)
_NO_MUTANTS: Final = (
    "none; the [catalogue](../tests/sim/mutants/catalogue.py) says why, and what stands for one"
)


def safety(text: str) -> str:
    """Return the page with new lines about mutants and a new table of checkers."""
    text = RULE.sub(lambda rule: _MUTANTS.sub(lambda _: _mutants(rule[1]), rule[0]), text)
    return _CHECKERS.sub(lambda _: _checkers(), text)


def _mutants(rule: str) -> str:
    names = "; ".join(mutant.name for mutant in MUTANTS if mutant.rule == rule) or _NO_MUTANTS
    return textwrap.fill(f"- Mutants: {names}.", 120, subsequent_indent="  ") + "\n"


def _checkers() -> str:
    found: dict[str, list[str]] = {}
    for name, (checker, meaning) in ANOMALIES.items():
        found.setdefault(checker, []).append(f"`{name}`: {meaning}")
    return "".join(f"| {checker} | {'; '.join(texts)} |\n" for checker, texts in found.items())
