"""A plan of moves that balances replicas over brokers and zones, as pure functions.

A plan moves as little as it can, because each replica that moves is copied:

1. replicas on candidates that have the topic's media stay; the others, and missing ones, go to a
   broker in a zone that the partition is not in yet, and among those to the one with the fewest;
2. if a zone has two replicas of a partition and another has none, one moves there;
3. while one broker holds at least two replicas more than another, one moves over, unless that puts
   two replicas of two zones into one;
4. the order of replicas spreads the preferred leaders, which copies nothing.

Carried out by `reassignment` (P33).
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Generic, TypeVar

from millrace.core import words
from millrace.core.controller.balancing import balance
from millrace.core.controller.balancing.balance import Movable
from millrace.core.controller.balancing.placement import Candidate
from millrace.core.errors import InvalidReplicaAssignmentError
from millrace.core.ids import NO_BROKER, BrokerId
from millrace.core.media import TopicMedia

_K = TypeVar("_K")


def planned(
    partitions: Mapping[_K, Sequence[BrokerId]],
    candidates: Sequence[Candidate],
    *,
    replication_factor: int | None = None,
    replication_factor_max: int | None = None,
    may_shrink: Collection[_K] = (),
    media: Mapping[_K, TopicMedia] | None = None,
    nothing_new: Collection[BrokerId] = (),
    other_replicas: Counter[BrokerId] | None = None,
    other_leaders: Counter[BrokerId] | None = None,
) -> dict[_K, tuple[BrokerId, ...]]:
    """Return the new replicas of the partitions that change, the preferred leader first.

    Args:
        partitions: the replicas of each that may move, the preferred leader first.
        candidates: the brokers that are to hold them.
        replication_factor: how many replicas each is to have; None: as many as it has.
        replication_factor_max: upper bound of that; partitions that have fewer get no more.
        may_shrink: partitions that get fewer replicas where there are too few brokers for them.
        media: on which the replicas of a partition should lie; any, if it is not named.
        nothing_new: candidates that may keep what they have, and get no more.
        other_replicas: what each broker holds of partitions that are not to move.
        other_leaders: how many of those it leads by preference.

    Raises:
        InvalidReplicaAssignmentError: there are fewer brokers than replicas of a partition.
    """
    media = media or {}
    plan = _Plan[_K](candidates, media, nothing_new, other_replicas or Counter())
    counts: dict[_K, int] = {}
    for key, replicas in partitions.items():
        count = len(replicas) if replication_factor is None else replication_factor
        if replication_factor_max is not None:
            count = min(count, replication_factor_max)
        there = plan.count_for(key, replicas)
        if key in may_shrink:
            count = min(count, max(there, 1))
        counts[key] = count
        if not 1 <= count <= there:
            wanted = media.get(key, TopicMedia.ANY)
            kind = "" if wanted is TopicMedia.ANY else f" with a log directory on {wanted.needed}"
            raise InvalidReplicaAssignmentError(
                f"{words.count(count, 'replica needs', 'replicas need')} as many brokers{kind}, "
                f"and {words.count(there, 'broker is', 'brokers are')} there to choose from: name "
                "more brokers, or a smaller replication factor"
            )
        plan.keep(key, replicas, count)
    for key, count in counts.items():
        plan.fill(key, count)
    plan.spread_zones()
    plan.even_replicas()
    plan.even_leaders(other_leaders or Counter())
    return {
        key: tuple(after) for key, after in plan.replicas.items() if after != list(partitions[key])
    }


class _Plan(Generic[_K]):
    """The planned replicas, while the plan is made."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        media: Mapping[_K, TopicMedia],
        nothing_new: Collection[BrokerId],
        other_replicas: Counter[BrokerId],
    ) -> None:
        self.replicas: dict[_K, list[BrokerId]] = {}
        self._zone = {candidate.broker_id: candidate.zone for candidate in candidates}
        self._media = media
        # By requested media: brokers that can hold it, and those that may get more. Dicts are
        # ordered.
        self._holders = {
            wanted: {
                candidate.broker_id: None
                for candidate in candidates
                if wanted.is_among(candidate.media)
            }
            for wanted in TopicMedia
        }
        self._takers = {
            wanted: {holder: None for holder in holders if holder not in nothing_new}
            for wanted, holders in self._holders.items()
        }
        self._loads = Counter({candidate.broker_id: 0 for candidate in candidates})
        self._loads.update({broker: other_replicas[broker] for broker in self._zone})
        # Partitions of each broker, by requested media.
        self._held: dict[BrokerId, dict[TopicMedia, dict[_K, None]]] = {
            broker: {wanted: {} for wanted in TopicMedia} for broker in self._zone
        }

    def _wanted(self, key: _K) -> TopicMedia:
        return self._media.get(key, TopicMedia.ANY)

    def count_for(self, key: _K, replicas: Sequence[BrokerId]) -> int:
        """Return how many brokers may hold a partition."""
        holders, takers = self._holders[self._wanted(key)], self._takers[self._wanted(key)]
        return len({*takers, *(replica for replica in replicas if replica in holders)})

    def keep(self, key: _K, replicas: Sequence[BrokerId], count: int) -> None:
        """Keep at most `count` replicas that may stay; prefer brokers that may get more."""
        holders, takers = self._holders[self._wanted(key)], self._takers[self._wanted(key)]
        held = [replica for replica in replicas if replica in holders]
        best = sorted(held, key=lambda broker: broker not in takers)[:count]
        self.replicas[key] = [broker for broker in held if broker in best]
        for replica in self.replicas[key]:
            self._take(replica, key)

    def fill(self, key: _K, count: int) -> None:
        """Add the replicas that are missing."""
        replicas = self.replicas[key]
        while len(replicas) < count:
            zones = Counter(self._zone[replica] for replica in replicas)
            chosen = min(
                (taker for taker in self._takers[self._wanted(key)] if taker not in replicas),
                key=lambda broker: (zones[self._zone[broker]], self._loads[broker], broker),
            )
            replicas.append(chosen)
            self._take(chosen, key)

    def _take(self, broker_id: BrokerId, key: _K) -> None:
        self._loads[broker_id] += 1
        self._held[broker_id][self._wanted(key)][key] = None

    def spread_zones(self) -> None:
        """Move replicas from zones that have two to zones that have none."""
        for key, replicas in self.replicas.items():
            takers = self._takers[self._wanted(key)]
            while True:
                zones = Counter(self._zone[replica] for replica in replicas)
                doubled = [replica for replica in replicas[::-1] if zones[self._zone[replica]] > 1]
                empty = [taker for taker in takers if not zones[self._zone[taker]]]
                if not doubled or not empty:
                    break
                giver = max(doubled, key=lambda broker: self._loads[broker])
                self._move(key, giver, min(empty, key=lambda broker: (self._loads[broker], broker)))

    def even_replicas(self) -> None:
        """Move replicas from brokers with many to those with few."""
        while True:
            order = sorted(self._zone, key=lambda broker: (-self._loads[broker], broker))
            move = next(
                (
                    (key, giver, taker)
                    for giver in order
                    for taker in order[::-1]
                    if self._loads[giver] - self._loads[taker] >= 2
                    and (key := self._movable(giver, taker)) is not None
                ),
                None,
            )
            if move is None:  # Each move makes the sum of the squared loads smaller.
                return
            self._move(*move)

    def _movable(self, giver: BrokerId, taker: BrokerId) -> _K | None:
        """Return a partition that can move; prefer one that the giver should only follow."""
        found: _K | None = None
        for wanted, held in self._held[giver].items():
            for key in held if taker in self._takers[wanted] else ():
                replicas = self.replicas[key]
                if taker in replicas or not self._keeps_zones(replicas, giver, taker):
                    continue
                if replicas[0] != giver:
                    return key
                found = key if found is None else found
        return found

    def _keeps_zones(self, replicas: Sequence[BrokerId], giver: BrokerId, taker: BrokerId) -> bool:
        others = {self._zone[replica] for replica in replicas if replica != giver}
        return self._zone[taker] not in others or self._zone[giver] in others

    def _move(self, key: _K, giver: BrokerId, taker: BrokerId) -> None:
        replicas = self.replicas[key]
        replicas[replicas.index(giver)] = taker
        self._loads[giver] -= 1
        del self._held[giver][self._wanted(key)][key]
        self._take(taker, key)

    def even_leaders(self, other_leaders: Counter[BrokerId]) -> None:
        """Reorder replicas so that each broker is the preferred leader of its share."""
        loads = Counter({broker: other_leaders[broker] for broker in self._zone})
        loads.update(replicas[0] for replicas in self.replicas.values())
        movable = {
            key: Movable(replicas[0], NO_BROKER, tuple(replicas))
            for key, replicas in self.replicas.items()
        }
        for key, leader in balance.moves(movable, loads, len(movable)).items():
            rest = [replica for replica in self.replicas[key] if replica != leader]
            self.replicas[key] = [leader, *rest]
