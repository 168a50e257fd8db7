"""Who calls, and what that caller may do, without a broker."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.call_context import CallContext, calls_of, serve_call
from tests.fakes.calls import calls_in

from millrace.broker.guard import callers
from millrace.broker.guard.access_files import AccessFiles, open_access
from millrace.broker.guard.callers import Access, GuardedCaller
from millrace.broker.guard.credentials import Credential, bearer_token
from millrace.broker.guard.demands import KNOWN, cluster, each, whole
from millrace.broker.guard.file_guard import FileAuthenticator, FileGuard
from millrace.broker.guard.guard import AuthorityAwayError, Guard
from millrace.core.broker_config import AccessConfig, BrokerConfig
from millrace.core.errors import (
    AuthenticationFailedError,
    ClusterAuthorizationFailedError,
    InvalidConfigError,
    TopicAuthorizationFailedError,
)
from millrace.core.guard.access import CLUSTER, Demand, Operation, Resource, ResourceKind, named
from millrace.core.guard.identity import NOBODY, Identity, RefusedCredentialError
from millrace.core.guard.rules import Rules, parse_rules
from millrace.core.guard.token_file import Tokens, new_entry, tokens_to_text
from millrace.core.ids import MonotonicMs, TopicId, WallMs
from millrace.core.listeners_config import ClientsListenerConfig, ListenersConfig
from millrace.core.metadata.model import Listener
from millrace.proto.codec import field_of
from millrace.proto.errors import error_from_trailers
from millrace.proto.v1.cluster_pb2 import GetMetadataRequest, GetMetadataResponse

TOKEN = "mlr_" + "x" * 30
RULES = '[[rules]]\nwho = ["alice"]\nmay = ["consume", "describe"]\ntopics = ["shop/*"]\n'
OTHER_RULES = RULES.replace("alice", "carol")
ORDERS = named(ResourceKind.TOPICS, "shop/orders")
SECRET = named(ResourceKind.TOPICS, "other/secret")
ID = TopicId(b"o" * 16)


def bearer(token: str = TOKEN) -> tuple[str, str]:
    return ("authorization", f"Bearer {token}")


def tokens(ends: int | None = None, principal: str = "alice", group: str = "shop") -> Tokens:
    end = None if ends is None else WallMs(ends)
    return Tokens([new_entry(TOKEN, principal, [group], end, b"s" * 16)])


def guard(rules: str = RULES, ends: int | None = None) -> FileGuard:
    return FileGuard(FileAuthenticator(tokens(ends)), parse_rules(rules))


def access(of: Guard, name: str = "alice") -> Access:
    return Access(of, Identity(name), None)


def test_a_token_proves_its_principal_and_nothing_proves_nobody() -> None:
    identity, credential = asyncio.run(guard().prove([bearer()], ""))
    assert (identity.principal, identity.groups) == ("alice", frozenset({"shop"}))
    assert credential is not None
    assert asyncio.run(guard().prove([], "")) == (NOBODY, None)


def test_a_certificate_proves_its_name_and_a_token_beside_it_counts_instead() -> None:
    assert asyncio.run(guard().prove([], "spiffe://a/b")) == (Identity("spiffe://a/b"), None)
    identity, _ = asyncio.run(guard().prove([bearer()], "spiffe://a/b"))
    assert identity.principal == "alice"
    with pytest.raises(RefusedCredentialError):
        asyncio.run(guard().prove([bearer("y" * 30)], "spiffe://a/b"))


@pytest.mark.parametrize("name", ["anonymous", "system:masters", "system:serviceaccount:a:b"])
def test_a_certificate_gives_no_name_that_means_something_else(name: str) -> None:
    with pytest.raises(RefusedCredentialError, match="names"):
        asyncio.run(guard().prove([], name))


@pytest.mark.parametrize(
    "said",
    [
        [bearer(), bearer()],
        [("authorization", "")],
        [("authorization", TOKEN)],
        [("authorization", f"Basic {TOKEN}")],
        [("authorization", f"Bearer  {TOKEN}")],
        [("authorization", f"Bearer {TOKEN} ")],
        [("authorization", f"Bearer {TOKEN}\n")],
        [("authorization", f"Bearer {TOKEN}\r\nx: y")],
        [("authorization", f"Bearer {TOKEN}ü")],
        [("authorization", f"Bearer {'x' * 16_000}")],
        [("authorization", b"Bearer \xff\xfe" + b"x" * 20)],
    ],
    ids=range(11),
)
def test_what_is_no_token_is_refused(said: list[tuple[str, str | bytes]]) -> None:
    with pytest.raises(RefusedCredentialError) as refused:
        bearer_token(said)
    assert TOKEN not in str(refused.value)


def test_the_scheme_may_be_written_in_any_case_and_other_keys_mean_nothing() -> None:
    assert bearer_token([("authorization", f"bEARER {TOKEN}")]) == TOKEN
    assert bearer_token([("x-authorization", f"Bearer {TOKEN}")]) is None


def test_a_token_ends_and_may_be_removed_or_given_to_somebody_else() -> None:
    known = FileAuthenticator(tokens(ends=1000))
    credential = known.identify(TOKEN, WallMs(999))
    known.check(credential, WallMs(999))
    with pytest.raises(RefusedCredentialError, match="has ended"):
        known.identify(TOKEN, WallMs(1000))
    with pytest.raises(RefusedCredentialError, match="has ended"):
        known.check(credential, WallMs(1000))
    known.tokens = tokens(principal="bob")
    with pytest.raises(RefusedCredentialError, match="another principal"):
        known.check(credential, WallMs(1))
    known.tokens = Tokens([])
    with pytest.raises(RefusedCredentialError, match="in no line"):
        known.check(credential, WallMs(1))


def test_a_stream_ends_whose_principal_was_taken_out_of_a_group() -> None:
    known = FileAuthenticator(tokens())
    credential = known.identify(TOKEN, WallMs(1))
    known.tokens = tokens(group="others")
    with pytest.raises(RefusedCredentialError, match="other groups"):
        known.check(credential, WallMs(1))


def test_a_broker_without_tokens_takes_none() -> None:
    with pytest.raises(RefusedCredentialError, match="knows no tokens"):
        asyncio.run(FileGuard(None, parse_rules(RULES)).prove([bearer()], ""))


class Asked:
    """An authority that counts questions, and may be away."""

    def __init__(self) -> None:
        self.questions = 0
        self.answer = True
        self.is_away = False

    def knows(self, _: Identity) -> bool:
        return True

    def allow(self, _: Identity, __: Demand) -> bool:
        self.questions += 1
        if self.is_away:
            raise AuthorityAwayError
        return self.answer


def test_the_authority_is_asked_once_in_ten_seconds() -> None:
    authority = Asked()
    asking, demand = FileGuard(None, authority), Demand(Operation.CONSUME, ORDERS)
    for now in (0, 1, 9_999):
        assert asking.decide(Identity("alice"), demand, MonotonicMs(now)).is_allowed
    assert authority.questions == 1
    authority.answer = False
    assert not asking.decide(Identity("alice"), demand, MonotonicMs(10_000)).is_allowed
    assert authority.questions == 2


def test_decisions_about_names_that_nothing_can_have_take_no_memory() -> None:
    """A caller without rights may name what it likes: a megabyte in each call."""
    known = guard()
    for kind in (ResourceKind.GROUPS, ResourceKind.TOPICS):
        for name in ("x" * 1000, "x" * 1000 + "/x", "shop/" + "x" * 1000):
            known.decide(Identity("alice"), Demand(Operation.CONSUME, named(kind, name)))
    assert len(known._decisions) == 0
    assert access(known).refusal(Operation.CONSUME, named(ResourceKind.GROUPS, "x" * 1000))


def test_what_was_allowed_goes_on_while_the_authority_is_away() -> None:
    authority = Asked()
    asking, demand = FileGuard(None, authority), Demand(Operation.CONSUME, ORDERS)
    asking.decide(Identity("alice"), demand, MonotonicMs(0))
    authority.is_away = True
    assert asking.decide(Identity("alice"), demand, MonotonicMs(60_000)).is_allowed
    assert not asking.decide(Identity("bob"), demand, MonotonicMs(60_000)).is_allowed
    assert not asking.decide(Identity("alice"), demand, MonotonicMs(16 * 60_000)).is_allowed


def test_new_rules_count_at_once_also_for_a_stream() -> None:
    asking = guard()
    caller = GuardedCaller(
        principal="alice",
        client_id="",
        address="",
        listener="",
        software="",
        access=access(asking),
    )
    topics = caller.on_topics(Operation.CONSUME, lambda _: ORDERS)
    assert topics is not None
    assert topics.refusal(ID, MonotonicMs(0)) is None
    asking.on_authority(Rules([]))
    assert isinstance(topics.refusal(ID, MonotonicMs(1)), TopicAuthorizationFailedError)
    asking.on_authority(parse_rules(RULES))
    assert topics.refusal(ID, MonotonicMs(2)) is None


def test_a_batch_costs_one_look_up_of_a_dictionary() -> None:
    authority = Asked()
    topics = callers.TopicAccess(
        access(FileGuard(None, authority)), Operation.PRODUCE, lambda _: ORDERS
    )
    topics.refusal(ID, MonotonicMs(0))
    assert calls_in(lambda: topics.refusal(ID, MonotonicMs(5))) <= 2
    assert authority.questions == 1
    topics.refusal(ID, MonotonicMs(10_000))
    assert authority.questions == 2


def test_without_a_guard_nothing_is_asked() -> None:
    caller = GuardedCaller(principal="", client_id="", address="", listener="", software="")
    assert caller.on_topics(Operation.PRODUCE, lambda _: ORDERS) is None
    assert caller.may(Operation.ADMINISTER, CLUSTER)
    assert caller.refusal_by_id(Operation.CONSUME, SECRET) is None


def test_the_name_of_a_topic_is_told_only_to_who_may_see_it() -> None:
    own = access(guard()).refusal_by_id(Operation.PRODUCE, ORDERS)
    other = access(guard()).refusal_by_id(Operation.PRODUCE, SECRET)
    assert own is not None
    assert other is not None
    assert "shop/orders" in own.message
    assert "secret" not in other.message


def test_an_unknown_topic_is_left_to_the_handler() -> None:
    topics = callers.TopicAccess(access(guard()), Operation.CONSUME, lambda _: None)
    assert topics.refusal(ID) is None


# --- Calls ---------------------------------------------------------------------------------------


def asked(request: GetMetadataRequest) -> Iterator[Resource | None]:
    for name in request.topics:
        yield named(ResourceKind.TOPICS, name) if name else None


@pytest.mark.parametrize(
    ("demands", "topics", "error"),
    [
        (KNOWN, [], None),
        (each(Operation.DELETE, ResourceKind.TOPICS), [], None),
        (whole(Operation.CONSUME, ResourceKind.TOPICS, asked), ["shop/a", "shop/b", ""], None),
        (
            whole(Operation.CONSUME, ResourceKind.TOPICS, asked),
            ["shop/a", "other/b"],
            TopicAuthorizationFailedError,
        ),
        (cluster(Operation.DESCRIBE), [], ClusterAuthorizationFailedError),
        (cluster(Operation.DESCRIBE, "if", lambda request: bool(request.topics)), [], None),
    ],
    ids=range(6),
)
def test_a_request_is_refused_before_its_handler_runs(
    demands: Any, topics: list[str], error: type[Exception] | None
) -> None:
    served: list[GuardedCaller] = []

    async def answer(_: object, caller: GuardedCaller) -> GetMetadataResponse:
        served.append(caller)
        return GetMetadataResponse()

    calls = calls_of(Listener.CLIENTS, guard=guard())
    handlers = calls.methods("S", unary={"Ask": (answer, GetMetadataRequest, demands)})
    context = CallContext(bearer())
    request = GetMetadataRequest(topics=topics).SerializeToString()
    asyncio.run(serve_call(handlers, "/S/Ask", context, request))
    assert [caller.principal for caller in served] == ([] if error else ["alice"])
    if error is not None:
        assert type(error_from_trailers(context.trailers, context.details)) is error


def test_a_field_of_a_later_release_is_not_passed_on_to_a_controller_that_may_know_it() -> None:
    passed_on: list[bytes] = []

    async def forward(data: bytes, _: object) -> GetMetadataResponse:
        passed_on.append(data)
        return GetMetadataResponse()

    calls = calls_of(Listener.CLIENTS, guard=guard())
    demands = whole(Operation.CONSUME, ResourceKind.TOPICS, asked)
    method = (forward, GetMetadataRequest, lambda _: None)
    handlers = calls.methods("S", forwards={"Ask": (method, demands)})
    request = GetMetadataRequest(topics=["shop/a"]).SerializeToString()
    for later in (b"", field_of(500, b"other/b")):
        asyncio.run(serve_call(handlers, "/S/Ask", CallContext(bearer()), request + later))
    assert passed_on == [request, request]


def test_nobody_is_told_to_bring_a_token_and_a_rule_may_let_nobody_in() -> None:
    async def answer(_: object, __: object) -> GetMetadataResponse:
        return GetMetadataResponse()

    def refused(rules: str) -> Any:
        calls = calls_of(Listener.CLIENTS, guard=guard(rules))
        handlers = calls.methods("S", unary={"Ask": (answer, GetMetadataRequest, KNOWN)})
        context = CallContext()
        asyncio.run(serve_call(handlers, "/S/Ask", context, b""))
        return error_from_trailers(context.trailers, context.details)

    error = refused(RULES)
    assert isinstance(error, AuthenticationFailedError)
    assert "MILLRACE_TOKEN_FILE" in error.message
    assert refused(RULES.replace("alice", "anonymous")) is None


@pytest.mark.parametrize("change", ["removed", "ended"])
def test_a_stream_ends_when_its_token_does(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    monkeypatch.setattr(callers, "_LOOK_SECONDS", 0.01)
    known = FileAuthenticator(tokens())
    calls = calls_of(Listener.CLIENTS, guard=FileGuard(known, parse_rules(RULES)))

    async def follow(_: object, __: object) -> None:
        known.tokens = Tokens([]) if change == "removed" else tokens(ends=1)
        await asyncio.Event().wait()

    handlers = calls.methods("S", streams={"Follow": (follow, KNOWN)})
    context = CallContext(bearer())
    asyncio.run(asyncio.wait_for(serve_call(handlers, "/S/Follow", context), 5))
    error = error_from_trailers(context.trailers, context.details)
    assert isinstance(error, AuthenticationFailedError)


# --- Files ---------------------------------------------------------------------------------------


class Files:
    def __init__(self, folder: Path) -> None:
        self.rules, self.tokens = folder / "rules.toml", folder / "tokens"
        self.rules.write_text(RULES)
        self.tokens.write_text(tokens_to_text(tokens().entries))
        self.shown: dict[str, int] = {}

    def open(self) -> AccessFiles:
        config = AccessConfig(rules_file=str(self.rules), tokens_file=str(self.tokens))
        return AccessFiles(config, self.shown.__setitem__)


def replace(path: Path, text: str) -> None:
    other = path.with_suffix(".new")
    other.write_text(text)
    other.replace(path)


async def settle(followed: AccessFiles) -> None:
    """Look at files until a change that rests counts."""
    for _ in range(2):
        await followed.look()


def test_files_are_read_again_when_they_change(tmp_path: Path) -> None:
    files = Files(tmp_path)
    followed = files.open()
    identity, _ = asyncio.run(followed.guard.prove([bearer()], ""))
    demand = Demand(Operation.CONSUME, ORDERS)
    assert followed.guard.decide(identity, demand).is_allowed
    replace(files.rules, OTHER_RULES)
    asyncio.run(settle(followed))
    assert not followed.guard.decide(identity, demand).is_allowed
    replace(files.tokens, "")
    asyncio.run(settle(followed))
    with pytest.raises(RefusedCredentialError):
        asyncio.run(followed.guard.prove([bearer()], ""))


def test_rules_that_are_being_written_do_not_count(tmp_path: Path) -> None:
    files = Files(tmp_path)
    followed = files.open()
    demand = Demand(Operation.CONSUME, ORDERS)
    more = OTHER_RULES + RULES
    for written in ("", OTHER_RULES, more, more):  # A look after each write.
        files.rules.write_text(written)
        asyncio.run(followed.look())
        assert followed.guard.decide(Identity("alice"), demand).is_allowed
        assert files.shown["rules_file"] == 0
    asyncio.run(settle(followed))
    assert followed.guard.decide(Identity("alice"), demand).is_allowed
    assert followed.guard.decide(Identity("carol"), demand).is_allowed


def test_rules_that_stay_empty_are_a_mistake(tmp_path: Path) -> None:
    files = Files(tmp_path)
    followed = files.open()
    files.rules.write_text("# Nothing.")
    asyncio.run(settle(followed))
    assert files.shown["rules_file"] == 1
    demand = Demand(Operation.CONSUME, ORDERS)
    assert followed.guard.decide(Identity("alice"), demand).is_allowed
    files.rules.write_text(RULES)
    asyncio.run(settle(followed))
    assert files.shown["rules_file"] == 0


def test_a_bad_file_leaves_the_last_good_one_and_is_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = Files(tmp_path)
    followed = files.open()
    assert files.shown == {"rules_file": 0, "tokens_file": 0}
    replace(files.rules, '[[rules]]\nwho = ["alice"]\nmay = ["read"]\ntopics = ["a"]')
    files.tokens.unlink()
    asyncio.run(settle(followed))
    assert files.shown == {"rules_file": 1, "tokens_file": 1}
    identity, _ = asyncio.run(followed.guard.prove([bearer()], ""))
    assert followed.guard.decide(identity, Demand(Operation.CONSUME, ORDERS)).is_allowed
    said = " ".join(record.getMessage() for record in caplog.records)
    assert "line 3: 'read' is no operation" in said
    asyncio.run(followed.look())
    assert len([r for r in caplog.records if "left as it was" in r.getMessage()]) == 2
    replace(files.rules, RULES)
    asyncio.run(settle(followed))
    assert files.shown["rules_file"] == 0


def test_files_change_by_a_symbolic_link_as_secrets_do(tmp_path: Path) -> None:
    files = Files(tmp_path)
    first, second, link = tmp_path / "1", tmp_path / "2", tmp_path / "..data"
    for folder, text in ((first, RULES), (second, OTHER_RULES)):
        folder.mkdir()
        (folder / "rules").write_text(text)
    link.symlink_to(first)
    files.rules = link / "rules"
    followed = files.open()
    demand = Demand(Operation.CONSUME, ORDERS)
    assert followed.guard.decide(Identity("alice"), demand).is_allowed
    other = tmp_path / "..tmp"
    other.symlink_to(second)
    other.replace(link)
    asyncio.run(settle(followed))
    assert not followed.guard.decide(Identity("alice"), demand).is_allowed


@pytest.mark.parametrize("text", ["[[", "[[rules]]", "\0", None, "x" * (5 << 20)])
def test_a_broker_does_not_start_with_bad_rules(tmp_path: Path, text: str | None) -> None:
    files = Files(tmp_path)
    if text is None:
        files.rules.unlink()
    else:
        files.rules.write_text(text)
    with pytest.raises(InvalidConfigError, match=r"access\.rules_file"):
        files.open()


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.tokens.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidConfigError, match=r"access\.tokens_file"):
        files.open()


def test_tokens_without_rules_are_no_configuration() -> None:
    assert list(AccessConfig(tokens_file="t").validate())
    assert not list(AccessConfig(tokens_file="t", rules_file="r").validate())
    assert not list(AccessConfig().validate())


def test_a_credential_says_nothing_of_its_token() -> None:
    assert TOKEN not in repr(Credential(Identity("alice"), b"d"))


@pytest.mark.parametrize(
    ("host", "is_told"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)]
)
def test_a_broker_that_others_reach_says_that_it_has_no_rules(
    host: str, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    config = BrokerConfig(
        log_dirs=("log",),
        listeners=ListenersConfig(clients=ClientsListenerConfig(host=host)),
    )
    assert open_access(config, lambda *_: None) is None
    assert any("may do everything" in record.getMessage() for record in caplog.records) is is_told
