"""The page about the Python API, from the docstrings of what `millrace.client` exports."""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypedDict

import millrace.client
from millrace.core import settings
from millrace.core.errors import MillraceError

_INTRODUCTION: Final = """\
# The Python API

This page is made from the docstrings by `make docs`.

All of it is imported from `millrace.client`, whose `__version__` tells the release. `Producer`,
`Consumer` and `Admin` are for event loops; `SyncProducer`, `SyncConsumer` and `SyncAdmin` are the
same without one.

"""

_GROUPS: Final = {
    "Writing": ("Producer", "SyncProducer", "RecordHandle", "RecordMetadata", "BatchHandle"),
    "Reading": ("Consumer", "SyncConsumer", "DeadLetters", "Record", "Records", "FetchedRecords"),
    "Administration": ("Admin", "SyncAdmin"),
}
"""What is shown first; everything else that is exported follows by its name."""

_SECTION: Final = re.compile(r"^(Args|Raises|Returns|Attributes):$")
_ENTRY: Final = re.compile(r"^([\w*]+(?:, [\w*]+)*): ")
_LINE_LENGTH: Final = 100


@dataclass(frozen=True)
class _Member:
    name: str
    text: str
    doc: str


def api() -> str:
    """Return the page."""
    exported = {name: getattr(millrace.client, name) for name in millrace.client.__all__}
    errors = {
        name: member
        for name, member in exported.items()
        if isinstance(member, type) and issubclass(member, MillraceError)
    }
    grouped = {name for names in _GROUPS.values() for name in names}
    rest = [name for name in exported if name not in grouped and name not in errors]
    parts = [_INTRODUCTION]
    for title, names in {**_GROUPS, "What else there is": rest}.items():
        parts.append(f"## {title}\n\n")
        parts += [_described(name, exported[name]) for name in names]
    parts.append(
        "## Errors\n\nEach has `message`, and `appended`, which says whether a write may be in the "
        "log all the same.\n\n| error | may be tried again | meaning |\n|---|---|---|\n"
    )
    for name, error in errors.items():
        parts.append(f"| `{name}` | {'yes' if error.retriable else ''} | {_first(error)} |\n")
    return "".join(parts)


def _first(documented: type) -> str:
    """Return the first paragraph of a docstring in one line."""
    return " ".join((inspect.getdoc(documented) or "").partition("\n\n")[0].split())


def _described(name: str, documented: Any) -> str:
    if isinstance(documented, type):
        return _class(name, documented)
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(documented))).body
    assert isinstance(tree, ast.FunctionDef)
    function = _function(name, tree, vars(sys.modules[documented.__module__]))
    assert function is not None
    return f"### {name}\n\n" + _code(function.text) + _prose(function.doc)


def _class(name: str, documented: type) -> str:
    members: dict[str, _Member] = {}
    for member in _members(documented):
        members.setdefault(member.name, member)
    constructor = members.pop("__init__", None)
    parts = [f"### {name}\n\n"]
    if constructor is not None:
        parts.append(_code(constructor.text))
    parts.append(_prose(inspect.getdoc(documented) or ""))
    fields = [member for member in members.values() if not member.text]
    parts += [f"- `{field.name}`{': ' if field.doc else ''}{field.doc}\n" for field in fields]
    parts.append("\n" if fields else "")
    for member in members.values():
        if member.text:
            parts += [f"#### {name}.{member.name}\n\n", _code(member.text), _prose(member.doc)]
    return "".join(parts)


def _members(documented: type) -> Iterator[_Member]:
    """Yield what users of a class see, its own before what it has from others."""
    for cls in documented.__mro__:
        if not cls.__module__.startswith("millrace."):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        assert isinstance(tree, ast.ClassDef)
        for statement, following in zip(tree.body, [*tree.body[1:], None], strict=True):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                if not statement.target.id.startswith("_"):
                    is_doc = isinstance(following, ast.Expr)
                    text = ast.literal_eval(following.value) if is_doc else ""  # type: ignore[union-attr]
                    yield _Member(statement.target.id, "", " ".join(text.split()))
            elif isinstance(statement, ast.Assign):
                (target,) = statement.targets
                if member := _like_another(documented, ast.unparse(target)):
                    yield member
            elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                constants = vars(sys.modules[cls.__module__])
                del statement.args.args[0]  # `self`, or `cls`.
                member = _function(documented.__name__, statement, constants)
                if member is not None:
                    yield member


def _like_another(documented: type, name: str) -> _Member | None:
    """Describe a method that is made from another class's: in short, as the other has the text."""
    method = inspect.unwrap(getattr(documented, name))
    if not inspect.isfunction(method):
        return None
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(method))).body
    assert isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef)
    del tree.args.args[0]
    plain = ast.FunctionDef(**dict(ast.iter_fields(tree)))
    member = _function(documented.__name__, plain, vars(sys.modules[method.__module__]))
    assert member is not None
    first, _, rest = member.doc.partition("\n\n")
    see = f"See `{documented.__name__.removeprefix('Sync')}.{name}`."
    return replace(member, doc=f"{first}\n\n{see}" if rest else first)


def _function(
    owner: str, tree: ast.FunctionDef | ast.AsyncFunctionDef, constants: Mapping[str, object]
) -> _Member | None:
    for arguments in (tree.args.defaults, tree.args.kw_defaults):
        for default in arguments:
            if isinstance(default, ast.Name) and isinstance(constants.get(default.id), int):
                default.id = repr(constants[default.id])
    decorators = [ast.unparse(decorator) for decorator in tree.decorator_list]
    doc = inspect.cleandoc(ast.get_docstring(tree) or "")
    if tree.name == "__init__":
        return _Member(tree.name, _call(owner, tree.args, "", constants), "")
    if tree.name.startswith("_") or "overload" in decorators:
        return None
    if "property" in decorators:
        return _Member(tree.name, "", " ".join(doc.split()))
    how = "await " if isinstance(tree, ast.AsyncFunctionDef) else ""
    returned = ast.unparse(tree.returns) if tree.returns is not None else "None"
    text = how + _call(tree.name, tree.args, f" -> {returned}", constants)
    return _Member(tree.name, text, doc)


def _call(name: str, args: ast.arguments, end: str, constants: Mapping[str, object]) -> str:
    """Return how a function is called, in one line or one for each argument."""
    given = [*args.posonlyargs, *args.args]
    defaults: list[ast.expr | None] = [None] * (len(given) - len(args.defaults))
    shown = [
        _argument(*argument) for argument in zip(given, [*defaults, *args.defaults], strict=True)
    ]
    if args.vararg is not None:
        shown.append(f"*{_argument(args.vararg, None)}")
    elif args.kwonlyargs:
        shown.append("*")
    shown += [
        _argument(*argument) for argument in zip(args.kwonlyargs, args.kw_defaults, strict=True)
    ]
    if args.kwarg is not None:
        shown += ["*", *_settings(args.kwarg, constants)]
    line = f"{name}({', '.join(shown)}){end}"
    if len(line) <= _LINE_LENGTH:
        return line
    return "\n".join((f"{name}(", *(f"    {argument}," for argument in shown), f"){end}"))


def _settings(argument: ast.arg, constants: Mapping[str, object]) -> Iterator[str]:
    """Yield the settings that a client takes by keyword: of `Unpack[ProducerSettings]` each one."""
    assert isinstance(argument.annotation, ast.Subscript)
    typed: Any = constants[ast.unparse(argument.annotation.slice)]
    config = vars(sys.modules[typed.__module__])[typed.__name__.replace("Settings", "Config")]
    kinds = _kinds(typed)
    for name, setting in settings.settings_of(config).items():
        yield f"{name}: {kinds[name]} = {setting.default!r}"


def _kinds(typed: Any) -> dict[str, str]:
    """Return the types of a `TypedDict` as they are written."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(typed))).body
    assert isinstance(tree, ast.ClassDef)
    kinds: dict[str, str] = {}
    for base in (vars(sys.modules[typed.__module__])[ast.unparse(name)] for name in tree.bases):
        if base is not TypedDict:
            kinds |= _kinds(base)
    for node in tree.body:
        if isinstance(node, ast.AnnAssign):
            kinds[ast.unparse(node.target)] = ast.unparse(node.annotation)
    return kinds


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    text = ast.unparse(argument)
    return text if default is None else f"{text} = {ast.unparse(default)}"


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n\n"


def _prose(doc: str) -> str:
    """Return a docstring as Markdown: its sections become lists, one item for each entry."""
    lines: list[str] = []
    in_section = False
    for line in doc.splitlines():
        if section := _SECTION.match(line):
            lines += [line, ""]
        elif in_section and line:
            text = line.strip()
            entry = _ENTRY.match(f"{text} ") if line.startswith("    ") and line[4] != " " else None
            if entry is None:
                lines.append(f"  {text}")
            else:
                names = ", ".join(f"`{name}`" for name in entry[1].split(", "))
                lines.append(f"- {names}: {text[len(entry[0]) :]}".rstrip())
        else:
            lines.append(line)
        in_section = section is not None or (in_section and bool(line))
    return "\n".join(lines) + "\n\n"
