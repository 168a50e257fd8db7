"""All named scenarios: bugs of other systems, and situations in which one rule decides."""

from typing import Final

from tests.sim.client_scenarios import CLIENT_SCENARIOS
from tests.sim.compaction_scenarios import COMPACTION_SCENARIOS
from tests.sim.drpc_scenarios import DRPC_SCENARIOS
from tests.sim.group_scenarios import GROUP_SCENARIOS
from tests.sim.guard_scenarios import GUARD_SCENARIOS
from tests.sim.kafka.scenarios import KAFKA_SCENARIOS
from tests.sim.put_back_scenarios import PUT_BACK_SCENARIOS
from tests.sim.quota_scenarios import QUOTA_SCENARIOS
from tests.sim.rule_scenarios import RULE_SCENARIOS
from tests.sim.scenarios import SCENARIOS, Scenario
from tests.sim.shared_scenarios import SHARED_SCENARIOS
from tests.sim.tier_scenarios import TIER_SCENARIOS
from tests.sim.transaction_scenarios import TRANSACTION_SCENARIOS
from tests.sim.transactional_topic_scenarios import TRANSACTIONAL_TOPIC_SCENARIOS

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
