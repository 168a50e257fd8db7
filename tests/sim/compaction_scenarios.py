"""Named scenarios of compacted topics: brokers clean their logs all the time, and fail meanwhile.

Most records have keys of their own, so the checkers of all topics judge them; others replace each
other (`Marks`). Segments are short, so that every few seconds some are replaced.
"""

from typing import Final

from tests.sim.clients import Load
from tests.sim.cluster import TopicPlan
from tests.sim.scenarios import Scenario, ScenarioCluster, again
from tests.sim.world import MILLISECOND, SECOND

_CONFIG: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "1000",
    "segment.ms": "1000",
    "min.insync.replicas": "2",
}


class Compacted(ScenarioCluster):
    topics = (
        TopicPlan(
            partitions=2,
            config=_CONFIG,
            loads=(Load(every_us=150 * MILLISECOND), Load(every_us=4 * SECOND)),
            polls_every_us=100 * MILLISECOND,
            reads_followers=True,
        ),
    )


class CompactedOfOne(ScenarioCluster):
    """What is committed is on one replica, so a leader that dies may take a tail with it."""

    topics = (
        TopicPlan(
            partitions=1,
            config={**_CONFIG, "min.insync.replicas": "1", "durability": "replicated"},
            loads=(Load(every_us=100 * MILLISECOND), Load(every_us=3 * SECOND)),
        ),
    )


COMPACTION_SCENARIOS: Final = (
    Scenario(
        about="P57",
        name="brokers that clean their logs lose power",
        cluster=Compacted,
        steps=[*again("F04", 7, 2.3, 10, 0.7)],
        mutants=[
            "the latest record of a key is removed",
            "keys of one slot of the map are taken for one",
            "a cleaned copy replaces segments before it is flushed",
        ],
    ),
    Scenario(
        about="P57",
        name="power goes while cleaned segments replace others",
        cluster=Compacted,
        steps=[*again("F69", 7, 2.9, 12, 2.5)],
        seeds=6,
        mutants=[
            "segments are removed before it is durable that their copy counts",
            "the segment behind the replaced ones is removed with them",
            "a copy that was replacing segments is forgotten",
        ],
    ),
    Scenario(
        about="P57",
        name="leaders of compacted logs die, and others come back with empty disks",
        cluster=Compacted,
        steps=[*again("F36", 7, 6, 4, 2), *again("F02", 10, 6, 4, 1)],
        mutants=["batches of several leader epochs become one"],
    ),
    Scenario(
        about="P57",
        name="followers fall behind logs that are cleaned",
        cluster=CompactedOfOne,
        steps=[*again("F01", 6, 8, 5, 6)],
        mutants=["a follower does not take the end of a batch"],
    ),
)
