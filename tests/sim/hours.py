"""A cluster that is simulated for many hours: small, with a light load, under all faults."""

import dataclasses

from tests.sim.broker import REPLICATION
from tests.sim.client import Load
from tests.sim.cluster import BrokerCluster, TopicPlan, drawn_config
from tests.sim.world import MILLISECOND, World

from millrace.core.metadata.cluster_config import ClusterConfig


class HoursCluster(BrokerCluster):
    """Three or four brokers, eight partitions, and about seven operations of clients a second."""

    config = ClusterConfig(controller_tick_ms=250)

    def shape(self, world: World) -> None:
        dice = world.random("shape")
        self.brokers = dice.choice((3, 3, 3, 4))
        self.replication = dataclasses.replace(
            REPLICATION, replica_lag_time_max_ms=dice.choice((2_000, 10_000))
        )
        self.topics = [
            TopicPlan(
                name=f"t{number}",
                partitions=4,
                config=drawn_config(dice),
                loads=(Load(every_us=2_000 * MILLISECOND, burst_max=3),),
                polls_every_us=2_500 * MILLISECOND,
            )
            for number in range(2)
        ]
