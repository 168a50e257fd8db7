"""Scenarios of transactions in topics to which something else happens.

They are compacted, or deleted and brought back while a group copies them, or lose records to a
person, who ends transactions by hand, too. Many of the transactions read what is there.
"""

import dataclasses
from typing import Final

from tests.sim.clients.transactional import TransactionPlan
from tests.sim.scenarios.scenario import Scenario, again
from tests.sim.scenarios.transactions import CUT_OFF, Alone, Replaceable, Transacting
from tests.sim.world import MILLISECOND

_PLAN: Final = TransactionPlan(every_us=100 * MILLISECOND, aborts=0.3, reads=0.3)
_BY_HAND: Final = dataclasses.replace(_PLAN, has_operator=True, sleeps=0.2)


_TOPIC: Final = dataclasses.replace(Transacting.source, partitions=2)


class Compacted(Alone):
    """Every second some segments are cleaned."""

    source = dataclasses.replace(
        _TOPIC,
        config={
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0",
            "delete.retention.ms": "1000",
            "segment.ms": "1000",
        },
    )
    transactions = _PLAN


class CompactedCopy(Transacting):
    """The copy is compacted, too."""

    source = Compacted.source
    transactions = _PLAN


class Returning(Transacting):
    """The original is deleted, and brought back."""

    source = dataclasses.replace(_TOPIC, comes_back=True)
    transactions = _PLAN


class Trimmed(Alone):
    """A person deletes records, whatever is open there."""

    source = dataclasses.replace(_TOPIC, is_trimmed=True)
    transactions = _PLAN


class ByHand(Transacting):
    """A person aborts transactions, and ends what hangs; a group copies the topic."""

    transactions = _BY_HAND


class ByHandAnew(Alone):
    """A person does, and who stands still for two seconds is replaced."""

    transactions = _BY_HAND
    cluster = Replaceable.cluster


class Reading(Alone):
    """All transactions read what others write."""

    transactions = dataclasses.replace(_PLAN, writers=3, reads=1)


# fmt: off
TRANSACTIONAL_TOPIC_SCENARIOS: Final = (
    Scenario("T3", "logs with aborted transactions are compacted, and leaders die", Compacted,
             again("F02", 8, 8, 3, 4), by_day=True, seeds=3, quiet_s=25,
             mutants=["an aborted record replaces the committed one of its key",
                      "what is not decided is compacted"]),
    Scenario("T3: copies", "a compacted topic is copied into another one, and leaders die",
             CompactedCopy, again("F02", 8, 8, 3, 4), seeds=3, quiet_s=25),
    Scenario("T8: copies", "a topic is deleted and brought back while a group copies it", Returning,
             again("F74", 8, 10, 3, 4), by_day=True, seeds=5, quiet_s=25,
             mutants=["a copy commits without the position of a topic that is gone",
                      "a member waits for ever for a group that has not heard of a topic's end"]),
    Scenario("T6", "records are deleted beside open transactions", Trimmed,
             again("F02", 8, 8, 3, 4), by_day=True, seeds=3, quiet_s=25,
             mutants=["what is stable ends before the log's start"]),
    Scenario("P54", "transactions are ended by hand, while brokers die", ByHand,
             again("F01", 6, 8, 4, 5), by_day=True, seeds=3, quiet_s=25),
    Scenario("P54, P55", "transactions are ended by hand, while brokers stand still or are cut off",
             ByHandAnew, [*again("F08", 6, 5, 8, 2.5), *again(CUT_OFF, 8, 10, 4, 4)], seeds=4,
             quiet_s=25),
    Scenario("P52: reads", "all transactions read what others write, and leaders die", Reading,
             again("F02", 6, 7, 4, 4), seeds=2, quiet_s=25,
             mutants=["readers see open transactions", "nobody hears what was aborted"]),
)
# fmt: on
