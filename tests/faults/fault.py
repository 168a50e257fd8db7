"""Faults of processes, by their ids in docs/safety.md, and the scene that they are injected in.

A fault may leave the cluster broken: the round heals it afterwards.
"""

import random
from dataclasses import dataclass
from typing import Final

from tests.faults.catalogue import SEEN_SECONDS_MAX, Catalogue, NotSeenError
from tests.faults.cluster import Cluster, Node
from tests.faults.kafka.side import KafkaSide
from tests.faults.latest import Latest
from tests.faults.load import Load
from tests.faults.members import Members
from tests.faults.metadata import SURE_KEYS, View
from tests.faults.nearby import Nearby
from tests.faults.transactional import Transactional

UPGRADE: Final = "F79"
"""The brokers of a round with this fault begin with the last release. So it comes first."""


@dataclass(slots=True)
class Scene:
    """The setting of faults: the cluster, its load and the group that reads it, the dice, the check
    of a reader's zone, the compacted topic, the transactions, and the clients of Kafka."""

    cluster: Cluster
    load: Load
    members: Members
    dice: random.Random
    nearby: Nearby
    latest: Latest
    transactional: Transactional
    kafka: KafkaSide

    @property
    def view(self) -> View:
        return self.cluster.view

    def key(self) -> int:
        """Any partition under load that is written with `acks=all`."""
        self.cluster.look()
        return self.dice.choice(SURE_KEYS)

    def leader(self, key: int) -> Node:
        return self.cluster.node(self.view.partition(key).leader)

    def follower(self, key: int) -> Node:
        """Any in-sync replica of a partition, except its leader."""
        return self.dice.choice(self.cluster.others(self.leader(key)))

    def led_key(self, node: Node) -> int:
        """Any partition that a node leads.

        Raises:
            NotSeenError: it leads none.
        """
        self.cluster.look()
        return self.dice.choice(self.cluster.led_keys(node.name))

    def any_node(self) -> Node:
        return self.dice.choice(self.cluster.nodes)

    def leader_beside_the_controller(self) -> tuple[Node, int]:
        """A leader that is not the controller, and a partition that it leads."""
        controller = self.cluster.controller
        leaders = [node for node in self.cluster.others(controller) if self.view.led_by(node.name)]
        if not leaders:
            raise NotSeenError("the controller alone leads")
        leader = self.dice.choice(leaders)
        return leader, self.led_key(leader)

    def wait_for_new_leader(self, key: int, before: View) -> str:
        """Wait until a partition has a leader in a later epoch; return a description."""
        return self.cluster.wait_for_new_leader(key, before)

    def wait_until_out_of_sync(
        self, key: int, node: Node, seconds: float = SEEN_SECONDS_MAX
    ) -> str:
        """Wait until a replica is not in sync any more."""
        broker_id = self.cluster.id_of(node)
        self.cluster.wait_for(
            lambda view: broker_id not in view.isr_ids(key),
            f"{node.name} leaves the ISR of key {key}",
            seconds,
        )
        return f"key {key}: {node.name} left the ISR"

    def wait_until_willing(self, node: Node) -> None:
        """Wait until a broker that let others lead would lead again."""
        self.cluster.wait_for(
            lambda view: not view.broker(node.name).reluctance,
            f"{node.name} would lead again",
            2 * SEEN_SECONDS_MAX,
        )

    def wait_for_new_life(self, node: Node, before: View, seconds: float = SEEN_SECONDS_MAX) -> str:
        """Wait until a broker has registered again."""
        old = before.broker(node.name).broker_epoch
        self.cluster.wait_for(
            lambda view: view.broker(node.name).broker_epoch > old,
            f"{node.name} registers anew",
            seconds,
        )
        return f"{node.name} registered anew"


FAULTS: Final = Catalogue[Scene]()
fault = FAULTS.fault
