"""No module waits for a user: each one is reached from a program or from the public library.

A reference is an import statement, or a string that is exactly a module's name (a command that is
imported when it is called).
"""

import ast
import tomllib
from collections.abc import Iterator

from tests.arch.repository import GENERATED_SUFFIXES, ROOT, modules

PUBLIC = {
    "millrace.client",
    "millrace.client.metrics",
    "millrace.spark",
    "millrace.spark.job",
    "millrace.spark.progress",
    "millrace.spark.stopping",
    "millrace.spark.tables",
    "millrace.spark.values",
    "pyspark_millrace",
}


BUILT_FROM = {"millrace.operator.model.definitions"}
"""What makes checked-in files: `make crds`."""


def programs() -> set[str]:
    """The scripts of pyproject.toml, and what `python -m` can start."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    scripts = {target.partition(":")[0] for target in project["scripts"].values()}
    return scripts | {name for name in modules() if name.endswith(".__main__")}


def references(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield module
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.Constant(value=str(text)):
                yield text


def with_parents(name: str) -> Iterator[str]:
    """Importing a module imports the packages above it."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def test_every_module_is_reached_from_a_program_or_the_public_library() -> None:
    known = modules()
    waiting = {
        package for name in PUBLIC | BUILT_FROM | programs() for package in with_parents(name)
    }
    reached: set[str] = set()
    while waiting := (waiting & known.keys()) - reached:
        reached |= waiting
        waiting = {
            package
            for name in waiting
            for reference in references(known[name].read_text())
            for package in with_parents(reference)
        }
    dead = known.keys() - reached
    assert sorted(name for name in dead if not known[name].name.endswith(GENERATED_SUFFIXES)) == []
