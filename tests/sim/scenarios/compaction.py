"""Named scenarios of compacted topics: brokers clean their logs all the time, and fail meanwhile.

Most records have keys of their own, so the checkers of all topics judge them; others replace each
other (`Marks`). Segments are short, so that every few seconds some are replaced.
"""

from typing import Final

from tests.sim.clients.readers_and_writers import Load
from tests.sim.scenarios.scenario import ALL_DIE, Scenario, ScenarioCluster, again
from tests.sim.settings import Settings
from tests.sim.topics import TopicPlan
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


class CompactedAtOnce(ScenarioCluster):
    """Nothing is flushed, and tombstones go as soon as they may."""

    topics = (
        TopicPlan(
            partitions=2,
            config={**_CONFIG, "delete.retention.ms": "0", "durability": "replicated"},
            loads=(Load(every_us=150 * MILLISECOND), Load(every_us=4 * SECOND)),
        ),
    )


class CompactedSeldom(ScenarioCluster):
    """The settings of a topic decide when its logs are due."""

    topics = (
        TopicPlan(
            partitions=2,
            config={
                **_CONFIG,
                "min.cleanable.dirty.ratio": "0.7",
                "min.compaction.lag.ms": "2000",
                "max.compaction.lag.ms": "9000",
                "delete.retention.ms": "3000",
            },
            loads=(Load(every_us=150 * MILLISECOND), Load(every_us=700 * MILLISECOND)),
        ),
    )


class CompactedInPasses(ScenarioCluster):
    """The map holds few keys, and tombstones outlive some passes."""

    settings = Settings(cleaner_dedupe_buffer_size=2 << 10)
    topics = (
        TopicPlan(
            partitions=2,
            config={**_CONFIG, "delete.retention.ms": "5000"},
            loads=(Load(every_us=150 * MILLISECOND), Load(every_us=4 * SECOND)),
        ),
    )


class CompactedSlowly(ScenarioCluster):
    """A pass takes some seconds; appends, cuts and kills fall into it."""

    settings = Settings(cleaner_io_max_bytes_per_second=10_000)
    topics = (
        TopicPlan(
            partitions=2,
            config={**_CONFIG, "min.insync.replicas": "1", "durability": "replicated"},
            loads=(Load(every_us=700 * MILLISECOND), Load(every_us=3 * SECOND)),
        ),
    )


class CompactedUncleanly(ScenarioCluster):
    """Any live replica may lead, so logs are cut below what was compacted."""

    topics = (
        TopicPlan(
            partitions=1,
            config={
                **_CONFIG,
                "min.insync.replicas": "1",
                "durability": "replicated",
                "unclean.leader.election.enable": "true",
            },
            loads=(Load(every_us=100 * MILLISECOND), Load(every_us=SECOND)),
        ),
    )


# fmt: off
COMPACTION_SCENARIOS: Final = (
    Scenario("P57", "logs are compacted when their settings say so", CompactedSeldom,
             [(15, "F38", 5)], quiet_s=15, mutants=["a segment is compacted within its lag",
                      "a head waits however old it is",
                      "a log is compacted however little of it is new",
                      "tombstones whose horizon is over wait for new records",
                      "a tombstone goes in the pass that finds it"]),
    Scenario("P57", "logs with more keys than the map holds are compacted in several passes",
             CompactedInPasses, [*again("F02", 8, 9, 3, 4)],
             mutants=["a full map counts for all of its last batches",
                      "a tombstone gets a later horizon with each pass",
                      "a tombstone takes the horizon of the batch before it",
                      "segments become one however large it is"]),
    Scenario("P57", "logs are written, cut and closed while they are compacted slowly",
             CompactedSlowly, [*again("F02", 8, 8, 4, 3), *again("F04", 11, 8, 4, 3)],
             mutants=["an active segment that is empty counts as closed"]),
    Scenario("P57", "logs are cut below what was compacted", CompactedUncleanly,
             [(6, "F09", 13.5), (18, ALL_DIE, 12)], by_day=True,
             mutants=["a cut leaves the cleaner point where it was"]),
    Scenario("P57", "leaders that clean their logs are cut off from their followers", Compacted,
             [*again("F12", 7, 7, 4, 5)], mutants=["what is not committed is compacted",
                      "the active segment is compacted",
                      "the last batch of a producer goes with its records"]),
    Scenario("P57", "brokers that clean their logs lose power", Compacted,
             [*again("F04", 7, 2.3, 10, 0.7)], mutants=["the latest record of a key is removed",
                      "keys of one slot of the map are taken for one",
                      "a cleaned copy replaces segments before it is flushed"]),
    Scenario("P57", "brokers lose power, and with it tombstones that others have compacted away",
             CompactedAtOnce, [*again("F04", 7, 5.3, 6, 3)], seeds=3,
             mutants=["tombstones go while another replica may have what they delete"]),
    Scenario("P57", "power goes while cleaned segments replace others", Compacted,
             [*again("F69", 7, 2.9, 12, 2.5)], seeds=6,
             mutants=["segments are removed before it is durable that their copy counts",
                      "the segment after the replaced ones is removed with them",
                      "a copy that was replacing segments is forgotten"]),
    Scenario("P57", "leaders of compacted logs die, and others come back with empty disks",
             Compacted, [*again("F36", 7, 6, 4, 2), *again("F02", 10, 6, 4, 1)],
             mutants=["batches of several leader epochs become one"]),
    Scenario("P57", "followers fall behind logs that are cleaned", CompactedOfOne,
             [*again("F01", 6, 8, 5, 6)], mutants=["a follower does not take the end of a batch",
                      "a read at an offset inside a batch skips that batch",
                      "a replica that is out of sync need not have compacted its log"]),
)
# fmt: on
