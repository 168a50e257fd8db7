"""Scenarios of quotas: clients that want more than they may have, while brokers and controllers die
and operators change the quotas.

Each topic has one client, which writes all that it can, so the bytes in a topic's logs are those of
its client. Every second of a run is held against the quotas that are stored:

- For as long as a quota stays the same, no client exceeds it, over any few seconds (P73). A change
  has a few seconds to reach all brokers (P74).
- In quiet each client gets most of what it may have, on whatever brokers it writes (P73), and no
  less after a change (P74).
- Nothing is refused because of a quota, and replicas stay in sync (P72).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Final

from tests.sim.clients.readers_and_writers import Load, Reader
from tests.sim.faults.family import Family, Scene, Undo
from tests.sim.scenarios.scenario import Scenario, ScenarioCluster, again
from tests.sim.topics import TopicPlan
from tests.sim.world import MILLISECOND, SECOND, Violation, World

from millrace.core.ids import TopicPartition
from millrace.core.metadata.requests import DeleteQuotas, SetQuotas
from millrace.core.quotas.quota import EACH, RATE_MIN, Quota, QuotaEntity

_WINDOW_S: Final = 8
"""Over how long a rate is judged."""
_SETTLED_S: Final = 4
"""How long a change of a quota, or the end of a fault, has to take effect."""
_MOST: Final = 1.15
"""The part of its limit that a client may have used over a window."""
_LEAST: Final = 0.6
"""The part of its limit that a client that wants more gets: requests have headers, too."""
_WRITTEN: Final = 1_000
"""Values that are written at least meanwhile."""
_BEHIND: Final = 30
"""Records by which readers are behind at least, when a quota delays them."""
_LIMITS: Final = (1_200, 2_000, 3_000)


def _eager(client_id: str, **changes: object) -> Load:
    load = Load(every_us=80 * MILLISECOND, quiet_every_us=0, burst_max=4, client_id=client_id)
    return replace(load, **changes)  # type: ignore[arg-type]


class Limited(ScenarioCluster):
    """Two clients: one writes to all brokers, and one to a single broker.

    Attributes:
        quotas: that there are from the beginning.
        wants: what each client would write, at least, in bytes a second.
        slack_bytes: of requests that are under way, and what brokers have saved up.
    """

    topics: Sequence[TopicPlan] = (
        TopicPlan(name="spread", partitions=3, loads=(_eager("spread"),)),
        TopicPlan(name="lone", partitions=1, loads=(_eager("lone"),)),
    )
    quotas: ClassVar[Sequence[Quota]] = (
        Quota(
            name="spread",
            entity=QuotaEntity(client_id="spread"),
            produce_bytes_per_second=1_600,
        ),
        Quota(
            name="lone",
            entity=QuotaEntity(client_id="lone"),
            produce_bytes_per_second=1_600,
        ),
    )
    wants = 0
    slack_bytes = 2_000

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._has_quotas = False
        self._sampled_at = 0
        self._written: dict[TopicPartition, int] = {}
        self._samples: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self._limits: dict[str, tuple[int, int | None]] = {}  # Since when, in seconds.
        self._quiet_at: int | None = None

    def _create_topics(self) -> None:
        super()._create_topics()
        if not self._has_quotas and self.stored_brokers() >= len(self.machines):
            self._has_quotas = True
            for quota in self.quotas:
                self.administer(SetQuotas(quotas=[quota]))

    def check(self) -> None:
        super().check()
        second = self._world.now // SECOND
        if second > self._sampled_at:
            self._sampled_at = second
            self._sample(second)

    def begin_quiet(self) -> None:
        super().begin_quiet()
        self._quiet_at = self._world.now // SECOND

    def finish(self) -> Mapping[str, float]:
        self._quiet_at = None  # The clients stop.
        return super().finish()

    def _sample(self, second: int) -> None:
        for node in self.nodes().values():
            for key, log in node.logs.items():
                if key in self.states:
                    self._written[key] = max(self._written.get(key, 0), log.size_bytes)
        for topic in self.running.values():
            name = topic.plan.name
            samples = self._samples[name]
            samples[second] = sum(self._written.get(partition, 0) for partition in topic.partitions)
            self._judge(name, topic.plan.loads[0].client_id, samples, second)

    def _judge(self, name: str, client_id: str, samples: Mapping[int, int], second: int) -> None:
        limit = self._limit(client_id)
        since, known = self._limits.get(name, (second, limit))
        if known != limit or name not in self._limits:
            since = second
            self._limits[name] = second, limit
        begin = second - _WINDOW_S
        if begin < since + _SETTLED_S or begin not in samples:
            return
        written = samples[second] - samples[begin]
        if limit is not None:
            most = limit * _WINDOW_S * _MOST + self.slack_bytes
            if written > most:
                raise Violation(
                    f"{client_id} has written {written} bytes in {_WINDOW_S} s, and may have "
                    f"written {most:.0f}, with a limit of {limit} since {since} s (P73, P74)"
                )
        if self._quiet_at is None or begin < self._quiet_at + _SETTLED_S:
            return
        least = (self.wants if limit is None else limit) * _WINDOW_S * _LEAST
        if written < least:
            raise Violation(
                f"{client_id} has written {written} bytes in {_WINDOW_S} s, and would have written "
                f"{least:.0f}, with a limit of {limit} since {since} s (P73, P74)"
            )

    def _limit(self, client_id: str) -> int | None:
        """The limit of a client in Kafka's order, the most specific first (KIP-55)."""
        quotas = [] if self.stored_cluster is None else self.stored_cluster.quotas.values()
        by_entity = {quota.entity: quota.produce_bytes_per_second for quota in quotas}
        for principal in (EACH, None):
            for client in (client_id, EACH, None):
                limit = by_entity.get(QuotaEntity(principal=principal, client_id=client))
                if limit is not None:
                    return limit
        return None


class Freed(Limited):
    """A limit is so small, and requests are so large, that the client waits for long; then the
    limit ends.
    """

    topics = (
        TopicPlan(
            partitions=1,
            loads=(_eager("t", every_us=300 * MILLISECOND, value_bytes=8_000, values_max=6),),
        ),
    )
    quotas = ()
    wants = 20_000
    slack_bytes = 100_000


_TINY: Final = Quota(name="t", entity=QuotaEntity(client_id="t"), produce_bytes_per_second=RATE_MIN)


class Reconnecting(Limited):
    """Each burst comes over a new stream, which owes what its client owes."""

    topics = (
        TopicPlan(
            partitions=1,
            loads=(_eager("t", is_new=True, burst_max=1, values_max=1, value_bytes=300),),
        ),
    )
    quotas = (Quota(name="t", entity=QuotaEntity(client_id="t"), produce_bytes_per_second=1_100),)


class Pausing(Limited):
    """The client writes much at once, and then nothing for a while."""

    topics = (
        TopicPlan(
            partitions=1,
            loads=(
                _eager("t", every_us=12 * SECOND, burst_max=30, value_bytes=800, is_apart=True),
            ),
        ),
    )
    quotas = (Quota(name="t", entity=QuotaEntity(client_id="t"), produce_bytes_per_second=2_000),)


class Ordered(Limited):
    """Several quotas could count for each client; the most specific one does."""

    quotas = (
        Quota(
            name="each-principal",
            entity=QuotaEntity(principal=EACH),
            produce_bytes_per_second=1_600,
        ),
        Quota(
            name="each-client",
            entity=QuotaEntity(client_id=EACH),
            produce_bytes_per_second=1_024,
        ),
    )


_OWN: Final = Quota(
    name="this-client",
    entity=QuotaEntity(principal=EACH, client_id="lone"),
    produce_bytes_per_second=2_800,
)


class ReadersLimited(Limited):
    """Readers of a topic may fetch little of it, for a while; its replicas are brokers."""

    topics = (TopicPlan(partitions=2, loads=(_eager("t"),)),)
    quotas = (Quota(name="t", entity=QuotaEntity(topic="t"), fetch_bytes_per_second=1_024),)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.behind = 0

    def check(self) -> None:
        super().check()
        if self._world.now < 2 * _SETTLED_S * SECOND:
            return
        for key, state in self.states.items():
            if len(state.isr) < len(state.replicas):
                raise Violation(f"a quota of readers throttles replicas (P72): {key} {state}")

    def _sample(self, second: int) -> None:
        super()._sample(second)
        if self.stored_cluster is None or not self.stored_cluster.quotas:
            return  # They catch up at once when the quota is gone.
        self.behind = 0
        ends = self.witness.replicas.committed
        for topic in self.running.values():
            for reader in topic.readers:
                assert isinstance(reader, Reader)
                self.behind += sum(
                    ends.get(partition, 0) - reader.next_offsets.get(partition.partition, 0)
                    for partition in topic.partitions
                )

    def begin_quiet(self) -> None:
        super().begin_quiet()
        if self.acknowledged() < _WRITTEN:
            raise Violation(
                f"{self.acknowledged()} values are written: a quota of readers slows writers (P72)"
            )
        if self.behind < _BEHIND:
            raise Violation(f"readers are {self.behind} records behind: no quota delays them (P73)")


def _change_limit(scene: Scene) -> Undo | None:
    administered = scene.administered
    if administered is None or administered.stored_cluster is None:
        return None
    quotas = administered.stored_cluster.quotas
    if not quotas:
        return None
    quota = quotas[scene.dice.choice(sorted(quotas))]
    others = [limit for limit in _LIMITS if limit != quota.produce_bytes_per_second]
    changed = replace(quota, produce_bytes_per_second=scene.dice.choice(others))
    administered.administer(SetQuotas(quotas=[changed]))
    return lambda: None


def _set(scene: Scene, quota: Quota) -> Undo | None:
    if scene.administered is None:
        return None
    scene.administered.administer(SetQuotas(quotas=[quota]))
    return lambda: None


def _delete_quotas(scene: Scene) -> Undo | None:
    administered = scene.administered
    if administered is None or administered.stored_cluster is None:
        return None
    for name in administered.stored_cluster.quotas:
        administered.administer(DeleteQuotas(names=(name,)))
    return lambda: None


def _raise_limit(scene: Scene, limit: int) -> Undo | None:
    administered = scene.administered
    if administered is None or administered.stored_cluster is None:
        return None
    for quota in administered.stored_cluster.quotas.values():
        changed = replace(quota, produce_bytes_per_second=limit)
        administered.administer(SetQuotas(quotas=[changed]))
    return lambda: None


_SHORT: Final = (SECOND, SECOND)
CHANGE: Final = Family("F72b", "an operator changes a quota", _change_limit, _SHORT)
ANOTHER: Final = Family(
    "F72b", "a client gets a quota of its own", partial(_set, quota=_OWN), _SHORT
)
TINY: Final = Family("F72b", "a client may write very little", partial(_set, quota=_TINY), _SHORT)
DELETE: Final = Family("F72b", "an operator deletes all quotas", _delete_quotas, _SHORT)
RAISE: Final = Family(
    "F72b", "an operator raises all quotas", partial(_raise_limit, limit=20_000), _SHORT
)

# fmt: off
QUOTA_SCENARIOS: Final = (
    Scenario("P73", "clients want more than they may have, and leaders die", Limited,
             again("F02", 18, 14, 2, 5), seeds=2, quiet_s=20,
             mutants=["each broker gives the whole limit", "brokers do not take up their shares",
                      "one broker takes all that is left of a limit"]),
    Scenario("P73, P74", "quotas are changed while controllers die and the store is away", Limited,
             [*again("F38", 8, 16, 2, 5), *again(CHANGE, 9, 14, 3, 1), (36, "F42", 6)], seeds=2,
             quiet_s=22, mutants=["a broker follows no change of a quota"]),
    Scenario("P74", "a small limit ends while clients wait for long", Freed,
             [(8, TINY, 1), (10, DELETE, 1)], by_day=True, seeds=2, quiet_s=20,
             mutants=["a dropped bucket keeps its debt"]),
    Scenario("P74: raised", "a small limit is raised while clients wait for long", Freed,
             [(8, TINY, 1), (10, RAISE, 1)], seeds=2, quiet_s=20,
             mutants=["a debt stays as it was when the limit is raised"]),
    Scenario("P73: pauses", "a client writes much at once, after a pause", Pausing,
             [(60, DELETE, 1)], seeds=2, quiet_s=20,
             mutants=["a bucket saves up for as long as it is idle"]),
    Scenario("P73: streams", "a client makes a new stream again and again", Reconnecting, seeds=2,
             quiet_s=20, mutants=["a new stream does not wait for what its client owes"]),
    Scenario("P73: order", "several quotas could count for a client", Ordered, [(8, ANOTHER, 1)],
             by_day=True, seeds=2, quiet_s=20, mutants=["the least specific quota counts",
                      "a stream keeps the quotas with which it began"]),
    Scenario("P72", "readers may fetch little of a topic", ReadersLimited, [(20, DELETE, 1)],
             by_day=True, seeds=2, quiet_s=22,
             mutants=["quotas throttle followers", "fetched bytes of a topic are not charged"]),
)
# fmt: on
