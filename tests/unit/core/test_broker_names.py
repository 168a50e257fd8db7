"""The names of brokers in their certificates (G2)."""

import pytest

from millrace.core.broker_names import BrokerName

NAME = BrokerName("cluster.local", "shop", "logs", "logs-b-0")
URI = "spiffe://cluster.local/ns/shop/cluster/logs/broker/logs-b-0"


def test_a_name_is_read_as_it_is_written() -> None:
    assert NAME.uri == URI
    assert BrokerName.parse(URI) == NAME


@pytest.mark.parametrize(
    "uri",
    [
        "",
        URI.replace("spiffe", "https"),
        URI.replace("shop", ""),
        URI.replace("shop", "shop/a"),
        URI.replace("logs-b-0", "*"),
        f"{URI}/more",
        f"{URI}\n",
        "spiffe://cluster.local/ns/shop/sa/reports",
    ],
)
def test_other_names_are_no_broker_s(uri: str) -> None:
    assert BrokerName.parse(uri) is None


@pytest.mark.parametrize("part", ["", "a/b", "a b", "ä", "x" * 256])
def test_what_could_be_another_name_is_in_none(part: str) -> None:
    with pytest.raises(ValueError, match="cannot be in a certificate"):
        _ = NAME._replace(namespace=part).uri


def test_brokers_of_a_cluster_differ_in_their_own_name_alone() -> None:
    assert NAME.is_of_cluster_of(NAME._replace(broker="logs-b-1"))
    for other in (
        NAME._replace(cluster="other"),
        NAME._replace(namespace="other"),
        NAME._replace(trust_domain="other"),
    ):
        assert not NAME.is_of_cluster_of(other)
