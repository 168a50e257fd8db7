"""Which brokers a plan may give replicas to."""

import pytest

from millrace.cli.commands.reassign import _candidates
from millrace.cli.console.failures import Failure
from millrace.client import BrokerInfo, ClusterDescription
from millrace.core.ids import BrokerId, ControllerEpoch


def broker(
    number: int,
    *,
    reluctance: str = "",
    is_fenced: bool = False,
    is_draining: bool = False,
    is_drained: bool = False,
) -> BrokerInfo:
    return BrokerInfo(
        BrokerId(number),
        f"b{number}",
        "h:1",
        "",
        is_fenced,
        is_draining=is_draining or is_drained,
        is_drained=is_drained,
        reluctance=reluctance,
    )


CLUSTER = ClusterDescription(
    "c",
    BrokerId(0),
    ControllerEpoch(1),
    (
        broker(0),
        broker(1, reluctance="slow disk"),
        broker(2, is_fenced=True),
        broker(3, is_drained=True),
        broker(4),
        broker(5, is_draining=True),
    ),
    unreachable=(BrokerId(4),),
)


def chosen(brokers: list[int] | None = None, *removed: int) -> tuple[list[int], list[int]]:
    candidates, nothing_new = _candidates(CLUSTER, brokers, removed)
    return [candidate.broker_id for candidate in candidates], [
        broker.broker_id for broker in nothing_new
    ]


def test_who_is_away_or_has_a_bad_disk_keeps_its_replicas_and_gets_no_new_ones() -> None:
    assert chosen() == ([0, 1, 2, 4, 5], [1, 2, 4, 5])
    assert chosen(None, 1) == ([0, 2, 4, 5], [2, 4, 5])


def test_a_broker_that_is_to_be_removed_keeps_nothing() -> None:
    assert chosen(None, 2, 4) == ([0, 1, 5], [1, 5])


def test_a_broker_that_is_named_gets_replicas() -> None:
    assert chosen([0, 1]) == ([0, 1], [])


@pytest.mark.parametrize(
    ("number", "why"), [(2, "it is not there"), (3, "it is drained"), (4, "it does not answer")]
)
def test_a_broker_that_cannot_take_replicas_is_refused_with_the_reason(
    number: int, why: str
) -> None:
    with pytest.raises(Failure, match=f"broker {number} cannot take replicas now: {why}"):
        chosen([0, number])
