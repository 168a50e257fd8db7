"""A few of the attacks of `make abuse`, for a moment each: what bounds them.

How long others wait is not asserted: the machine decides it, too.
"""

from collections.abc import Iterator

import pytest
from tests.abuse.catalogue import ATTACKS
from tests.abuse.trial import attacked
from tests.abuse.world import World
from tests.integration.running_broker import wait_until

SECONDS = 1.5
CLOSED = 'millrace_connections_closed_total{listener="%s"}'
REACHED = 'millrace_limits_reached_total{limit="%s"}'
OPEN = 'millrace_connections{listener="%s"}'


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A broker that all of them attack, with low limits."""
    limits = {
        "limits.connections_per_host_rate_max": 50,
        "limits.connections_unknown_max": 100,
        "limits.principal_connections_max": 10,
        "limits.principal_calls_max": 200,
        "limits.handshake_ms_max": 1000,
    }
    with World(tmp_path_factory.mktemp("abused"), limits) as found:
        yield found


@pytest.mark.parametrize(
    ("attack", "metric"),
    [
        ("tls_storm_drpc", CLOSED % "clients_drpc"),
        ("tls_storm_grpc", ""),
        ("drpc_idle", REACHED % "connections_per_host_rate_max"),
        ("long_polls", REACHED % "principal_connections_max"),
        ("h2_hoarded_sessions", REACHED % "principal_calls_max"),
        ("h2_idle", REACHED % "connections_unknown_max"),
        ("tokens_drpc", 'millrace_refusals_total{error="AUTHENTICATION_FAILED",method="Hello"}'),
        ("tokens_grpc", CLOSED % "clients_tls"),
        ("strangers_grpc", CLOSED % "clients_tls"),
        ("h2_bombs", ""),
        ("oversize_messages", CLOSED % "clients_drpc"),
        ("drpc_unknown_methods", ""),
        ("batch_bombs", ""),
        ("kafka_half_frames", REACHED % "connections_per_host_rate_max"),
        ("kafka_huge_frame", CLOSED % "outside_kafka"),
        ("kafka_pipeline", ""),
        ("kafka_unread_answers", ""),
        ("kafka_strangers", CLOSED % "outside_kafka"),
    ],
)
def test_an_attack_is_bounded_and_others_are_served(world: World, attack: str, metric: str) -> None:
    before = world.broker.metrics().get(metric, 0)
    verdict = attacked(world, ATTACKS[attack], SECONDS, before_seconds=0.2)
    assert not verdict.trouble
    assert verdict.grown_mib < ATTACKS[attack].memory_mib_max

    def is_counted() -> bool:
        return world.broker.metrics().get(metric, 0) > before

    if metric:
        for _ in range(4):  # On a busy machine an attack does not get as far in its time.
            if is_counted():
                return
            assert not attacked(world, ATTACKS[attack], 3 * SECONDS, before_seconds=0.2).trouble
        wait_until(is_counted, f"{metric} counts it")


def test_a_stranger_that_watches_health_does_not_keep_its_connection(world: World) -> None:
    attacker = world.attack("health_watches", 100)  # For longer than is waited below.
    try:
        wait_until(lambda: world.broker.metrics()[OPEN % "clients_tls"] > 30, "it watches")
        closed = world.broker.metrics()[CLOSED % "clients_tls"]
        wait_until(
            lambda: world.broker.metrics()[CLOSED % "clients_tls"] > closed + 30, "it goes", 50
        )
    finally:
        attacker.kill()
        attacker.communicate(timeout=30)
