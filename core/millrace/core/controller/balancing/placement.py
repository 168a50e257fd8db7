"""Where the replicas of new partitions go.

Leaders and replicas are spread evenly over brokers, and a partition's replicas over as many zones
as possible. Among equals, the followers of one leader are spread, too, so that the leaderships of a
dead broker go to all the others and not only to its neighbour.

Replicas stay where they are put. So a broker that is away for a moment gets its part, and its zone
counts (P77). Each partition has at least one replica on a broker that is there. If the zones allow
it, as many replicas are there as a write needs; the others join when their brokers are back. A
broker with a bad disk gets replicas only if no other broker of the zone can take them.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from millrace.core.ids import BrokerId
from millrace.core.media import Media


class Candidate(NamedTuple):
    """A broker that can take replicas.

    Attributes:
        is_there: it can be in sync at once.
        has_bad_disk: its disk is slow or full.
    """

    broker_id: BrokerId
    zone: str
    media: tuple[Media, ...] = ()
    is_there: bool = True
    has_bad_disk: bool = False


def place(
    partitions: int,
    replication_factor: int,
    candidates: Sequence[Candidate],
    *,
    replica_counts: Counter[BrokerId],
    leader_counts: Counter[BrokerId],
    follower_counts: Counter[tuple[BrokerId, BrokerId]],
    heir_counts: Counter[tuple[BrokerId, BrokerId]],
    in_sync_min: int = 1,
) -> list[tuple[BrokerId, ...]]:
    """Return the replicas of each new partition, the preferred leader first.

    Args:
        candidates: ascending by id, at least `replication_factor`; one of them is there.
        replica_counts: replicas that each broker holds already.
        leader_counts: partitions of which each broker is the preferred leader already.
        follower_counts: how many partitions one broker leads and another follows, by preference.
        heir_counts: in how many of these the other is the first follower.
        in_sync_min: how many replicas have to be in sync for a write.
    """
    assert 1 <= replication_factor <= len(candidates)
    assert any(candidate.is_there for candidate in candidates)
    replicas_by_broker = Counter(replica_counts)
    leaders_by_broker = Counter(leader_counts)
    followed = Counter(follower_counts)
    inherited = Counter(heir_counts)
    placed = []
    for _ in range(partitions):
        chosen: list[Candidate] = []
        waits = _waits(chosen, replication_factor, in_sync_min)
        leader = min(
            _able(candidates, chosen, replication_factor),
            key=lambda candidate: (
                waits and not candidate.is_there,
                candidate.has_bad_disk,
                leaders_by_broker[candidate.broker_id],
                replicas_by_broker[candidate.broker_id],
                candidate.broker_id,
            ),
        )
        chosen.append(leader)
        while len(chosen) < replication_factor:
            zones = Counter(broker.zone for broker in chosen)
            waits = _waits(chosen, replication_factor, in_sync_min)
            follower = min(
                _able(candidates, chosen, replication_factor),
                key=lambda candidate: (
                    zones[candidate.zone],
                    waits and not candidate.is_there,
                    candidate.has_bad_disk,
                    replicas_by_broker[candidate.broker_id],
                    followed[leader.broker_id, candidate.broker_id],
                    # The next ones after the leader, in a ring.
                    candidate.broker_id <= leader.broker_id,
                    candidate.broker_id,
                ),
            )
            chosen.append(follower)
        leader_id, *followers = (broker.broker_id for broker in chosen)
        # The first follower in sync becomes the leader when this one dies.
        followers.sort(key=lambda follower: inherited[leader_id, follower])
        inherited.update((leader_id, follower) for follower in followers[:1])
        followed.update((leader_id, follower) for follower in followers)
        leaders_by_broker[leader_id] += 1
        replicas_by_broker.update((leader_id, *followers))
        placed.append((leader_id, *followers))
    return placed


def _able(
    candidates: Sequence[Candidate], chosen: Sequence[Candidate], replication_factor: int
) -> list[Candidate]:
    """Return the brokers that the next replica may go to: the last one needs a leader."""
    must_be_there = len(chosen) == replication_factor - 1 and not any(
        broker.is_there for broker in chosen
    )
    taken = {broker.broker_id for broker in chosen}
    return [
        candidate
        for candidate in candidates
        if candidate.broker_id not in taken and (candidate.is_there or not must_be_there)
    ]


def _waits(chosen: Sequence[Candidate], replication_factor: int, in_sync_min: int) -> bool:
    """Whether writes would have to wait for the next broker if that is away."""
    there = sum(broker.is_there for broker in chosen)
    return in_sync_min - there >= replication_factor - len(chosen)
