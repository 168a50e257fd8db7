"""Scenarios of an application whose processes share transactions (T19 to T24)."""

import dataclasses
from typing import Final

from tests.sim.clients.shared import ApplicationPlan
from tests.sim.clients.transactional import TransactionPlan
from tests.sim.scenarios.scenario import Scenario, again
from tests.sim.scenarios.transactions import (
    DECIDED,
    JOINED,
    LATE_COMMITS,
    LATE_MARKERS,
    LOST_BATCHES,
    UNDECIDED,
    Alone,
)
from tests.sim.settings import TRANSACTIONS
from tests.sim.world import MILLISECOND, SECOND


class Sharing(Alone):
    """An application, and nobody else."""

    transactions = TransactionPlan(writers=0)
    application = ApplicationPlan(every_us=100 * MILLISECOND)
    source = dataclasses.replace(Alone.source, loads=(), application=application)


class Leased(Sharing):
    """Its transactions often last for longer than their lease."""

    source = dataclasses.replace(
        Sharing.source,
        application=dataclasses.replace(Sharing.application, lasts=0.4, sleeps=0.3, dies=0.05),
    )


class Forgetful(Sharing):
    """What is not used is forgotten after a second, but not a version; brokers look each minute."""

    coordinators = dataclasses.replace(TRANSACTIONS, id_expiration_ms=1_000)
    source = dataclasses.replace(
        Sharing.source,
        application=ApplicationPlan(every_us=SECOND, intrudes=0.8),
    )


# fmt: off
SHARED_SCENARIOS: Final = (
    Scenario("T19-T24", "an application of several processes, as every day", Sharing, by_day=True,
             seeds=3, quiet_s=25,
             mutants=["attempts count that nobody has named",
                      "a run that was replaced opens again",
                      "any version of any origin is opened",
                      "a version is done for all origins",
                      "each process that asks opens a transaction",
                      "a version is forgotten while a transaction is open"]),
    Scenario("T19", "commits of an application come later than it waits", Sharing,
             again(LATE_COMMITS, 4, 14, 4, 12), seeds=4, quiet_s=25,
             mutants=["a late commit decides the transaction that is open",
                      "an abort after the commit is told that all is well"]),
    Scenario("T19, T20", "coordinators of an application die", Sharing,
             [*again(UNDECIDED, 6, 14, 3, 4), *again(DECIDED, 11, 14, 3, 4),
              *again(JOINED, 15, 14, 3, 4)], seeds=4, quiet_s=25),
    Scenario("T22", "leaders die while executors write", Sharing, again("F02", 6, 7, 4, 4),
             seeds=3, quiet_s=25),
    Scenario("T23", "transactions last longer than their lease", Leased, by_day=True, seeds=3,
             quiet_s=40, mutants=["no lease is renewed", "a lease does not end"]),
    Scenario("T24", "what is not used is forgotten soon", Forgetful, again("F02", 6, 7, 3, 4),
             seeds=3, quiet_s=60, mutants=["versions expire"]),
    Scenario("P50: shares", "markers and batches of an application come late", Sharing,
             [*again(LATE_MARKERS, 5, 14, 2, 12), *again(LOST_BATCHES, 8, 14, 2, 8)], seeds=3,
             quiet_s=25),
)
# fmt: on
