import pytest

from millrace.core.callers import ANONYMOUS
from millrace.core.errors import (
    AccessDeniedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)
from millrace.core.guard.access import ResourceKind, named
from millrace.core.guard.producer_owners import ProducerOwners
from millrace.core.ids import NO_PRODUCER_ID, ProducerId

ID = ProducerId(7)
SHOP = named(ResourceKind.TRANSACTIONS, "shop/orders")


def test_an_id_is_good_for_its_owner_alone() -> None:
    owners = ProducerOwners()
    owners.check(ID, "stranger")  # Nobody knows better.
    owners.keep(ID, "shop")
    owners.check(ID, "shop")
    for stranger in ("stranger", ANONYMOUS):
        with pytest.raises(TopicAuthorizationFailedError, match="producer id 7"):
            owners.check(ID, stranger)
    with pytest.raises(TransactionalIdAuthorizationFailedError, match="shop/orders"):
        owners.check(ID, SHOP)


def test_the_id_of_a_transaction_is_good_for_nothing_else() -> None:
    owners = ProducerOwners()
    owners.keep(ID, SHOP)
    owners.check(ID, named(ResourceKind.TRANSACTIONS, "shop/orders"))
    for other in ("shop", named(ResourceKind.TRANSACTIONS, "shop/returns")):
        with pytest.raises(AccessDeniedError):
            owners.check(ID, other)


def test_callers_that_prove_nothing_own_nothing_and_batches_without_an_id_are_of_nobody() -> None:
    owners = ProducerOwners()
    owners.keep(ID, ANONYMOUS)
    owners.keep(NO_PRODUCER_ID, "shop")
    assert not len(owners)
    owners.check(ID, "shop")  # The same producer, since it has a token.
    owners.check(NO_PRODUCER_ID, "stranger")


def test_a_flood_of_ids_makes_a_broker_forget_none_that_is_in_use() -> None:
    owners = ProducerOwners(owners_max=10)
    owners.keep(ID, "shop")
    for number in range(100):
        owners.keep(ProducerId(100 + number), "stranger")
        owners.keep(ID, "shop")
    assert len(owners) == 10
    with pytest.raises(AccessDeniedError):
        owners.check(ID, "stranger")


def test_a_flood_of_ids_of_one_principal_makes_a_broker_forget_no_idle_one_of_others() -> None:
    owners = ProducerOwners(owners_max=100)
    idle = [ProducerId(number) for number in range(80)]
    for producer_id in idle:
        owners.keep(producer_id, f"shop {producer_id}")
    for number in range(1000):
        owners.keep(ProducerId(1000 + number), "stranger")
    assert len(owners) == 100
    for producer_id in idle:
        with pytest.raises(AccessDeniedError):
            owners.check(producer_id, "stranger")
    with pytest.raises(AccessDeniedError):  # Of its own, those that were used last are kept.
        owners.check(ProducerId(1999), "shop")
    owners.check(ProducerId(1000), "shop")


def test_a_principal_alone_may_have_all_ids_until_others_need_their_share() -> None:
    owners = ProducerOwners(owners_max=100)
    for number in range(100):
        owners.keep(ProducerId(number), "stranger")
    assert len(owners) == 100
    for number in range(80):
        owners.keep(ProducerId(1000 + number), "shop")
        owners.keep(ProducerId(2000 + number), "stranger")
    assert len(owners) == 100
    with pytest.raises(AccessDeniedError):
        owners.check(ProducerId(1079), "stranger")


def test_an_id_that_goes_to_another_owner_counts_for_that_one_alone() -> None:
    owners = ProducerOwners(owners_max=10)
    for _ in range(3):
        for number in range(10):
            owners.keep(ProducerId(number), "stranger")
        for number in range(10):
            owners.keep(ProducerId(number), SHOP)
    assert len(owners) == 10
    owners.keep(ID, ANONYMOUS)
    assert len(owners) == 9
