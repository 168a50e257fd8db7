"""How a person on Kubernetes accepts an older copy of a broker's disk."""

import tomllib
from dataclasses import replace

import pytest
from tests.fakes.cluster import Cluster, registration

from millrace.broker.controller.older_copy import with_command
from millrace.core import settings
from millrace.core.broker_config import (
    OLDER_COPY_ANNOTATION,
    BrokerConfig,
    CoordinationConfig,
    CoordinationKind,
    KubernetesConfig,
    NodeConfig,
)
from millrace.core.errors import InvalidConfigError
from millrace.core.ids import BrokerEpoch
from millrace.core.metadata.requests import AcceptedCopy, copy_to_accept


def refusal() -> tuple[str, str]:
    """Return what a controller says of an older copy, and the epochs that accept it."""
    cluster = Cluster(1)
    first = cluster.life(0)
    cluster.driver.kill(first.broker_id)
    newest = cluster.restart(0, "2")
    cluster.driver.kill(first.broker_id)
    request = replace(registration(0, "3"), directory_epoch=first.broker_epoch)
    error = cluster.driver.ask(request)
    assert isinstance(error, InvalidConfigError)
    return error.message, f"{first.broker_epoch}/{newest.broker_epoch}"


def config(kind: CoordinationKind, namespace: str = "") -> BrokerConfig:
    kubernetes = KubernetesConfig(namespace=namespace)
    return BrokerConfig(
        log_dirs=("log",),
        node=NodeConfig(name="logs-b-2"),
        coordination=CoordinationConfig(kind=kind, path="c", kubernetes=kubernetes),
    )


@pytest.mark.parametrize(("namespace", "where"), [("shop", "-n shop "), ("", "")])
def test_a_refused_copy_on_kubernetes_comes_with_the_command_that_accepts_it(
    namespace: str, where: str
) -> None:
    message, epochs = refusal()
    command = f"kubectl annotate --overwrite {where}pod logs-b-2 {OLDER_COPY_ANNOTATION}={epochs}"
    found = with_command(message, config(CoordinationKind.KUBERNETES, namespace))
    assert found.endswith(f"On Kubernetes: `{command}`")


def test_the_setting_that_a_refusal_names_is_one_of_a_broker_and_is_found_again() -> None:
    copy = AcceptedCopy(BrokerEpoch(17), BrokerEpoch(20))
    values = tomllib.loads(f"log_dirs = ['log']\ncoordination.path = 'c'\n{copy.as_setting}")
    assert settings.parse(BrokerConfig, values).node.accept_older_copy == str(copy)
    assert copy_to_accept(f"accept it by {copy.as_setting}. Nothing was changed") == copy


def test_other_refusals_and_other_brokers_get_no_command() -> None:
    message, _ = refusal()
    assert with_command(message, config(CoordinationKind.SQLITE)) == message
    other = "broker 'b': its log directories belong to broker 3"
    assert with_command(other, config(CoordinationKind.KUBERNETES)) == other
