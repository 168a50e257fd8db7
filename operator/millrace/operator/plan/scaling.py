"""The present number of brokers in each pool, and the moves of replicas when it changes.

A broker to be removed is drained first: it hands over its leaderships and gets no new replicas.
Then its replicas move to brokers that stay. Only when it holds none, its pod is removed, the broker
is unregistered, and its claims are deleted. Internal topics get fewer replicas where the cluster
gets too small for them. If other replicas do not fit on the brokers that stay, nothing is removed,
and the condition says what would help; the brokers stay drained, so that nobody adds replicas
there. A broker that holds replicas and lost its pod gets a new one, so that they can be copied.

A move that brings a replica to a broker that goes is taken back first, as it might never end: that
broker may be gone already.

A plan is for all brokers that stay, also for one that is away at that moment, as replicas stay
where they are put (P77): what is to be copied to that one waits for it.

New brokers get their share: a broker without replicas, while others hold at least two, causes one
rebalancing, by the same plan as `millrace reassign plan`, for internal topics and for others apart.
Replicas of internal topics count only where there are no others, as the controller puts them on new
brokers at once (P77). The rebalancing waits for all brokers of the Cluster, except for those that a
person drained.

Every step follows from the present state, so a killed operator continues after any step.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from millrace.core.controller.balancing.placement import Candidate
from millrace.core.controller.balancing.reassignment_plan import planned
from millrace.core.ids import BrokerId
from millrace.core.media import Media, TopicMedia
from millrace.core.topics import PartitionName
from millrace.core.words import count
from millrace.operator.model.cluster import REPLICAS_MAX, Cluster
from millrace.operator.model.objects import Document, pool_object_name

SHARING: Final = "new brokers get a share"
"""What moves are for that have no message: the Cluster is as large as wanted meanwhile."""
_TOPICS_NAMED_MAX: Final = 3
"""Topics that a problem names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSize:
    """A pool, by the name of its StatefulSet.

    Attributes:
        wanted: brokers that the resource asks for; 0: the pool is removed.
        there: replicas of the StatefulSet; 0: there is none yet.
    """

    name: str
    wanted: int
    there: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A registered broker.

    Attributes:
        media: of its volumes; empty: unknown.
    """

    broker_id: BrokerId
    name: str
    zone: str
    is_fenced: bool
    is_drained: bool
    media: tuple[Media, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A partition.

    Attributes:
        replicas: brokers that hold it when all moves are done.
        holders: brokers that hold it now, also those that it moves away from.
        adding: brokers that it moves to.
        is_internal: its topic belongs to the cluster itself.
        media: on which they should lie.
    """

    place: PartitionName
    replicas: tuple[BrokerId, ...]
    holders: tuple[BrokerId, ...]
    is_moving: bool
    adding: tuple[BrokerId, ...] = ()
    is_internal: bool = False
    media: TopicMedia = TopicMedia.ANY


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """What to do now.

    Attributes:
        replicas: of each pool's StatefulSet.
        drain, undrain: brokers.
        moves: new replicas of partitions.
        recall: partitions whose moves are taken back.
        unregister: brokers that are gone for good; their claims go with them.
        leaving: names of the brokers to be removed, and of those that stay after all and are yet to
            be undrained; to be given as `were_leaving` the next time.
        empty: those of them without replicas: their pods go.
        message: the work under way; empty: none.
        missing: names of brokers that have yet to join.
        problem: why brokers cannot be removed; empty: they can.
    """

    replicas: Mapping[str, int]
    drain: tuple[BrokerId, ...] = ()
    undrain: tuple[BrokerId, ...] = ()
    moves: Mapping[PartitionName, tuple[BrokerId, ...]] = field(default_factory=dict)
    recall: tuple[PartitionName, ...] = ()
    unregister: tuple[BrokerId, ...] = ()
    leaving: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    message: str = ""
    missing: tuple[str, ...] = ()
    problem: str = ""


def pool_sizes(
    cluster: Cluster,
    stateful_sets: Sequence[Document],
    pods: Sequence[Document],
    members: Sequence[Member] | None,
) -> list[PoolSize]:
    """Return the wanted pools, and those that still exist.

    While a StatefulSet is recreated its pods show how many it had: none of them may be removed for
    that. A removed pool exists until the last of its brokers is unregistered.
    """
    there: dict[str, int] = {}
    for member in members or ():
        name, number = _pool_and_number(member.name)
        if name.startswith(f"{cluster.name}-") and number >= 0:
            there[name] = 0
    for pod in pods:
        name, number = _pool_and_number(pod["metadata"]["name"])
        if "deletionTimestamp" not in pod["metadata"] and number >= 0:
            there[name] = max(there.get(name, 0), number + 1)
    for stateful_set in stateful_sets:
        if "deletionTimestamp" not in stateful_set["metadata"]:
            there[stateful_set["metadata"]["name"]] = stateful_set["spec"]["replicas"]
    wanted = {
        pool_object_name(cluster.name, pool.name): pool.replicas for pool in cluster.spec.pools
    }
    return [
        PoolSize(name=name, wanted=wanted.get(name, 0), there=there.get(name, 0))
        for name in sorted({*wanted, *there})
    ]


def scaling(
    pools: Sequence[PoolSize],
    members: Sequence[Member] | None,
    partitions: Sequence[Placed] = (),
    *,
    were_leaving: Collection[str] = (),
) -> Scaling:
    """Return what to do about the number of brokers.

    Args:
        members: None: the brokers do not answer; then no broker is removed.
        were_leaving: brokers that were drained here. One that stays after all is undrained; one
            that a person drained is left alone.
    """
    kept = {pool.name: max(pool.wanted, pool.there) for pool in pools}
    if members is None:
        return Scaling(replicas=kept, leaving=tuple(were_leaving))
    wanted = {pool.name: pool.wanted for pool in pools}
    leaving = [member for member in members if _is_leaving(member.name, wanted)]
    leaving_ids = {member.broker_id for member in leaving}
    taken_back = {
        member.broker_id
        for member in members
        if member.is_drained and member.name in were_leaving and member.broker_id not in leaving_ids
    }
    staying = [
        replace(member, is_drained=member.is_drained and member.broker_id not in taken_back)
        for member in members
        if member.broker_id not in leaving_ids
    ]
    step = _step(kept, wanted, leaving, staying, partitions)
    if not taken_back:
        return step
    back = [member for member in staying if member.broker_id in taken_back]
    return replace(
        step,
        undrain=tuple(member.broker_id for member in back),
        leaving=(*step.leaving, *(member.name for member in back)),
        message=step.message or f"{_names(back)} {_do(back, 'stays', 'stay')} after all",
    )


def _step(
    kept: dict[str, int],
    wanted: Mapping[str, int],
    leaving: Sequence[Member],
    staying: Sequence[Member],
    partitions: Sequence[Placed],
) -> Scaling:
    """Return what to do, except for drained brokers that stay after all.

    Args:
        kept: replicas of each pool's StatefulSet if no broker is removed.
    """
    leaving_ids = {member.broker_id for member in leaving}
    names = tuple(member.name for member in leaving)
    drain = tuple(member.broker_id for member in leaving if not member.is_drained)
    holders = {broker for partition in partitions for broker in partition.holders}
    for member in leaving:
        pool, number = _pool_and_number(member.name)
        if member.broker_id in holders and number < REPLICAS_MAX:
            kept[pool] = max(kept[pool], number + 1)
    if any(partition.is_moving for partition in partitions):
        vain = tuple(each.place for each in partitions if leaving_ids & {*each.adding})
        return Scaling(
            replicas=kept,
            drain=drain,
            recall=vain,
            leaving=names,
            message=f"moves of {count(len(vain), 'partition')} to {_names(leaving)} are taken back"
            if vain
            else _moving(partitions, staying),
        )
    held = {broker for partition in partitions for broker in partition.replicas}
    if leaving_ids & held:
        return _move_off(kept, leaving, staying, partitions)
    if drain:
        # Before that a new topic may get replicas there: only the next look shows that none has.
        first = _do(leaving, "is drained before it goes", "are drained before they go")
        message = f"{_names(leaving)} {first}"
        return Scaling(replicas=kept, drain=drain, leaving=names, message=message)
    if leaving:
        return Scaling(
            replicas=wanted,
            unregister=tuple(member.broker_id for member in leaving if member.is_fenced),
            leaving=names,
            empty=names,
            message=f"{_names(leaving)} {_do(leaving, 'holds', 'hold')} nothing any more, and "
            f"{_do(leaving, 'goes', 'go')}",
        )
    moves, message = _shares(staying, wanted, partitions)
    expected = (f"{pool}-{number}" for pool, size in wanted.items() for number in range(size))
    return Scaling(
        replicas=wanted,
        moves=moves,
        message=message,
        missing=tuple(sorted({*expected} - {member.name for member in staying})),
    )


def _moving(partitions: Sequence[Placed], members: Sequence[Member]) -> str:
    """Return that replicas move, and for which of these brokers that waits."""
    told = "replicas are being moved"
    away = [member for member in members if member.is_fenced]
    awaited = {member.broker_id for member in away}
    waiting = sum(not awaited.isdisjoint(partition.adding) for partition in partitions)
    if not waiting:
        return told
    adding = {broker for partition in partitions for broker in partition.adding}
    names = _names([member for member in away if member.broker_id in adding])
    return f"{told}; {count(waiting, 'waits', 'wait')} for {names} to be back"


def _move_off(
    kept: Mapping[str, int],
    leaving: Sequence[Member],
    staying: Sequence[Member],
    partitions: Sequence[Placed],
) -> Scaling:
    leaving_ids = {member.broker_id for member in leaving}
    affected = [partition for partition in partitions if leaving_ids & {*partition.replicas}]
    names = tuple(member.name for member in leaving)
    drain = tuple(member.broker_id for member in leaving if not member.is_drained)
    if unfit := _unfit(affected, staying):
        return Scaling(
            replicas=kept,
            drain=drain,
            leaving=names,
            problem=f"{_names(leaving)} cannot go: {unfit}. Lower spec.replicas of their Topics, "
            "or set it: a Topic without it keeps the replicas that it has. Or raise replicas of a "
            "pool",
        )
    moves = _planned(partitions, staying, needed=affected)
    now, awaited = _possible(moves, partitions, staying)
    message = f"replicas of {count(len(affected), 'partition')} move off {_names(leaving)}"
    if awaited:
        waiting = count(len(moves) - len(now), "waits", "wait")
        message += f"; {waiting} for {_names(awaited)} to be back"
    return Scaling(
        replicas=kept,
        drain=drain,
        moves=now,
        leaving=names,
        message=message,
    )


def _unfit(partitions: Sequence[Placed], members: Sequence[Member]) -> str:
    """Return which topics have more replicas than these brokers can hold; empty: none has."""
    room = _rooms(members)
    too_many: dict[str, str] = {}
    for partition in partitions:
        replicas = 1 if partition.is_internal else len(partition.replicas)
        brokers = room(partition)
        if replicas > brokers:
            media = "" if partition.media is TopicMedia.ANY else f" of media {partition.media}"
            too_many[partition.place[0]] = (
                f"topic {partition.place[0]} has {count(replicas, 'replica')}{media}, and the "
                f"brokers that stay can hold {brokers}"
            )
    shown = [too_many[topic] for topic in sorted(too_many)[:_TOPICS_NAMED_MAX]]
    if more := len(too_many) - len(shown):
        shown.append(f"and {count(more, 'more topic')} likewise")
    return "; ".join(shown)


def _possible(
    moves: Mapping[PartitionName, tuple[BrokerId, ...]],
    partitions: Sequence[Placed],
    members: Sequence[Member],
) -> tuple[dict[PartitionName, tuple[BrokerId, ...]], list[Member]]:
    """Return the moves that can begin, and the brokers for which the others wait."""
    before = {partition.place: partition.replicas for partition in partitions}
    new = {place: {*replicas}.difference(before[place]) for place, replicas in moves.items()}
    away = [member for member in members if member.is_fenced]
    away_ids = {member.broker_id for member in away}
    now = {place: moves[place] for place in moves if away_ids.isdisjoint(new[place])}
    awaited = set().union(*new.values()) & away_ids
    return now, [member for member in away if member.broker_id in awaited]


def _shares(
    members: Sequence[Member], wanted: Mapping[str, int], partitions: Sequence[Placed]
) -> tuple[Mapping[PartitionName, tuple[BrokerId, ...]], str]:
    """Return the moves that give new brokers their share, once all of them are there.

    Returns:
        The moves, and the work under way; empty: none.
    """
    of_users = [partition for partition in partitions if not partition.is_internal]
    counted = of_users or partitions
    loads = {member.broker_id: 0 for member in members}
    for partition in counted:
        for broker in partition.replicas:
            loads[broker] = loads.get(broker, 0) + 1
    new = [member for member in members if not member.is_drained and not loads[member.broker_id]]
    if not new or max(loads.values(), default=0) < 2:
        return {}, ""
    ours = [member for member in members if _pool_and_number(member.name)[0] in wanted]
    if awaited := [member for member in ours if member.is_fenced and not member.is_drained]:
        starting = [member for member in awaited if member in new]
        away = [member for member in awaited if member not in new]
        until = [
            f"{_names(brokers)} {verb}"
            for brokers, verb in (
                (starting, _do(starting, "has started", "have started")),
                (away, _do(away, "is back", "are back")),
            )
            if brokers
        ]
        return {}, f"{_names(new)} {_do(new, 'gets', 'get')} a share once {' and '.join(until)}"
    if len(ours) < sum(wanted.values()):
        return {}, ""  # The missing ones are told.
    if all(member.is_fenced for member in new):
        return {}, ""
    # Apart, as internal topics have many small partitions: new brokers would get these alone.
    internal = [partition for partition in partitions if partition.is_internal]
    plan = {
        place: replicas
        for some in (of_users, internal)
        for place, replicas in _planned(some, members, needed=()).items()
    }
    moves, _ = _possible(plan, partitions, members)
    told = f"{_names(new)} {_do(new, 'gets', 'get')} a share of the replicas"
    return moves, told if moves else ""


def _planned(
    partitions: Sequence[Placed], members: Sequence[Member], *, needed: Collection[Placed]
) -> dict[PartitionName, tuple[BrokerId, ...]]:
    """Return a plan for the partitions that fit on these brokers. One that does not fit, since too
    few brokers have its media, is a problem of its Topic, and does not hold up the others.

    Args:
        needed: partitions that move in any case: they fit (`_unfit`), or belong to an internal
            topic, which gets fewer replicas.
    """
    room = _rooms(members)
    planned_for: list[Placed] = []
    others: Counter[BrokerId] = Counter()
    leaders: Counter[BrokerId] = Counter()
    for partition in partitions:
        if room(partition) >= len(partition.replicas) or partition in needed:
            planned_for.append(partition)
        else:
            others.update(partition.replicas)
            leaders[partition.replicas[0]] += 1
    return planned(
        {partition.place: partition.replicas for partition in planned_for},
        [Candidate(member.broker_id, member.zone, member.media) for member in members],
        may_shrink={partition.place for partition in needed if partition.is_internal},
        media={partition.place: partition.media for partition in planned_for},
        nothing_new=[member.broker_id for member in members if member.is_drained],
        other_replicas=others,
        other_leaders=leaders,
    )


def _rooms(members: Sequence[Member]) -> Callable[[Placed], int]:
    """Return a function that says how many of these brokers can hold a partition.

    A drained broker may keep a replica that it has, and gets no others.
    """
    holders = {
        media: {member.broker_id for member in members if media.is_among(member.media)}
        for media in TopicMedia
    }
    drained = {member.broker_id for member in members if member.is_drained}

    def room(partition: Placed) -> int:
        return len(holders[partition.media] - (drained - {*partition.replicas}))

    return room


def _is_leaving(broker: str, wanted: Mapping[str, int]) -> bool:
    """Whether a broker of one of the pools has a number beyond the pool's size."""
    pool, number = _pool_and_number(broker)
    return pool in wanted and number >= wanted[pool]


def _pool_and_number(broker: str) -> tuple[str, int]:
    found = re.fullmatch(r"(.+)-(\d{1,9})", broker, re.ASCII)
    return (found[1], int(found[2])) if found else (broker, -1)


def _names(members: Sequence[Member]) -> str:
    return ", ".join(member.name for member in members)


def _do(members: Sequence[Member], one: str, more: str) -> str:
    """Return the verb for these brokers."""
    return one if len(members) == 1 else more
