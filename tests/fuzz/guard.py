"""What says who calls and what they may do: tokens, keys, certificates, rules, and the authorizer.

The authorizer is compared with a model of ten lines, which does not share code with it.
"""

import asyncio
import base64
import json
import tomllib
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from tests.fakes.drpc_ends import run_in_loop

from millrace.broker.guard.access_reviews import AccessReviews
from millrace.broker.guard.file_guard import FileAuthenticator, FileGuard
from millrace.broker.guard.guard import AuthorityAwayError, Guard
from millrace.broker.guard.kubernetes_guard import KubernetesGuard
from millrace.broker.guard.published_keys import PublishedKey, _usable
from millrace.core.broker_names import BrokerName
from millrace.core.callers import ANONYMOUS
from millrace.core.errors import InvalidConfigError
from millrace.core.guard import service_account_token
from millrace.core.guard.access import OPERATIONS, Demand, Operation, Resource, ResourceKind
from millrace.core.guard.decisions import ALLOWED_MS, AWAY_MS, Decisions
from millrace.core.guard.identity import NOBODY, Identity, RefusedCredentialError
from millrace.core.guard.rules import parse_rules
from millrace.core.guard.service_account_token import ALGORITHMS, LEEWAY_MS, Expected, audience_of
from millrace.core.guard.token_file import Tokens, digest_of, parse_tokens, tokens_to_text
from millrace.core.ids import MonotonicMs, WallMs
from millrace.runtime import certificates
from millrace.runtime.kubernetes.resources import Kind
from millrace.runtime.transport.credentials import SPIFFE, principal_of

_ResultT = TypeVar("_ResultT")

_ISSUER: Final = "https://kubernetes.default.svc"
_AUDIENCE: Final = audience_of("logs", "shop")
_EXPECTED: Final = Expected(_ISSUER, _AUDIENCE)
_NOW: Final = WallMs(1_800_000_000_000)
_KINDS: Final = ("topics", "groups", "transactions")
_FILE_GUARD: Final = FileGuard(FileAuthenticator(Tokens(())), parse_rules(""))
_NOT_ASKED: Final[Any] = None
_KUBERNETES_GUARD: Final = KubernetesGuard(_NOT_ASKED, _NOT_ASKED)


def fuzz_service_account_token(data: bytes) -> None:
    """A token: refused, or of an account, for this cluster alone, and for now.

    Lines are the JSON texts of its parts; without lines the bytes are the token.
    """
    parts = data.split(b"\n")
    if len(parts) > 1:
        token = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)
    else:
        token = data.decode("utf-8", "surrogateescape")
    may_be_sent = not service_account_token.sending_problem(token)
    try:
        shaped = service_account_token.parse(token)
        identity = service_account_token.check_claims(shaped.claims, _EXPECTED, _NOW)
    except RefusedCredentialError:
        return
    claims = shaped.claims
    assert shaped.algorithm in ALGORITHMS
    assert claims["aud"] in (_AUDIENCE, [_AUDIENCE])
    assert claims["iss"] == _ISSUER
    assert may_be_sent
    assert claims["exp"] * 1000 + LEEWAY_MS > _NOW >= claims.get("nbf", 0) * 1000 - LEEWAY_MS
    assert identity.principal == claims["sub"]
    assert identity.principal.count(":") == 3
    assert identity.principal.startswith("system:serviceaccount:")


def fuzz_published_keys(data: bytes) -> None:
    """The keys that an API server publishes: what is no public key for signatures is left out."""
    with suppress(ValueError, RecursionError):
        published = json.loads(data)
        if isinstance(published, list):
            for key_id, key in _usable(published).items():
                assert key_id
                assert key.algorithm_name in ALGORITHMS
                _refuses(PublishedKey(_ISSUER, key))


def _refuses(key: PublishedKey) -> None:
    header = base64.urlsafe_b64encode(json.dumps({"alg": key._key.algorithm_name}).encode())
    try:
        key.verify(f"{header.decode().rstrip('=')}.e30.AAAA")
    except RefusedCredentialError:
        return
    raise AssertionError("a signature of zeros counts")


def fuzz_token_file(data: bytes) -> None:
    """A file of tokens: refused, or read back as it was written, and without `anonymous`."""
    try:
        tokens = parse_tokens(data.decode())
    except (UnicodeDecodeError, InvalidConfigError):
        return
    assert parse_tokens(tokens_to_text(tokens.entries)).entries == tokens.entries
    assert tokens.find(digest_of("a token of nobody")) is None
    for entry in tokens.entries:
        assert tokens.find(entry.digest) == entry
        assert ANONYMOUS not in (entry.principal, *entry.groups)


def fuzz_certificates(data: bytes) -> None:
    """A file of certificates: refused, or names and dates that can be read."""
    pem = b"-----BEGIN CERTIFICATE-----\n%s\n-----END CERTIFICATE-----\n"
    for file in (data, pem % base64.b64encode(data)):
        try:
            certificate = certificates.read(file)
            assert certificates.lifetime_of(file).ends <= certificate.ends
        except InvalidConfigError:
            continue
        assert all(isinstance(name, str) for name in (*certificate.hosts, *certificate.uris))
        assert not certificate.is_of(_AUTHORITY.certificate)


_AUTHORITY: Final = certificates.new_authority("fuzz", days=1)


def fuzz_certificate_names(data: bytes) -> None:
    """The names of a verified certificate: a broker's only by a URI, and never Kubernetes' own.

    The first line is the common name, each other one a URI.
    """
    common_name, *uris = data.decode("utf-8", "replace").split("\n")
    principal = principal_of(uris, common_name)
    assert not principal or principal.isprintable()
    broker = BrokerName.parse(principal)
    if broker is not None:
        assert [uri for uri in uris if uri.startswith(SPIFFE)] == [principal]
        assert broker.uri == principal
    for guard in (_FILE_GUARD, _KUBERNETES_GUARD):
        try:
            identity, _ = _at_once(guard.prove((), principal))
        except RefusedCredentialError:
            continue
        assert identity.principal == (principal or ANONYMOUS)
        assert identity.groups <= ({"system:authenticated"} if principal else set())
        assert principal != ANONYMOUS
        assert not principal.startswith("system:")


def _at_once(work: Coroutine[Any, Any, _ResultT]) -> _ResultT:
    """Return the result of something that does not wait."""
    try:
        work.send(None)
    except StopIteration as done:
        result: _ResultT = done.value
        return result
    raise AssertionError("it waits")


def fuzz_rules_file(data: bytes) -> None:
    """A file of rules: refused, or decided as the model does."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    _compare(text, None, _Choices(data))


def fuzz_authorizer(data: bytes) -> None:
    """Rules made of the bytes, and questions about names that are like those of the rules."""
    choices = _Choices(data)
    rules = []
    for _ in range(choices.number(4)):
        rule: dict[str, Any] = {
            "who": choices.texts(choices.who),
            "may": [choices.one(_OPERATIONS) for _ in choices.some(3)],
        }
        rule |= {kind: choices.texts(choices.pattern) for kind in _KINDS if choices.number(2)}
        if not choices.number(4):
            rule["cluster"] = True
        rules.append(rule)
    lines = (
        f"{key} = {json.dumps(value)}" if key else "[[rules]]"
        for rule in rules
        for key, value in (("", None), *rule.items())
    )
    _compare("\n".join(lines), {"rules": rules}, choices)


def fuzz_access_reviews(data: bytes) -> None:
    """Rights by Kubernetes: what the API server allows by one of the three questions, no more.

    Where it is away at times, nothing that it does not allow is allowed.
    """
    run_in_loop(_review(_Choices(data)))


class _ApiServer:
    """Implements `Reviewer`: allows a set of questions, to one account."""

    def __init__(self, allowed: frozenset[tuple[str, ...]]) -> None:
        self._allowed = allowed
        self.is_away = False

    async def review(self, kind: Kind, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.is_away:
            raise AuthorityAwayError("away")
        asked = spec["resourceAttributes"]
        question = tuple(asked[part] for part in ("verb", "resource", "namespace", "name"))
        return {"allowed": spec["user"] == _READER and question in self._allowed}

    async def read(self, path: str, accept: str = "") -> Mapping[str, Any]:
        raise AssertionError("no keys are needed")


async def _review(choices: "_Choices") -> None:
    def question() -> tuple[str, ...]:
        if not choices.number(4):
            return (choices.one(("administer", "describe")), "clusters", *choices.one(_CLUSTERS))
        namespace = choices.one(("", "shop", "a"))
        kind, name = choices.one(_KINDS), choices.one(("", *_TOPICS)) if namespace else ""
        return choices.one(_OPERATIONS), kind, namespace, name

    allowed = frozenset(question() for _ in choices.some(6))
    server = _ApiServer(allowed)
    reviews = AccessReviews(server, "shop", "logs")
    guard = KubernetesGuard(_NOT_ASKED, reviews)
    was_away = False
    for _ in range(5):
        kind = choices.one(list(ResourceKind))
        is_cluster = kind is ResourceKind.CLUSTER
        namespace = "" if is_cluster else choices.one(("shop", "a", "", "*", "Shop"))
        resource = Resource(kind, namespace, "" if is_cluster else choices.one(_TOPICS))
        demand = Demand(choices.one(list(Operation)), resource)
        identity = Identity(choices.one((_READER, _READER, "system:serviceaccount:a:other")))
        wanted = identity.principal == _READER and _allows(allowed, demand)
        was_away |= (is_away := not choices.number(8))
        server.is_away = is_away
        with suppress(AuthorityAwayError):
            if choices.number(2):
                await reviews.learn(identity, [demand])
            found = await reviews.decide(identity, demand)
            assert found.is_allowed is wanted or (was_away and not found.is_allowed)
        assert wanted or not guard.decide(identity, demand).is_allowed
        assert wanted or not guard.is_listed(identity, demand)
    await asyncio.sleep(0)


def _allows(allowed: frozenset[tuple[str, ...]], demand: Demand) -> bool:
    """The model: what the API server allows, from the words of docs/security.md."""
    operation, (kind, namespace, name) = demand
    if kind == "topics" and name.startswith("__"):
        operation, kind = Operation.ADMINISTER, ResourceKind.CLUSTER
    elif namespace not in ("shop", "a") and kind != "cluster":
        return False
    resource = "clusters" if kind == "cluster" else kind.value
    space, own = ("shop", "logs") if kind == "cluster" else (namespace, name)
    questions = {(operation.value, resource, *at) for at in (("", ""), (space, ""), (space, own))}
    return bool(questions & allowed)


_READER: Final = "system:serviceaccount:shop:reader"
_TOPICS: Final = ("orders", "__positions", "b")
_CLUSTERS: Final = (("", ""), ("shop", ""), ("shop", "logs"), ("shop", "b"), ("a", "logs"))


class _Choices:
    """Takes choices from bytes; when there are no more, the first one each."""

    def __init__(self, data: bytes) -> None:
        self._rest = iter(data)

    def number(self, below: int) -> int:
        return next(self._rest, 0) % below

    def one(self, options: Any) -> Any:
        return options[self.number(len(options))]

    def some(self, most: int) -> Iterator[int]:
        return iter(range(1 + self.number(most)))

    def word(self) -> str:
        return "".join(self.one(("a", "b", "_", "-", "__")) for _ in self.some(3))

    def who(self) -> str:
        front = self.one(("", "", "group:", "system:"))
        return f"{front}{self.word()}{self.one(_ENDS)}" if self.number(5) else self.one(_NAMED)

    def pattern(self) -> str:
        namespace = self.one(("default/", "a/", "a*/", "*/", ""))
        return f"{namespace}{self.word() if self.number(5) else ''}{self.one(_ENDS)}"

    def texts(self, make: Any) -> list[str]:
        return [make() for _ in self.some(3)]


_OPERATIONS: Final = [operation.value for operation in Operation]
_ENDS: Final = ("", "", "*")
_NAMED: Final = ("*", ANONYMOUS, "group:*")


def _compare(text: str, document: Mapping[str, Any] | None, choices: _Choices) -> None:
    """Compare decisions with the model; without a document it is that of the text."""
    try:
        rules = parse_rules(text)
    except InvalidConfigError:
        return
    document = document or tomllib.loads(text)
    guard: Guard = FileGuard(None, rules)
    decisions = Decisions(2)
    for _ in range(4):
        groups = frozenset(choices.word() for _ in range(choices.number(3)))
        identity = Identity(choices.word(), groups) if choices.number(4) else NOBODY
        kind = choices.one(list(ResourceKind))
        is_cluster = kind is ResourceKind.CLUSTER
        namespace = "" if is_cluster else choices.one(("default", "a", "ab"))
        name = "" if is_cluster else choices.word()
        operation = choices.one(list(Operation))
        demand = Demand(operation, Resource(kind, namespace, name))
        wanted = _may(document, identity, demand)
        now = MonotonicMs(choices.number(256) * 100)
        assert rules.allow(identity, demand) is wanted, (text, identity, demand, wanted)
        assert guard.decide(identity, demand, now).is_allowed is wanted
        assert guard.decide(identity, demand, now).is_allowed is wanted, "when it is asked again"
        kept = decisions.keep(identity, demand, now, is_allowed=wanted)
        assert decisions.find(identity, demand, now) == kept
        assert decisions.find(identity, demand, MonotonicMs(now + ALLOWED_MS)) is None
        later = MonotonicMs(now + AWAY_MS - 1)
        assert decisions.without_authority(identity, demand, later).is_allowed is wanted
        later = MonotonicMs(now + AWAY_MS)
        assert not decisions.without_authority(identity, demand, later).is_allowed
        assert len(decisions) <= 4


def _may(document: Mapping[str, Any], identity: Identity, demand: Demand) -> bool:
    """The model: what the rules of a file say, from the words of docs/security.md."""
    operation, (kind, namespace, name) = demand
    is_known = identity.principal != ANONYMOUS

    def fits(pattern: str, text: str) -> bool:
        return text == pattern or (pattern[-1:] == "*" and text[: len(pattern) - 1] == pattern[:-1])

    def is_meant(who: str) -> bool:
        if who == ANONYMOUS or not is_known:
            return who == ANONYMOUS and not is_known
        if who.startswith("group:"):
            return any(fits(who.removeprefix("group:"), group) for group in identity.groups)
        return fits(who, identity.principal)

    def is_named(pattern: str) -> bool:
        space, slash, rest = pattern.partition("/")
        space, rest = (space, rest) if slash else ("default", pattern)
        is_open = rest.startswith("__") or not name.startswith("__")
        return is_open and fits(space, namespace) and fits(rest, name)

    return any(
        operation in rule["may"]
        and operation in OPERATIONS[kind]
        and any(map(is_meant, rule["who"]))
        and (rule.get("cluster") if kind == "cluster" else any(map(is_named, rule.get(kind, ()))))
        for rule in document.get("rules", ())
    )
