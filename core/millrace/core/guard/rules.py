"""A file of rules: who may do what, and nobody else may do anything.

    [[rules]]
    who = ["shop-orders", "group:analysts"]
    may = ["consume", "describe"]
    topics = ["shop/orders", "shop/returns-*"]
    groups = ["shop/reports"]

`who` has principals, groups with `group:` in front, `anonymous`, and `*` for everybody who is
known. Names may end in an asterisk, and so may each half of a resource's name. The cluster's own
topics, such as `__positions`, have what belongs to everybody: an asterisk means them only behind
two underscores. A rule allows each operation of `may` on each of its resources, where that kind has
the operation. Rules only allow: their order does not matter.

Rules are found by whom they name, so that those for others cost nothing. What one identity may do
is found once, and looked up then; of so many identities that not all can be remembered, those that
asked last are.

Source: the file is TOML, as a broker's settings are.
"""

import re
import tomllib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from millrace.core.callers import ANONYMOUS
from millrace.core.errors import InvalidConfigError
from millrace.core.guard.access import OPERATIONS, Demand, Operation, ResourceKind
from millrace.core.guard.identity import Identity, principal_problem
from millrace.core.problems import nearest, problem_text, told
from millrace.core.topics import DEFAULT_NAMESPACE, INTERNAL_PREFIX

RULES_BYTES_MAX: Final = 4 << 20
RULES_MAX: Final = 10_000
_IDENTITIES_MAX: Final = 1_000
"""Identities whose rights are remembered."""
_ANYBODY: Final = "*"
_GROUP: Final = "group:"
_NAMED: Final = {
    "topics": ResourceKind.TOPICS,
    "groups": ResourceKind.GROUPS,
    "transactions": ResourceKind.TRANSACTIONS,
}
_KEYS: Final = ("who", "may", *_NAMED, "cluster")
_NAMESPACE: Final = re.compile(r"[a-z0-9]?[-a-z0-9]{0,62}\*?", re.ASCII)


class _Half(NamedTuple):
    """One half of a pattern: a text, or the beginning of one."""

    text: str
    is_prefix: bool

    def fits(self, text: str) -> bool:
        return text.startswith(self.text) if self.is_prefix else text == self.text

    @property
    def is_internal(self) -> bool:
        return self.text.startswith(INTERNAL_PREFIX)


class _Pattern(NamedTuple):
    namespace: _Half
    name: _Half


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        who: principals and groups, as the file has them.
        may: the operations.
        on: patterns of resources by kind; the cluster has none.
    """

    who: tuple[str, ...]
    may: frozenset[Operation]
    on: Mapping[ResourceKind, tuple[_Pattern, ...]]


@dataclass(slots=True)
class _Rights:
    """What one identity may do with one operation on one kind: exact names first."""

    names: set[tuple[str, str]] = field(default_factory=set)
    patterns: list[_Pattern] = field(default_factory=list)

    def add(self, pattern: _Pattern) -> None:
        namespace, name = pattern
        if namespace.is_prefix or name.is_prefix:
            self.patterns.append(pattern)
        else:
            self.names.add((namespace.text, name.text))

    def include(self, namespace: str, name: str) -> bool:
        return (namespace, name) in self.names or any(
            pattern.namespace.fits(namespace)
            and pattern.name.fits(name)
            and (not name.startswith(INTERNAL_PREFIX) or pattern.name.is_internal)
            for pattern in self.patterns
        )


_AllRights = dict[tuple[Operation, ResourceKind], _Rights]


class _Index:
    """Numbers of rules by the names that they are for, which may end in an asterisk."""

    def __init__(self) -> None:
        self._names: dict[str, list[int]] = {}
        self._beginnings: dict[str, list[int]] = {}
        self._lengths: set[int] = set()  # Of the beginnings.

    def add(self, text: str, number: int) -> None:
        name, is_prefix = _half(text)
        if is_prefix:
            self._lengths.add(len(name))
        (self._beginnings if is_prefix else self._names).setdefault(name, []).append(number)

    def find(self, name: str) -> Iterator[int]:
        """Yield the rules for a name, maybe several times."""
        yield from self._names.get(name, ())
        for length in self._lengths:
            if length <= len(name):
                yield from self._beginnings.get(name[:length], ())


class Rules:
    """The rules of a file: an authority.

    Args:
        rules: all of them.
        identities_max: whose rights are remembered.
    """

    def __init__(self, rules: Iterable[Rule], identities_max: int = _IDENTITIES_MAX) -> None:
        self._rules = tuple(rules)
        self._identities_max = identities_max
        self._of_nobody: list[int] = []
        self._of_principals = _Index()
        self._of_groups = _Index()
        for number, rule in enumerate(self._rules):
            for who in rule.who:
                if who == ANONYMOUS:
                    self._of_nobody.append(number)
                elif who.startswith(_GROUP):
                    self._of_groups.add(who.removeprefix(_GROUP), number)
                else:
                    self._of_principals.add(who, number)
        # The one that asked last is last.
        self._rights = OrderedDict[tuple[str, frozenset[str]], _AllRights]()

    def __len__(self) -> int:
        return len(self._rules)

    def knows(self, identity: Identity) -> bool:
        """Return whether any rule is for somebody."""
        return bool(self._rights_of(identity))

    def allow(self, identity: Identity, demand: Demand) -> bool:
        """Return whether somebody may do something."""
        operation, (kind, namespace, name) = demand
        rights = self._rights_of(identity).get((operation, kind))
        if rights is None:
            return False
        return kind is ResourceKind.CLUSTER or rights.include(namespace, name)

    def rules_for(self, identity: Identity) -> list[Rule]:
        """Return the rules that count for somebody, in the order of the file."""
        if not identity.is_known:
            found = set(self._of_nobody)
        else:
            found = set(self._of_principals.find(identity.principal))
            for group in identity.groups:
                found.update(self._of_groups.find(group))
        return [self._rules[number] for number in sorted(found)]

    def _rights_of(self, identity: Identity) -> _AllRights:
        key = identity.principal, identity.groups
        known = self._rights.pop(key, None)
        if known is None:
            known = _rights_by(self.rules_for(identity))
            if len(self._rights) >= self._identities_max:
                self._rights.popitem(last=False)
        self._rights[key] = known
        return known


def _rights_by(rules: Iterable[Rule]) -> _AllRights:
    found: _AllRights = {}
    for rule in rules:
        for kind, patterns in rule.on.items():
            for operation in OPERATIONS[kind]:
                if operation in rule.may:
                    rights = found.setdefault((operation, kind), _Rights())
                    for pattern in patterns:
                        rights.add(pattern)
    return found


def _half(text: str) -> _Half:
    return _Half(text.removesuffix("*"), text.endswith("*"))


def parse_rules(text: str) -> Rules:
    """Return the rules of a file.

    Raises:
        InvalidConfigError: names each mistake with its line, and what to write instead.
    """
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # No TOML, or too long or too deep a value.
        raise InvalidConfigError(f"the rules are no TOML: {error}") from None
    lines = _Lines(text)
    problems = [
        f"line {lines.of_key(key)}: {told(key)!r} is no part of rules: write [[rules]] above each "
        "rule"
        for key in document
        if key != "rules"
    ]
    listed = document.get("rules", [])
    if not isinstance(listed, list) or not all(isinstance(rule, dict) for rule in listed):
        raise InvalidConfigError(
            f"line {lines.of_key('rules')}: write each rule below a line of its own, [[rules]]"
        )
    if len(listed) > RULES_MAX:
        raise InvalidConfigError(
            f"{len(listed)} rules: at most {RULES_MAX} may be; name groups and prefixes in them"
        )
    rules = []
    for number, entries in enumerate(listed):
        rule, wrong = _rule(entries)
        rules.append(rule)
        problems += [f"line {lines.of(number, key)}: {problem}" for key, problem in wrong]
    if problems:
        raise InvalidConfigError(problem_text(problems))
    return Rules(rules)


_Problems = list[tuple[str, str]]
"""Each with the key that it is about; empty: the whole rule."""


def _rule(entries: Mapping[str, Any]) -> tuple[Rule, _Problems]:
    problems: _Problems = []
    for key in entries:
        if key not in _KEYS:
            near = nearest(key, _KEYS)
            hint = f"did you mean {near!r}?" if near else f"a rule has {', '.join(_KEYS)}"
            problems.append((key, f"{told(key)!r}: {hint}"))
    who = _texts(entries, "who", problems)
    problems += [("who", problem) for text in who if (problem := _who_problem(text))]
    may: set[Operation] = set()
    for text in _texts(entries, "may", problems):
        try:
            may.add(Operation(text))
        except ValueError:
            problems.append(("may", f"{told(text)!r} is no operation: {_hint(text)}"))
    on: dict[ResourceKind, tuple[_Pattern, ...]] = {}
    for key, kind in _NAMED.items():
        if key in entries:
            patterns = []
            for text in _texts(entries, key, problems):
                if problem := _pattern_problem(text, key):
                    problems.append((key, problem))
                else:
                    patterns.append(_pattern(text))
            on[kind] = tuple(patterns)
    if (cluster := entries.get("cluster")) is True:
        on[ResourceKind.CLUSTER] = ()
    elif cluster is not None:
        problems.append(("cluster", "write cluster = true, or leave it out"))
    if not on:
        problems.append(("", f"the rule names nothing: add {', '.join(_NAMED)} or cluster = true"))
    else:
        problems += _useless(may, on)
    return Rule(who, frozenset(may), on), problems


def _useless(may: Iterable[Operation], on: Iterable[ResourceKind]) -> Iterator[tuple[str, str]]:
    """Yield a problem for each operation that none of the kinds has."""
    kinds = list(on)
    for operation in sorted(may):
        if not any(operation in OPERATIONS[kind] for kind in kinds):
            having = [kind for kind, operations in OPERATIONS.items() if operation in operations]
            yield (
                "may",
                f"nothing can be done with {operation!r} on {' and '.join(kinds)}: it is for "
                f"{' and '.join(having)}",
            )


def _texts(entries: Mapping[str, Any], key: str, problems: _Problems) -> tuple[str, ...]:
    value = entries.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        problems.append(
            (key if key in entries else "", f'{key}: write a list of texts, as {key} = ["..."]')
        )
        return ()
    return tuple(value)


def _hint(text: str) -> str:
    near = nearest(text, list(map(str, Operation)))
    return f"did you mean {near!r}?" if near else f"there are {', '.join(Operation)}"


def _who_problem(text: str) -> str:
    if text in (ANONYMOUS, _ANYBODY):
        return ""
    name = text.removeprefix(_GROUP)
    if name == _ANYBODY:
        return ""
    return principal_problem(name.removesuffix("*"))


def _pattern_problem(text: str, key: str) -> str:
    namespace, slash, name = text.partition("/")
    if not slash:
        namespace, name = DEFAULT_NAMESPACE, text
    if text == "*":
        return f"'*' could mean two things: write {key} = ['{DEFAULT_NAMESPACE}/*'], or ['*/*']"
    if not namespace or not _NAMESPACE.fullmatch(namespace):
        return (
            f"{told(text)!r}: before the slash is a namespace, of lower case letters, digits and "
            "hyphens, which may end in *"
        )
    if not name.strip() or not name.isprintable() or "*" in name[:-1]:
        return f"{told(text)!r}: write a name after the namespace; an asterisk stands at its end"
    return ""


def _pattern(text: str) -> _Pattern:
    namespace, slash, name = text.partition("/")
    if not slash:
        namespace, name = DEFAULT_NAMESPACE, text
    return _Pattern(_half(namespace), _half(name))


class _Lines:
    """Finds the lines that problems are about."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()
        self._heads = [
            number
            for number, line in enumerate(self._lines)
            if re.match(r"\s*\[\[\s*rules\s*\]\]", line)
        ]

    def of(self, rule: int, key: str) -> int:
        """Return the line of a key of a rule, or of the rule."""
        if rule >= len(self._heads):
            return 1
        end = self._heads[rule + 1] if rule + 1 < len(self._heads) else len(self._lines)
        return self._find(key, self._heads[rule], end) if key else self._heads[rule] + 1

    def of_key(self, key: str) -> int:
        """Return the line of a key outside of rules."""
        return self._find(key, 0, len(self._lines))

    def _find(self, key: str, begin: int, end: int) -> int:
        for number in range(begin, end):
            if re.match(rf"\s*\[*\s*[\"']?{re.escape(key)}\b", self._lines[number]):
                return number + 1
        return begin + 1
