"""All named scenarios: bugs of other systems, and situations in which one rule decides."""

from typing import Final

from tests.sim.scenarios.clients import CLIENT_SCENARIOS
from tests.sim.scenarios.compaction import COMPACTION_SCENARIOS
from tests.sim.scenarios.drpc import DRPC_SCENARIOS
from tests.sim.scenarios.groups import GROUP_SCENARIOS
from tests.sim.scenarios.guard import GUARD_SCENARIOS
from tests.sim.scenarios.kafka import KAFKA_SCENARIOS
from tests.sim.scenarios.put_back import PUT_BACK_SCENARIOS
from tests.sim.scenarios.quotas import QUOTA_SCENARIOS
from tests.sim.scenarios.rules import RULE_SCENARIOS
from tests.sim.scenarios.scenario import SCENARIOS, Scenario
from tests.sim.scenarios.shared import SHARED_SCENARIOS
from tests.sim.scenarios.tiers import TIER_SCENARIOS
from tests.sim.scenarios.transactional_topics import TRANSACTIONAL_TOPIC_SCENARIOS
from tests.sim.scenarios.transactions import TRANSACTION_SCENARIOS

ALL_SCENARIOS: Final[tuple[Scenario, ...]] = (
    *SCENARIOS,
    *RULE_SCENARIOS,
    *PUT_BACK_SCENARIOS,
    *CLIENT_SCENARIOS,
    *DRPC_SCENARIOS,
    *GROUP_SCENARIOS,
    *KAFKA_SCENARIOS,
    *GUARD_SCENARIOS,
    *QUOTA_SCENARIOS,
    *COMPACTION_SCENARIOS,
    *TIER_SCENARIOS,
    *TRANSACTION_SCENARIOS,
    *TRANSACTIONAL_TOPIC_SCENARIOS,
    *SHARED_SCENARIOS,
)
