"""Named scenarios of tiered topics: closed segments move to an HDD all the time, and brokers fail.

Segments are short, so that every few seconds one moves. Now and then readers start again from the
beginning, and read what lies on the HDD.
"""

from typing import Final

from tests.sim.clients.readers_and_writers import Load
from tests.sim.faults.operators import TIER_CHANGE
from tests.sim.faults.processes import MOVE_CUT
from tests.sim.scenarios.scenario import (
    ALL_DIE,
    AllDeadAndAnyMayLead,
    Scenario,
    ScenarioCluster,
    again,
)
from tests.sim.settings import Settings
from tests.sim.topics import TopicPlan
from tests.sim.world import MILLISECOND

_CONFIG: Final = {
    "media": "tiered",
    "local.retention.ms": "0",
    "segment.ms": "1000",
    "min.insync.replicas": "2",
}


class Tiered(ScenarioCluster):
    settings = Settings(has_hdd=True)
    topics = (
        TopicPlan(
            partitions=2,
            config=_CONFIG,
            loads=(Load(every_us=150 * MILLISECOND),),
            polls_every_us=100 * MILLISECOND,
            reads_followers=True,
        ),
    )


class TieredAndAnyMayLead(AllDeadAndAnyMayLead):
    settings = Settings(has_hdd=True)
    topics = (
        TopicPlan(
            partitions=1,
            config={
                **_CONFIG,
                "min.insync.replicas": "1",
                "unclean.leader.election.enable": "true",
            },
        ),
    )


# fmt: off
TIER_SCENARIOS: Final = (
    Scenario("P76", "power goes while segments move to another disk", Tiered,
             [*again(MOVE_CUT, 6, 2.9, 10, 2.5)], by_day=True,
             mutants=["a segment counts on another disk before its copy is flushed",
                      "a segment counts on another disk before the name of its copy is durable",
                      "a segment is removed before it is durable that its copy counts",
                      "a segment is removed although its copy does not count",
                      "a log forgets on which disk its oldest segments lie"]),
    Scenario("P76", "leaders of tiered logs die, and others come back with empty disks", Tiered,
             [*again("F36", 8, 6, 3, 2), *again("F02", 10, 6, 4, 1)],
             mutants=["a segment moves before it is committed"]),
    Scenario("P76",
             "all die, the first that is back lacks something, and the others cut their tiers",
             TieredAndAnyMayLead, [(6, "F09", 13.5), (18, ALL_DIE, 12)],
             mutants=["segments that were cut off still count on the other disk"]),
    Scenario("P76", "segments come back to the SSD and leave again, while power goes", Tiered,
             [*again(TIER_CHANGE, 8, 3, 8, 0.1), *again("F04", 9, 2.6, 9, 0.7)],
             mutants=["the other disk is forgotten when the first segment has come back",
                      "a segment that comes back counts before it has its name"]),
)
# fmt: on
