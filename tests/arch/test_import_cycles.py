"""No module imports, by whatever way, a module that imports it: each can be read on its own."""

import ast
from graphlib import CycleError, TopologicalSorter

from tests.arch.repository import modules


def imported_modules(name: str, source: str, known: set[str]) -> set[str]:
    """What a module imports anywhere in it, also in functions and for types alone."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            # `from package import module` needs the module, and not what else the package holds.
            found |= members & known or {node.module}
    return (found & known) - {name}


def test_no_modules_import_each_other() -> None:
    paths = modules()
    graph = {
        name: imported_modules(name, path.read_text(), set(paths)) for name, path in paths.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" imports ".join(reversed(error.args[1]))) from None
