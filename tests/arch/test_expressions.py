"""Regular expressions mean the same on every Python that the project supports.

Before 3.11.5, possessive repeats of a group match wrongly where the group can backtrack:
https://github.com/python/cpython/issues/106052. Those of one character or set are right, and so are
atomic groups.
"""

import ast
import re
from pathlib import Path

import pytest
from tests.arch.repository import ROOT, files

# After the end of a group: `(?:…)*+`, `(…)?+`, `(…){2}+`.
POSSESSIVE_GROUP = re.compile(r"\)(?:[*+?]|\{[0-9,]+\})\+")


def possessive_groups(source: str) -> list[str]:
    """Return the texts in a module in which a group is repeated possessively."""
    texts = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    expressions = (text.decode("latin-1") if isinstance(text, bytes) else text for text in texts)
    return [
        expression
        for expression in expressions
        if isinstance(expression, str) and POSSESSIVE_GROUP.search(expression)
    ]


def test_no_expression_repeats_a_group_possessively() -> None:
    ours = Path(__file__).relative_to(ROOT)
    sources = [path for path in files() if path.suffix == ".py" and path != ours]
    assert [path for path in sources if possessive_groups((ROOT / path).read_text())] == []


@pytest.mark.parametrize(
    ("source", "count"),
    [("re.compile(rb'(?:a|bc)*+')", 1), ("'(a){2}+'", 1), ("rb'[^,]*+(?>(?:a|bc)*)'", 0)],
)
def test_such_a_repeat_is_found(source: str, count: int) -> None:
    assert len(possessive_groups(source)) == count
