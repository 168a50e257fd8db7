"""A mutant: the product without one rule, so that the simulator has something to find.

A mutant names a function of the product, a text in it, and a replacement. The function is compiled
with that edit, and replaces the original at run time: the product has no switch for it. A missing
function or text is an error, and so is a function that never runs: otherwise its rule would count
as tested.

Source: mutation testing (DeMillo, Lipton and Sayward 1978), for rules instead of operators.
"""

import ast
import functools
import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final

_EXECUTED: Final = "_mutant_is_executed"
_PACKAGES: Final = ("millrace.", "tests.")


class NoMutantError(Exception):
    """The function or text of a mutant does not exist, or is not as described."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One rule that the product shall lack.

    Attributes:
        name: the omission or mistake, in a few words.
        rule: the rule of docs/safety.md that it breaks, such as `P13`.
        target: `module:function` or `module:Class.method`.
        edits: pairs of a text that stands in the function once, and its replacement.
        also: a mutant of other code that keeps the same rule; both are planted together.
    """

    name: str
    rule: str
    target: str
    edits: tuple[tuple[str, str], ...]
    also: "Mutant | None" = None


def mutant(name: str, rule: str, target: str, *edits: str, also: Mutant | None = None) -> Mutant:
    """Return a mutant; edits are given as old, new, old, new."""
    assert edits
    assert len(edits) % 2 == 0
    return Mutant(name, rule, target, tuple(zip(edits[::2], edits[1::2], strict=True)), also)


class Executions:
    """How often the function of a planted mutant ran."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@contextmanager
def planted(mutant: Mutant) -> Iterator[Executions]:
    """Plant a mutant for the length of the block.

    Raises:
        NoMutantError: its function or its text does not exist.
    """
    executions = Executions()
    with ExitStack() as stack:
        planned: Mutant | None = mutant
        while planned is not None:
            stack.enter_context(_planted(planned, executions))
            planned = planned.also
        yield executions


@contextmanager
def _planted(mutant: Mutant, executions: Executions) -> Iterator[None]:
    owner, name, kept = _found(mutant.target)
    original = _function_of(mutant, kept)
    changed = _edited(mutant, original, executions)
    replacement = _like(kept, changed, name)
    places: list[tuple[Any, str]] = [(owner, name)]
    if inspect.ismodule(owner):
        places += [
            (module, alias)
            for module_name, module in sorted(sys.modules.items())
            if module is not owner and module_name.startswith(_PACKAGES)
            for alias, value in vars(module).items()
            if value is original
        ]
    for place, alias in places:
        setattr(place, alias, replacement)
    try:
        yield
    finally:
        for place, alias in places:
            setattr(place, alias, kept)
        original.__globals__.pop(_EXECUTED, None)


def _found(target: str) -> tuple[Any, str, Any]:
    """Return the owner of a target, its name there, and the attribute."""
    module_name, _, path = target.partition(":")
    *classes, name = path.split(".")
    try:
        owner: Any = importlib.import_module(module_name)
        for cls in classes:
            owner = getattr(owner, cls)
        return owner, name, vars(owner)[name]
    except (ImportError, AttributeError, KeyError) as error:
        raise NoMutantError(f"there is no {target} any more: {error!r}") from error


def _function_of(mutant: Mutant, kept: Any) -> FunctionType:
    function = kept
    if isinstance(kept, property):
        function = kept.fget
    elif isinstance(kept, functools.cached_property):
        function = kept.func
    elif isinstance(kept, staticmethod | classmethod):
        function = kept.__func__
    function = inspect.unwrap(function)
    if not isinstance(function, FunctionType):
        raise NoMutantError(f"{mutant.target} is no function")
    return function


def _edited(mutant: Mutant, original: FunctionType, executions: Executions) -> FunctionType:
    source = textwrap.dedent(inspect.getsource(original))
    for old, new in mutant.edits:
        if source.count(old) != 1:
            raise NoMutantError(
                f"{mutant.target} has {source.count(old)} times {old!r}: {mutant.name!r} must be "
                "written again"
            )
        source = source.replace(old, new)
    tree = ast.parse(source)
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
    definition.decorator_list = []
    definition.body[:0] = ast.parse(f"{_EXECUTED}()").body
    ast.fix_missing_locations(tree)
    original.__globals__[_EXECUTED] = executions
    namespace: dict[str, Any] = {}
    exec(compile(tree, f"<mutant of {mutant.target}>", "exec"), original.__globals__, namespace)
    changed = namespace[definition.name]
    assert isinstance(changed, FunctionType)
    changed.__qualname__ = original.__qualname__
    return changed


def _like(kept: Any, changed: FunctionType, name: str) -> Any:
    """Return a function as the same kind of attribute as another one."""
    if isinstance(kept, property):
        return property(changed, kept.fset, kept.fdel)
    if isinstance(kept, functools.cached_property):
        cached: functools.cached_property[Any] = functools.cached_property(changed)
        cached.__set_name__(object, name)
        return cached
    if isinstance(kept, staticmethod | classmethod):
        return type(kept)(changed)
    return changed
