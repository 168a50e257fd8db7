"""Operators drain brokers, move replicas, and change and delete topics."""

from collections.abc import Callable
from functools import partial
from typing import Final

from tests.sim.faults.family import SHORT, Families, Family, Scene, Undo
from tests.sim.faults.processes import killed, powerless
from tests.sim.machines.machine import BrokerMachine
from tests.sim.world import MILLISECOND, SECOND

from millrace.core.ids import NO_BROKER, BrokerId, TopicPartition, WallMs
from millrace.core.media import TopicMedia
from millrace.core.metadata.model import ClusterState, PartitionState
from millrace.core.metadata.requests import (
    AlterTopics,
    DeleteTopics,
    DrainBroker,
    ElectionKind,
    ElectLeaders,
    PurgeTopics,
    Reassignment,
    ReassignPartitions,
    Request,
    TopicChange,
    TopicRef,
    UndeleteTopics,
)

_NO_TIME: Final = WallMs(0)
"""Brokers say when a topic was deleted."""

_TRIED_FOR_S: Final = 35
"""A client gives a request up after this time."""

FAMILIES: Final = Families()
family = FAMILIES.add


@family("F48", "a broker is drained, and taken back")
def drain_broker(scene: Scene) -> Undo | None:
    administered = scene.administered
    if administered is None or administered.stored_cluster is None:
        return None
    return drained(scene, scene.dice.choice(sorted(administered.stored_cluster.brokers)))


def drained(scene: Scene, broker_id: BrokerId) -> Undo:
    """Drain a broker."""
    administered = scene.administered
    assert administered is not None
    administered.administer(DrainBroker(broker_id=broker_id))
    return lambda: _until_done(
        scene,
        lambda: DrainBroker(broker_id=broker_id, is_drained=False),
        lambda cluster: cluster.brokers[broker_id].is_drained,
        looks=_TRIED_FOR_S,  # The drain may be late.
    )


def _until_done(
    scene: Scene,
    request: Callable[[], Request | None],
    is_needed: Callable[[ClusterState], bool],
    looks: int = 1,
    found: int = 0,
) -> None:
    """Repeat a request until it is done. The controller may be absent; None: it is too early.

    Args:
        looks: how many looks in turn, a second apart, must find it done: the fault's own request
            may still be in flight.
        found: how many looks in turn have found it done.
    """
    administered = scene.administered
    if administered is None or administered.stored_cluster is None:
        return
    found += 1
    if is_needed(administered.stored_cluster):
        found = 0
        wanted = request()
        if wanted is not None:
            administered.administer(wanted)
    if found < looks:
        again = (scene, request, is_needed, looks, found)
        scene.world.after(SECOND, "operator asks again", _until_done, *again)


def _any_partition(scene: Scene) -> tuple[TopicPartition, PartitionState] | None:
    if scene.administered is None or not scene.administered.states:
        return None
    topic_partition = scene.dice.choice(sorted(scene.administered.states))
    return topic_partition, scene.administered.states[topic_partition]


def move(
    topic_partition: TopicPartition, replicas: tuple[BrokerId, ...] | None
) -> ReassignPartitions:
    """Return the request that a partition gets these replicas; None: that it stays as it was."""
    return ReassignPartitions(
        reassignments=[
            Reassignment(
                topic_id=topic_partition.topic_id,
                partition=topic_partition.partition,
                replicas=replicas,
            )
        ]
    )


@family("F71", "replicas are moved, and perhaps soon moved back", (100 * MILLISECOND, 8 * SECOND))
def move_replicas(scene: Scene) -> Undo | None:
    found, administered = _any_partition(scene), scene.administered
    if found is None or administered is None or administered.stored_cluster is None:
        return None
    topic_partition, state = found
    brokers = sorted(administered.stored_cluster.brokers)
    count = len(state.target) - (len(state.target) > 2 and scene.dice.random() < 0.3)
    moves_back = count < len(state.target) or scene.dice.random() < 0.5
    goal = tuple(scene.dice.sample(brokers, count))

    def undo() -> None:
        now = administered.states.get(topic_partition)
        if moves_back and now is not None:
            if now.adding:
                administered.administer(move(topic_partition, None))
            administered.administer(move(topic_partition, state.target))

    administered.administer(move(topic_partition, goal))
    return undo


@family("F70", "a topic is deleted while a broker is away, and made again under its name")
def delete_topic(scene: Scene) -> Undo | None:
    administered = scene.administered
    topic_ids = [] if administered is None else administered.disposable()
    if not topic_ids or administered is None:
        return None
    topic_id = scene.dice.choice(topic_ids)
    undo = killed(scene.any_machine())
    _until_done(
        scene,
        lambda: DeleteTopics(topics=[TopicRef(topic_id=topic_id)], deleted_at=_NO_TIME),
        lambda _: topic_id in administered.stored_topics,
    )
    # Once it is made again, its files are to go.
    _until_done(
        scene,
        lambda: PurgeTopics(topics=[TopicRef(topic_id=topic_id)]),
        lambda _: topic_id in (*administered.stored_topics, *administered.stored_deleted),
    )
    return undo or (lambda: None)


@family("F74", "a topic is deleted and brought back, and brokers die meanwhile")
def undelete_topic(scene: Scene) -> Undo | None:
    administered = scene.administered
    topic_ids = [] if administered is None else administered.returnable()
    if not topic_ids or administered is None:
        return None
    topic_id = scene.dice.choice(topic_ids)
    ref = TopicRef(topic_id=topic_id)
    administered.administer(DeleteTopics(topics=[ref], deleted_at=_NO_TIME))
    dying = scene.dice.sample(list(scene.machines.values()), scene.dice.randint(0, 2))
    undos: list[Undo] = []

    def die(machine: BrokerMachine) -> None:
        undo = powerless(machine) if scene.dice.random() < 0.5 else killed(machine)
        if undo is not None:
            undos.append(undo)

    for machine in dying:
        scene.world.after(scene.dice.randrange(1, SECOND), "a broker dies", die, machine)
        if scene.dice.random() < 0.7:  # Else it is away when the topic comes back.
            scene.world.after(scene.duration_us // 3, "it is back", machine.start)

    def undo_all() -> None:
        for undo in undos:
            undo()
        _until_done(
            scene,
            lambda: UndeleteTopics(topics=[ref]),
            lambda _: topic_id in administered.stored_deleted,
            looks=_TRIED_FOR_S,  # The deletion may be late.
        )

    return undo_all


@family("F72", "the settings of a topic are changed, and changed back")
def change_settings(scene: Scene) -> Undo | None:
    found, administered = _any_partition(scene), scene.administered
    if found is None or administered is None:
        return None
    topic_id = found[0].topic_id
    kept = administered.stored_topics[topic_id].overrides
    name, default, value = scene.dice.choice(
        (
            ("min.insync.replicas", "2", scene.dice.choice("123")),
            ("unclean.leader.election.enable", "false", "true"),
            ("durability", "fsync", "replicated"),
        )
    )
    before = kept.get(name, default)

    def change(value: str) -> Request:
        ref = TopicRef(topic_id=topic_id)
        return AlterTopics(changes=[TopicChange(topic=ref, set_config={name: value})])

    def is_needed(_: ClusterState) -> bool:
        topic = administered.stored_topics.get(topic_id)
        return topic is not None and topic.overrides.get(name, default) != before

    def ask() -> Request | None:
        # A replica that was cut off before the topic became durable may lack more than the rules
        # for flushed logs allow.
        states = [at for key, at in administered.states.items() if key.topic_id == topic_id]
        are_in_sync = all(len(state.isr) == len(state.replicas) for state in states)
        return change(before) if are_in_sync or name != "durability" else None

    administered.administer(change(value))
    return lambda: _until_done(scene, ask, is_needed, looks=_TRIED_FOR_S)


def _change_media(scene: Scene, one: TopicMedia, other: TopicMedia) -> Undo | None:
    found, administered = _any_partition(scene), scene.administered
    if found is None or administered is None:
        return None
    topic_id = found[0].topic_id
    media = other if administered.stored_topics[topic_id].config.media is one else one
    change = TopicChange(topic=TopicRef(topic_id=topic_id), set_config={"media": media.value})
    administered.administer(AlterTopics(changes=[change]))
    return lambda: None


MEDIA_CHANGE: Final = Family(
    "F72",
    "a topic asks for the other media",
    partial(_change_media, one=TopicMedia.HDD, other=TopicMedia.SSD),
    SHORT,
)
"""For brokers with log directories on both."""
TIER_CHANGE: Final = Family(
    "F72",
    "a topic is tiered, or no more",
    partial(_change_media, one=TopicMedia.TIERED, other=TopicMedia.SSD),
    SHORT,
)
"""Likewise."""


@family("F73", "an operator elects any live replica of partitions without a leader", SHORT)
def elect_uncleanly(scene: Scene) -> Undo | None:
    administered = scene.administered
    leaderless = [
        topic_partition
        for topic_partition, state in ({} if administered is None else administered.states).items()
        if state.leader == NO_BROKER
    ]
    if not leaderless or administered is None:
        return None
    administered.administer(ElectLeaders(kind=ElectionKind.UNCLEAN, partitions=leaderless))
    return lambda: None
