"""Scenarios of the layers between clients and the log: streams, look-ups, positions, retries.

Clients call their whole interface, with faults of brokers and streams, and without any fault.
Without faults no call may fail or block its caller.
"""

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from itertools import chain
from typing import Final, TypeAlias

from tests.checkers.history import OK, Recorder, Run
from tests.sim.clients.readers_and_writers import Load
from tests.sim.faults.family import Family, Scene, Undo, all_of
from tests.sim.faults.operators import MEDIA_CHANGE
from tests.sim.machines.coordination import StoreWeather
from tests.sim.scenarios.scenario import Scenario, ScenarioCluster, again
from tests.sim.settings import Settings
from tests.sim.topics import TopicPlan
from tests.sim.world import MILLISECOND, SECOND, Violation

from millrace.core.metadata.model import CLUSTER_KEY, SHARD_KEYS
from millrace.core.metadata.objects.encoding import decode_shard
from millrace.core.metadata.objects.stored_object import StoredObject

_SOON: Final = 100 * MILLISECOND
_MAKER: Final = "inspector-t-0"
"""The client that makes topics."""
_Taken: TypeAlias = defaultdict[str, defaultdict[int, list[tuple[int, int]]]]
"""Offsets and values, by process and key."""


def _taken(recorder: Recorder) -> _Taken:
    """Return what each process read."""
    taken: _Taken = defaultdict(lambda: defaultdict(list))
    for op in recorder.ops:
        if op.type == OK:
            for key, entries in chain.from_iterable(polled.items() for polled in op.polls):
                known = recorder.known.of(key)
                for entry in entries:
                    if isinstance(entry, Run):
                        offsets = range(entry.first, entry.last + 1)
                        taken[op.process][key] += [(offset, known[offset]) for offset in offsets]
                    else:
                        taken[op.process][key].append(entry)
    return taken


class Explored(ScenarioCluster):
    """Clients call their whole interface, and one of them commits positions."""

    topics = (
        TopicPlan(
            partitions=6,
            loads=(
                Load(every_us=_SOON, burst_max=5),
                Load(every_us=3 * _SOON, is_patient=False, request_timeout_ms=300),
            ),
            polls_every_us=_SOON,
            asks_ends=True,
            keeps_positions=True,
            is_explored=True,
        ),
    )


class Calm(Explored):
    """The same, without any fault."""

    is_calm = True


class Unclean(Explored):
    """Any live replica may lead, so records are lost."""

    topics = (
        TopicPlan(
            partitions=3,
            config={"unclean.leader.election.enable": "true", "durability": "replicated"},
            loads=(Load(every_us=_SOON, burst_max=5),),
            polls_every_us=_SOON,
            is_explored=True,
        ),
    )

    def finish(self) -> Mapping[str, float]:
        """Check that each reader that continued after lost records was told of the loss."""
        measures = super().finish()
        for topic in self.running.values():
            assert topic.final is not None
            taken = _taken(topic.recorder)
            kept = taken.pop(topic.final.name)
            for process, by_key in taken.items():
                for key, records in by_key.items():
                    is_kept = [record in kept[key] for record in records]
                    # The lost records of a reader come last, unless it went on without an error.
                    if is_kept != sorted(is_kept, reverse=True):
                        raise Violation(
                            f"{process} read on in {key}, and was not told that records are gone"
                        )
            self.quiet.judge_readers(
                {
                    topic_partition: min(
                        self.quiet.committed_before[topic_partition], len(kept[key])
                    )
                    for topic_partition, key in zip(topic.partitions, topic.keys, strict=True)
                    if topic_partition in self.quiet.committed_before
                }
            )
        return measures


class OnTwoMedia(ScenarioCluster):
    """Brokers have log directories on both media."""

    settings = Settings(has_hdd=True)
    topics = (
        TopicPlan(
            partitions=4,
            loads=(Load(every_us=_SOON, burst_max=5),),
            polls_every_us=_SOON,
        ),
    )


class Makers(ScenarioCluster):
    """Little is written, and topics are made all the time."""

    brokers = 4
    topics = (
        TopicPlan(
            partitions=1,
            loads=(Load(every_us=10 * _SOON),),
            polls_every_us=_SOON // 2,
            is_explored=True,
        ),
    )


def _when_a_topic_is_made(scene: Scene, *, dies: bool) -> Undo:
    """When a client's topic is stored, the streams of that client are reset before it hears of it.

    With `dies` the controller dies, too, and there is none for as long as the client is patient.
    """
    store, world = scene.store, scene.world
    known = len(store.writes)
    undos: list[Undo] = []

    def look() -> None:
        nonlocal known
        if undos:
            return
        for write in store.writes[known:]:
            if write.key != CLUSTER_KEY and _has_made_topic(write.key, write.stored):
                strike()
                return
        known = len(store.writes)
        world.after(20, "is a topic stored?", look)

    def strike() -> None:
        undos.append(lambda: None)
        for name in scene.role("controller") if dies else ():
            store.weather = StoreWeather(is_out=True)
            scene.machines[name].kill()
            undos.append(scene.machines[name].start)
        scene.network.reset_streams(scene.dice, 1.0, [_MAKER])

    def undo() -> None:
        undos.append(lambda: None)
        store.weather = StoreWeather()
        all_of(undos)()

    look()
    return undo


def _has_made_topic(key: str, stored: StoredObject) -> bool:
    """Whether an object has a topic that a client has made, and not deleted."""
    topics = decode_shard(SHARD_KEYS.index(key), stored).topics
    return any(str(topic.name).startswith("explorer-") for topic in topics.values())


MADE_UNHEARD: Final = Family(
    "F17",
    "a topic is made, and its client's streams are reset",
    partial(_when_a_topic_is_made, dies=False),
    (SECOND, SECOND),
)
MADE_AND_GONE: Final = Family(
    "F43",
    "a topic is made, its controller dies, and the store is out",
    partial(_when_a_topic_is_made, dies=True),
    (SECOND, SECOND),
)


# fmt: off
CLIENT_SCENARIOS: Final = (
    Scenario("P36", "clients do not hear that their topic was made, and ask again", Makers,
             again(MADE_UNHEARD, 5, 2, 10, 1.9), seeds=4, quiet_s=15,
             mutants=["a topic that is asked for again with its id is refused"]),
    Scenario("P16, P36", "clients do not hear that their topic was made, and nobody can say so",
             Makers, again(MADE_AND_GONE, 5, 14, 3, 12), by_day=True, seeds=4, quiet_s=15,
             mutants=["a call that broke off counts as not done"]),
    Scenario("P40", "nothing fails, and clients call all there is", Calm, seeds=2, quiet_s=15,
             mutants=["a look-up that waits does not hear that the log grows",
                      "nobody follows a refusal to the broker that keeps the positions",
                      "a paused partition hands out what is left of a poll",
                      "a seek keeps what is left of a poll",
                      "records before the position are handed out",
                      "offsets are taken for those of other partitions",
                      "a look-up tells where the log ends, committed or not",
                      "readers are told that all that is written is committed",
                      "a coordinator forgets what it appends",
                      "a follower hears of what is committed, and not of what is written"]),
    Scenario("P16", "streams break, and clients call all there is", Explored,
             again("F17", 4, 1.5, 20, 0.1), seeds=2, quiet_s=15,
             mutants=["a consumer does not hear that its stream broke",
                      "a follower does not hear that its stream broke"]),
    Scenario("P16", "leaders are killed, and clients call all there is", Explored,
             again("F02", 4, 4, 7, 2), seeds=2, quiet_s=15),
    Scenario("P30", "all machines lose power, and the first ones back may lead", Unclean,
             again("F06", 5, 5, 6, 1), by_day=True, seeds=2, quiet_s=15,
             mutants=["a consumer does not hear that its log and the leader's part",
                      "a consumer does not show which epoch it has read"]),
    Scenario("P33",
             "logs move to the other media and back, while power goes in the middle of writes",
             OnTwoMedia, [*again(MEDIA_CHANGE, 4, 2, 16, 0.1), *again("F27", 5, 4, 8, 0.1)],
             by_day=True, seeds=2, quiet_s=25),
    Scenario("P63", "flushes fail and disks fill, and clients call all there is", Explored,
             [*again("F24", 4, 8, 4, 0.1), *again("F23", 6, 8, 4, 2)], seeds=2, quiet_s=15,
             mutants=["appends after a failed one are written all the same",
                      "a directory whose flush failed takes appends"]),
)
# fmt: on
