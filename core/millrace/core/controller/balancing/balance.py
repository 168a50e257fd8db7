"""Balancing leaderships over brokers: which partitions to move, as pure functions.

Three wishes, in this order:

1. a partition whose preferred leader can lead is led by it: then the placement, which is even,
   decides (see `placement`);
2. leaderships that fall free are spread over the brokers that can take them;
3. a broker that leads more than others, where it is not preferred, hands over.

For 2 and 3 the brokers are a graph: an edge from one to another for each partition that the one
leads and the other could. While a path goes from a broker to one with at least two leaderships
less, a partition is handed over along every edge of it: only the ends' loads change, by one. No
such path means that the loads are as even as the replica sets allow.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

from millrace.core.ids import BrokerId

_K = TypeVar("_K")


class Movable(NamedTuple):
    """A partition that can change its leader.

    Attributes:
        leader: the broker that leads it.
        preferred: the broker that should, if it is a candidate.
        candidates: the brokers that can.
    """

    leader: BrokerId
    preferred: BrokerId
    candidates: tuple[BrokerId, ...]


def heirs(free: Mapping[_K, Sequence[BrokerId]], loads: Counter[BrokerId]) -> dict[_K, BrokerId]:
    """Return a leader for each partition that has none.

    Args:
        free: the brokers that can lead each, the preferred one first; a partition without any is
            left out.
        loads: how many partitions each broker leads besides.
    """
    loads = Counter(loads)
    leaders: dict[_K, BrokerId] = {}
    for key, candidates in free.items():
        if candidates:
            leaders[key] = min(candidates, key=lambda broker: loads[broker])
            loads[leaders[key]] += 1
    candidates_of = {key: tuple(free[key]) for key in leaders}
    leaders.update(_evened(leaders, candidates_of, loads, len(leaders)))
    return leaders


def moves(
    partitions: Mapping[_K, Movable], loads: Counter[BrokerId], moves_max: int
) -> dict[_K, BrokerId]:
    """Return the new leader of each partition that is to be moved now.

    Args:
        partitions: those that their preferred leader does not lead.
        loads: how many partitions each broker leads, these included.
        moves_max: most partitions to move; the others are for the next time.
    """
    loads = Counter(loads)
    moving: dict[_K, BrokerId] = {}
    rest: dict[_K, Movable] = {}
    for key, partition in partitions.items():
        if partition.preferred not in partition.candidates:
            rest[key] = partition
        elif len(moving) < moves_max:
            moving[key] = partition.preferred
            loads.update({partition.leader: -1, partition.preferred: 1})
    leaders = {key: partition.leader for key, partition in rest.items()}
    candidates_of = {key: partition.candidates for key, partition in rest.items()}
    return moving | _evened(leaders, candidates_of, loads, moves_max - len(moving))


def _evened(
    leaders: Mapping[_K, BrokerId],
    candidates_of: Mapping[_K, tuple[BrokerId, ...]],
    loads: Counter[BrokerId],
    moves_max: int,
) -> dict[_K, BrokerId]:
    """Return what to hand over to even out the loads."""
    moving: dict[_K, BrokerId] = {}
    # Partitions that the first broker leads and the second could; inner dicts keep an order.
    edges: dict[BrokerId, dict[BrokerId, dict[_K, None]]] = {}

    def place(key: _K, leader: BrokerId) -> None:
        for other in candidates_of[key]:
            if other != leader:
                edges.setdefault(leader, {}).setdefault(other, {})[key] = None

    for key, leader in leaders.items():
        place(key, leader)
    path = _path_down(edges, loads)
    # Each path makes the sum of the squared loads smaller, so this ends.
    while path and len(moving) + len(path) - 1 <= moves_max:
        handed = [
            (next(iter(edges[giver][taker])), giver, taker) for giver, taker in pairwise(path)
        ]
        for key, giver, taker in handed:
            for other in candidates_of[key]:
                edges[giver].get(other, {}).pop(key, None)
            place(key, taker)
            moving[key] = taker
        loads.update({path[0]: -1, path[-1]: 1})
        path = _path_down(edges, loads)
    return {key: leader for key, leader in moving.items() if leader != leaders[key]}


def _path_down(
    edges: Mapping[BrokerId, Mapping[BrokerId, Mapping[_K, None]]], loads: Counter[BrokerId]
) -> list[BrokerId]:
    """Return a shortest path from a loaded broker to one with at least two leaderships less."""
    for start in sorted(edges, key=lambda broker: (-loads[broker], broker)):
        came_from = {start: start}
        waiting = deque([start])
        while waiting:
            broker_id = waiting.popleft()
            if loads[broker_id] <= loads[start] - 2:
                path = [broker_id]
                while path[-1] != start:
                    path.append(came_from[path[-1]])
                return path[::-1]
            for other, keys in sorted(edges.get(broker_id, {}).items()):
                if keys and other not in came_from:
                    came_from[other] = broker_id
                    waiting.append(other)
    return []
