"""A small cluster with a light load that is simulated for many hours, under all faults."""

import dataclasses
from typing import Final

from tests.sim.clients.readers_and_writers import Load
from tests.sim.drawn_clusters import BrokerCluster, disposable_topic, drawn_config
from tests.sim.settings import CLUSTER, COORDINATION, REPLICATION, Settings
from tests.sim.swarm import Plan
from tests.sim.topics import TopicPlan
from tests.sim.world import MILLISECOND, MINUTE, World

from millrace.core.broker_config import CoordinationKind

HOUR: Final = 60 * MINUTE
_CLUSTER: Final = dataclasses.replace(
    CLUSTER,
    controller_tick_ms=500,
    broker_heartbeat_interval_ms=500,
    broker_reconnect_grace_ms=600,
)
_COORDINATION: Final = dataclasses.replace(COORDINATION, kind=CoordinationKind.KUBERNETES)
"""With the lease duration of Kubernetes."""


class HoursCluster(BrokerCluster):
    """Three or four brokers, eight partitions, and some seven records a second.

    The cost of an hour depends on sends, hardly on polls; so sends come in rare bursts.
    """

    def shape(self, world: World) -> None:
        dice = world.random("shape")
        self.brokers = dice.choice((3, 3, 3, 4))
        self.settings = Settings(
            replication=dataclasses.replace(
                REPLICATION, replica_lag_time_max_ms=dice.choice((2_000, 10_000))
            ),
            cluster=_CLUSTER,
            coordination=_COORDINATION,
            scrub_bytes_per_second=4_000,  # So that the scrubbed log grows slowly.
        )
        self.topics = [
            TopicPlan(
                name=f"t{number}",
                partitions=4,
                config=drawn_config(dice),
                loads=(Load(every_us=3_600 * MILLISECOND, burst_max=3),),
                polls_every_us=1_000 * MILLISECOND,
            )
            for number in range(2)
        ]
        if dice.random() < 0.25:
            load = Load(every_us=1_200 * MILLISECOND, burst_max=2)
            self.topics.append(dataclasses.replace(disposable_topic(dice), loads=(load,)))


STAYING: Final = frozenset(
    "F10 F12 F15 F16 F17 F18 F19 F20 F22 F23 F33 F34 F40 F42 F43 F70 F72 F73".split()  # noqa: SIM905
)
"""Families after which the leaders mostly stay the same."""


def may_count(plan: Plan, faults_per_hour_min: float) -> bool:
    """Whether a run is under faults for long enough, and a leader change is likely."""
    moves = any(fault.family.fault_id not in STAYING for fault in plan.faults)
    return moves and len(plan.faults) >= faults_per_hour_min * plan.end_us / HOUR
