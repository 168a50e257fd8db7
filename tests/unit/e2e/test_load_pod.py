"""The code that the load's pod gets is all that it imports, and fits into a ConfigMap."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path

from e2e.cluster.directories import ROOT
from e2e.load.pod import CODE

APPLIED_BYTES_MAX = 256 * 1024
"""Of annotations: `kubectl apply` puts the whole object into one."""
PARTS = ("e2e", "tests")


def imported(path: Path) -> Iterator[str]:
    """Yield the modules of e2e and tests that a module imports, or starts by its name."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            names = [str(node.module)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value]
        for name in names:
            found = name.replace(".", "/") + ".py"
            if name.partition(".")[0] in PARTS and (ROOT / found).is_file():
                yield found


def test_a_pod_gets_the_code_that_its_program_needs_and_no_other() -> None:
    needed: set[str] = set()
    left = ["e2e/load/program.py"]
    while left:
        path = left.pop()
        if path not in needed:
            needed.add(path)
            left += imported(ROOT / path)
    assert sorted(CODE) == sorted(needed)


def test_the_code_of_a_pod_fits_into_what_kubectl_notes_about_it() -> None:
    whole = json.dumps({path: (ROOT / path).read_text() for path in CODE})
    assert len(whole) < 0.8 * APPLIED_BYTES_MAX
