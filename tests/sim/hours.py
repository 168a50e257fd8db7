"""A cluster that is simulated for many hours: small, with a light load, under all faults."""

import dataclasses

from tests.sim.broker import REPLICATION
from tests.sim.client import Load
from tests.sim.cluster import BrokerCluster, TopicPlan, drawn_config
from tests.sim.controlling import ControllerHost
from tests.sim.world import MILLISECOND, World

from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.lease import LeaseTimes


class PatientHost(ControllerHost):
    """With the lease as it is held in Kubernetes."""

    times = LeaseTimes(duration_ms=6_000, renew_deadline_ms=4_000, retry_ms=500, watch_ms=500)


class HoursCluster(BrokerCluster):
    """Three or four brokers, eight partitions, and about seven operations of clients a second."""

    config = ClusterConfig(controller_tick_ms=250, broker_heartbeat_interval_ms=500)
    new_host = PatientHost

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
