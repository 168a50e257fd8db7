"""Scenarios of transactions in topics to which something else happens.

They are compacted, or deleted and brought back, or lose records to a person, who aborts
transactions, too.

The writers read in many of their transactions. Each scenario runs with a largest epoch of 2 in half
of its seeds.
"""

import dataclasses
from typing import Final

from tests.sim.clients import Load
from tests.sim.cluster import TopicPlan
from tests.sim.scenarios import Scenario, ScenarioCluster, again
from tests.sim.settings import TRANSACTIONS, Settings
from tests.sim.transactional_clients import TransactionPlan
from tests.sim.world import MILLISECOND, SECOND, World

from millrace.core.coordinator.transactions.config import EPOCH_MAX

_PLAN: Final = TransactionPlan(every_us=100 * MILLISECOND, aborts=0.3, reads=0.3)


class _Transacting(ScenarioCluster):
    """Two writers of transactions."""

    def __init__(self, world: World) -> None:
        epoch_max = 2 if world.seed % 2 else EPOCH_MAX
        self.settings = Settings(
            transactions=dataclasses.replace(TRANSACTIONS, epoch_max=epoch_max)
        )
        super().__init__(world)


class Compacted(_Transacting):
    """Every second some segments are cleaned, and many transactions are aborted."""

    topics = (
        TopicPlan(
            partitions=2,
            config={
                "cleanup.policy": "compact",
                "min.cleanable.dirty.ratio": "0",
                "delete.retention.ms": "1000",
                "segment.ms": "1000",
            },
            loads=(Load(every_us=SECOND),),
            transactions=_PLAN,
        ),
    )


class Returning(_Transacting):
    """A topic that operators delete, and bring back."""

    topics = (
        TopicPlan(
            partitions=2, loads=(Load(every_us=SECOND),), transactions=_PLAN, comes_back=True
        ),
    )


class Trimmed(_Transacting):
    """A person deletes records, whatever is open there."""

    topics = (
        TopicPlan(
            partitions=2, loads=(Load(every_us=SECOND),), transactions=_PLAN, is_trimmed=True
        ),
    )


class ByHand(_Transacting):
    """A person aborts transactions, and looks for hanging ones; a group copies the topic."""

    topics = (
        TopicPlan(
            partitions=2,
            loads=(Load(every_us=SECOND),),
            transactions=dataclasses.replace(_PLAN, has_operator=True, sleeps=0.2),
        ),
        TopicPlan(name="copy", partitions=2, loads=(), copies="t"),
    )


class Reading(_Transacting):
    """All transactions read what others write."""

    topics = (
        TopicPlan(
            partitions=3, loads=(), transactions=dataclasses.replace(_PLAN, writers=3, reads=1)
        ),
    )


# fmt: off
TRANSACTIONAL_TOPIC_SCENARIOS: Final = (
    Scenario("T3", "logs with aborted transactions are compacted, and leaders die", Compacted,
             again("F02", 8, 8, 3, 4), by_day=True, seeds=4, quiet_s=25,
             mutants=["an aborted record replaces the committed one of its key",
                      "what is not decided is compacted"]),
    Scenario("T8", "a topic is deleted and brought back while transactions are open", Returning,
             again("F74", 6, 12, 3, 6), by_day=True, seeds=4, quiet_s=25,
             mutants=["markers of a topic that is gone for now are lost"]),
    Scenario("T6", "records are deleted beside open transactions", Trimmed,
             again("F02", 8, 8, 3, 4), by_day=True, seeds=2, quiet_s=25,
             mutants=["what is stable ends before the log's start"]),
    Scenario("P54", "open transactions are aborted by hand, while brokers die", ByHand,
             again("F01", 6, 8, 4, 5), seeds=4, quiet_s=25),
    Scenario("P52: reads", "all transactions read what others write, and leaders die", Reading,
             again("F02", 6, 7, 4, 4), seeds=2, quiet_s=25,
             mutants=["readers see open transactions", "nobody hears what was aborted"]),
)
# fmt: on
