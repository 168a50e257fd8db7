import pytest

from millrace.cli.console.failures import ExitCode, Failure
from millrace.cli.moves.brokers import find
from millrace.client import BrokerInfo, ClusterDescription
from millrace.core.ids import BrokerId, ControllerEpoch

CLUSTER = ClusterDescription(
    "c",
    BrokerId(0),
    ControllerEpoch(1),
    tuple(
        BrokerInfo(BrokerId(number), name, "h:1", "", False)
        for number, name in enumerate(("broker-0", "2", "broker-2"))
    ),
)


@pytest.mark.parametrize(("word", "number"), [("0", 0), ("broker-0", 0), ("broker-2", 2)])
def test_a_broker_is_named_by_its_number_or_its_name(word: str, number: int) -> None:
    assert find(CLUSTER, word) == number


def test_a_number_is_no_name_where_a_broker_has_it() -> None:
    assert find(CLUSTER, "2") == 2


def test_a_broker_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(Failure, match="there is no broker broker-9") as failure:
        find(CLUSTER, "broker-9")
    assert "2 (broker-2)" in failure.value.hint
    assert failure.value.exit_code == ExitCode.NOT_FOUND
