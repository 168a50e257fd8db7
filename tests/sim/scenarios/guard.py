"""Scenarios of brokers with rules, tokens and log-ins.

Brokers have addresses of this machine, where shipped clients send their token in plain text, too.
Connections of bytes say that they are by TLS, so that clients of Kafka may log in in every way.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final
from unittest import mock

from tests.sim.clients.kafka.intrusions import ChangingIntruder, GroupIntruder, ReadingIntruder
from tests.sim.clients.members import GroupPlan
from tests.sim.clients.readers_and_writers import Job, Load, Site
from tests.sim.machines.rules_of_brokers import READER, WORKER, Login, Rights, RuleFiles
from tests.sim.machines.service_accounts import ServiceAccounts
from tests.sim.scenarios.scenario import Scenario, ScenarioCluster, again
from tests.sim.settings import Settings
from tests.sim.topics import RunningTopic, TopicPlan
from tests.sim.world import MILLISECOND, World

_SOON: Final = 100 * MILLISECOND
_TOKEN_FILE: Final = "MILLRACE_TOKEN_FILE"
_PRINCIPALS: Final[Mapping[str, str]] = {"consumer": READER, "neighbour": READER}
"""As whom clients log in, by the beginning of their names; others may do everything."""


class Guarded(ScenarioCluster):
    """Clients do what they may, and others try what they may not."""

    hosts = "127.0.0"
    kafka_share = 0.6
    is_enforced = True
    topics = (
        TopicPlan(
            partitions=2,
            loads=(Load(every_us=2 * _SOON), Load(every_us=2 * _SOON)),
            polls_every_us=4 * _SOON,
            reads_followers=True,
            is_administered=True,
            group=GroupPlan(members=2),
        ),
    )

    new_rights: Callable[[], Rights] = RuleFiles

    def __init__(self, world: World) -> None:
        self._rights = self.new_rights()
        access = self._rights.access(is_enforced=self.is_enforced)
        self.settings = replace(Settings(), access=access)
        self._changed_at = 0
        super().__init__(world)
        self.network.is_encrypted = True
        self.watching = self._watching

    @contextmanager
    def _watching(self) -> Iterator[None]:
        token = {_TOKEN_FILE: self._rights.token_file} if self.is_enforced else {}
        with (
            mock.patch.dict(os.environ, token),
            self._rights.serving(self.store),
            self._probes.watching(),
        ):
            yield

    def login_of(self, client: str) -> Login | None:
        """Return as whom a client logs in."""
        found = [who for begin, who in _PRINCIPALS.items() if client.startswith(begin)]
        return self._rights.login_of(found[0] if found else WORKER)

    def start(self) -> None:
        """Start, and let the rules change from time to time."""
        super().start()
        self._world.after(self._rights.changes_every_us, "rules change", self._change_rules)

    def _begin_administration(self, topic: RunningTopic, site: Site) -> None:
        super()._begin_administration(topic, site)
        for kind in (ReadingIntruder, ChangingIntruder, GroupIntruder):
            name = f"{kind.__name__}-{topic.plan.name}"
            job = Job(name, site, self._new_kafka_client(name), topic.plan.polls_every_us)
            topic.transacting.append(
                kind(
                    job,
                    may_be_lost=self.may_lose_transactions,
                    rights=self._rights,
                    reads=self._reads,
                )
            )

    def _change_rules(self) -> None:
        self._rights.change()
        self._changed_at = self._world.now
        self._world.after(self._rights.changes_every_us, "rules change", self._change_rules)

    def _reads(self) -> bool | None:
        """Whether who may read at times may now; None: some brokers may not know yet."""
        if self.store.weather.is_out:
            self._changed_at = self._world.now  # It counts as new again.
        is_new = self._world.now - self._changed_at < self._rights.taken_us
        return None if is_new else self._rights.may_read


class OnKubernetes(Guarded):
    """Clients show tokens of ServiceAccounts, and an API server says what they may."""

    new_rights = ServiceAccounts


class Rehearsed(Guarded):
    """Rules are not enforced yet: clients without a token do everything (G4)."""

    is_enforced = False

    def login_of(self, client: str) -> Login | None:
        """Return None: the clients of this scenario do not log in."""
        del client
        return None

    def _begin_administration(self, topic: RunningTopic, site: Site) -> None:
        ScenarioCluster._begin_administration(self, topic, site)


# fmt: off
GUARD_SCENARIOS: Final[tuple[Scenario, ...]] = (
    Scenario("G: rules", "who may does what the rules allow, and who may not is refused; brokers "
             "die", Guarded, [*again("F01", 12, 9, 2, 3), *again("F02", 17, 9, 2, 3)], by_day=True,
             seeds=3, quiet_s=15),
    Scenario("G8", "an API server knows callers, and is out for a while; brokers die",
             OnKubernetes, [(7, "F42", 3), *again("F02", 13, 9, 2, 3)], seeds=3, quiet_s=25,
             mutants=["what an authority answers is not looked at"]),
    Scenario("G4", "rules are not enforced, and clients have no tokens", Rehearsed,
             again("F02", 8, 6, 2, 3), seeds=2, quiet_s=15),
)
# fmt: on
