"""The guard that asks the API server: what calls and streams get while there is no answer yet."""

import asyncio
from dataclasses import replace

import pytest
from tests.fakes.authority import FakeAuthority
from tests.fakes.call_context import CALLER
from tests.fakes.virtual_loop import in_virtual_time

from millrace.broker.guard.access_reviews import DUE_WAIT_S, AccessReviews
from millrace.broker.guard.callers import Access, TopicAccess
from millrace.broker.guard.guard import Guard
from millrace.broker.guard.kubernetes_guard import KubernetesGuard
from millrace.broker.guard.service_accounts import ServiceAccountTokens
from millrace.core.errors import (
    AccessUndecidedError,
    AuthenticationFailedError,
    MillraceError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)
from millrace.core.guard.access import Demand, Operation, ResourceKind, named
from millrace.core.guard.decisions import ALLOWED_MS
from millrace.core.guard.identity import NOBODY, Identity, RefusedCredentialError
from millrace.core.guard.known_tokens import AWAY_MS, REVIEW_MS
from millrace.core.guard.service_account_token import audience_of
from millrace.core.ids import TopicId

AUDIENCE = audience_of("logs", "shop")
READER = "system:serviceaccount:shop:reader"
ORDERS = named(ResourceKind.TOPICS, "shop/orders")
ALL_TOPICS = ("consume", "topics", "", "")


@pytest.fixture
def authority() -> FakeAuthority:
    return FakeAuthority()


@pytest.fixture
def guard(authority: FakeAuthority) -> Guard:
    tokens = ServiceAccountTokens(authority, AUDIENCE)
    return KubernetesGuard(tokens, AccessReviews(authority, "shop", "logs"))


async def shown(guard: Guard, token: str, proved: str = "") -> Access:
    """Return what the caller of a call may do, which shows a token."""
    metadata = [("authorization", f"Bearer {token}")] if token else []
    identity, credential = await guard.prove(metadata, proved)
    return Access(guard, identity, credential)


def stream_of(access: Access) -> TopicAccess:
    return TopicAccess(access, Operation.CONSUME, lambda _: ORDERS)


@in_virtual_time
async def test_a_call_waits_for_the_answer_before_it_begins(
    authority: FakeAuthority, guard: Guard
) -> None:
    authority.allowed.add(ALL_TOPICS)
    access = await shown(guard, authority.token([AUDIENCE]))
    assert access.identity.principal == READER
    demands = [Demand(Operation.CONSUME, ORDERS), Demand(Operation.PRODUCE, ORDERS)]
    await access.learn(demands)
    assert access.refusal(Operation.CONSUME, ORDERS) is None
    assert isinstance(access.refusal(Operation.PRODUCE, ORDERS), TopicAuthorizationFailedError)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (ResourceKind.TOPICS, TopicAuthorizationFailedError),
        (ResourceKind.TRANSACTIONS, TransactionalIdAuthorizationFailedError),
    ],
)
@in_virtual_time
async def test_a_question_about_all_gets_all_or_a_refusal_that_names_nothing(
    authority: FakeAuthority, guard: Guard, kind: ResourceKind, error: type[MillraceError]
) -> None:
    """Who concludes from a shorter list what is nowhere would delete what is needed."""
    names = ["shop/orders", "shop/secret"]
    access = await shown(guard, authority.token([AUDIENCE]))
    caller = replace(CALLER, principal=READER, access=access)

    async def all_seen() -> list[str]:
        return await caller.seen(
            Operation.DESCRIBE, names, lambda name: named(kind, name), none_hidden=True
        )

    authority.is_away = True
    with pytest.raises(AccessUndecidedError):
        await all_seen()
    authority.is_away = False
    authority.allowed.add(("describe", str(kind), "shop", "orders"))
    await asyncio.sleep(10)
    with pytest.raises(error, match=f"allows `describe` on all {kind}") as told:
        await all_seen()
    assert "secret" not in told.value.message
    authority.allowed.add(("describe", str(kind), "", ""))
    await asyncio.sleep(ALLOWED_MS / 1000)
    assert await all_seen() == names


@in_virtual_time
async def test_a_stream_is_told_to_try_again_until_there_is_an_answer(
    authority: FakeAuthority, guard: Guard
) -> None:
    stream = stream_of(await shown(guard, authority.token([AUDIENCE])))
    topic = TopicId(b"t" * 16)
    assert isinstance(stream.refusal(topic), AccessUndecidedError)
    await asyncio.sleep(0.1)
    assert isinstance(stream.refusal(topic), TopicAuthorizationFailedError)


@in_virtual_time
async def test_a_stream_goes_on_while_it_is_asked_again_and_ends_soon_after_a_refusal(
    authority: FakeAuthority, guard: Guard
) -> None:
    authority.allowed.add(ALL_TOPICS)
    access = await shown(guard, authority.token([AUDIENCE]))
    stream, topic = stream_of(access), TopicId(b"t" * 16)
    await access.learn([Demand(Operation.CONSUME, ORDERS)])
    authority.delay_s = 0.1
    for _ in range(3 * ALLOWED_MS // 1000):
        assert stream.refusal(topic) is None
        await asyncio.sleep(1)
    authority.allowed.clear()
    await asyncio.sleep(ALLOWED_MS / 1000)
    stream.refusal(topic)
    await asyncio.sleep(1)
    assert isinstance(stream.refusal(topic), TopicAuthorizationFailedError)


@in_virtual_time
async def test_a_stream_goes_on_for_a_while_without_the_api_server(
    authority: FakeAuthority, guard: Guard
) -> None:
    """G8."""
    authority.allowed.add(ALL_TOPICS)
    access = await shown(guard, authority.token([AUDIENCE]))
    stream, topic = stream_of(access), TopicId(b"t" * 16)
    await access.learn([Demand(Operation.CONSUME, ORDERS)])
    authority.is_away = True
    assert access.credential is not None
    for _ in range(AWAY_MS // 30_000 - 1):
        await asyncio.sleep(30)
        guard.check(access.credential)
        assert stream.refusal(topic) is None
    await asyncio.sleep(30)
    assert isinstance(stream.refusal(topic), AccessUndecidedError)
    with pytest.raises(RefusedCredentialError, match="long time"):
        guard.check(access.credential)


@in_virtual_time
async def test_a_call_that_was_allowed_by_name_hardly_waits_for_an_api_server_that_hangs(
    authority: FakeAuthority, guard: Guard
) -> None:
    authority.allowed.add(("consume", "topics", "shop", "orders"))
    access = await shown(guard, authority.token([AUDIENCE]))
    await access.learn([Demand(Operation.CONSUME, ORDERS)])
    authority.delay_s = 60
    for _ in range(3):
        await asyncio.sleep(ALLOWED_MS / 1000)
        async with asyncio.timeout(2 * DUE_WAIT_S):
            await access.learn([Demand(Operation.CONSUME, ORDERS)])
        assert access.refusal(Operation.CONSUME, ORDERS) is None


@in_virtual_time
async def test_the_stream_of_an_account_that_is_gone_ends(
    authority: FakeAuthority, guard: Guard
) -> None:
    access = await shown(guard, authority.token([AUDIENCE]))
    assert access.credential is not None
    authority.revoked.add(READER)
    with pytest.raises(AuthenticationFailedError):
        await asyncio.wait_for(access.watch(), REVIEW_MS / 1000 + 10)


@in_virtual_time
async def test_a_caller_that_cannot_be_verified_now_may_try_again(
    authority: FakeAuthority, guard: Guard
) -> None:
    authority.is_away = True
    with pytest.raises(AccessUndecidedError):
        await shown(guard, authority.token([AUDIENCE]))


@in_virtual_time
async def test_nobody_is_never_asked_about(authority: FakeAuthority, guard: Guard) -> None:
    access = await shown(guard, "")
    assert access.identity == NOBODY
    with pytest.raises(AuthenticationFailedError):
        guard.check_known(access.identity)
    assert not authority.asked


@in_virtual_time
async def test_a_certificate_names_a_caller_and_none_of_kubernetes_own(
    authority: FakeAuthority, guard: Guard
) -> None:
    access = await shown(guard, "", "billing")
    # As Kubernetes' own, and as `kubectl auth can-i --as` asks.
    assert access.identity == Identity("billing", frozenset({"system:authenticated"}))
    for name in (READER, "system:masters"):
        with pytest.raises(RefusedCredentialError, match="names"):
            await shown(guard, "", name)


@in_virtual_time
async def test_what_a_list_leaves_out_is_not_asked_about_again(
    authority: FakeAuthority, guard: Guard
) -> None:
    access = await shown(guard, authority.token([AUDIENCE]))
    for number in range(1000):
        demand = Demand(Operation.DESCRIBE, named(ResourceKind.TOPICS, f"shop/t{number}"))
        assert not guard.is_listed(access.identity, demand)
    await asyncio.sleep(1)
    assert not authority.reviewed
