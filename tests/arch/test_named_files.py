"""Files that docstrings and comments name are there."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator

import pytest
from tests.arch.repository import GENERATED_SUFFIXES, ROOT, files

NAME = re.compile(r"(?<![\w./~<>{}*-])[a-z0-9_-][\w-]*(?:/[\w.-]+)*\.(?:py|md)\b(?![\w/{<])")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
MODULES = [
    path for path in files() if path.suffix == ".py" and not path.name.endswith(GENERATED_SUFFIXES)
]


def ends() -> set[str]:
    """Return every path of the project and every part of it that ends it."""
    return {"/".join(path.parts[at:]) for path in files() for at in range(len(path.parts))}


def words(text: str) -> Iterator[str]:
    """Yield the docstrings and comments of a module."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED):
            yield ast.get_docstring(node) or ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def missing(text: str, there: set[str]) -> list[str]:
    """Return the files that a module names and that are not there."""
    if there.issuperset(NAME.findall(text)):  # So most modules need not be parsed.
        return []
    return [name for said in words(text) for name in NAME.findall(said) if name not in there]


def test_files_that_modules_name_are_there() -> None:
    there = ends()
    found = {str(path): missing((ROOT / path).read_text(), there) for path in MODULES}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('"""The rest is in `kept.py`."""', []),
        ('"""The rest is in `gone.py`."""', ["gone.py"]),
        ("x = 1  # See docs/gone.md.", ["docs/gone.md"]),
        ('x = "gone.py"', []),
    ],
)
def test_a_name_that_leads_nowhere_is_found(text: str, names: list[str]) -> None:
    assert missing(text, {"kept.py"}) == names
