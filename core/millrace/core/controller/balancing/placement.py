"""Where the replicas of new partitions go.

Leaders and replicas are spread evenly over brokers, and a partition's replicas over as many zones
as possible. Among equals, the followers of one leader are spread, too, so that the leaderships of a
dead broker go to all the others and not only to its neighbour.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from millrace.core.ids import BrokerId
from millrace.core.media import Media


class Candidate(NamedTuple):
    """A broker that can take replicas."""

    broker_id: BrokerId
    zone: str
    media: tuple[Media, ...] = ()


def place(
    partitions: int,
    replication_factor: int,
    candidates: Sequence[Candidate],
    *,
    replica_counts: Counter[BrokerId],
    leader_counts: Counter[BrokerId],
    follower_counts: Counter[tuple[BrokerId, BrokerId]],
    heir_counts: Counter[tuple[BrokerId, BrokerId]],
) -> list[tuple[BrokerId, ...]]:
    """Return the replicas of each new partition, the preferred leader first.

    Args:
        candidates: ascending by id, at least `replication_factor`.
        replica_counts: replicas that each broker holds already.
        leader_counts: partitions of which each broker is the preferred leader already.
        follower_counts: how many partitions one broker leads and another follows, by preference.
        heir_counts: in how many of these the other is the first follower.
    """
    assert 1 <= replication_factor <= len(candidates)
    replicas_by_broker = Counter(replica_counts)
    leaders_by_broker = Counter(leader_counts)
    followed = Counter(follower_counts)
    inherited = Counter(heir_counts)
    placed = []
    for _ in range(partitions):
        leader = min(
            candidates,
            key=lambda each: (
                leaders_by_broker[each.broker_id],
                replicas_by_broker[each.broker_id],
                each.broker_id,
            ),
        )
        chosen = [leader]
        while len(chosen) < replication_factor:
            zones = Counter(each.zone for each in chosen)
            follower = min(
                (each for each in candidates if each not in chosen),
                key=lambda each: (
                    zones[each.zone],
                    replicas_by_broker[each.broker_id],
                    followed[leader.broker_id, each.broker_id],
                    # The next ones after the leader, in a ring.
                    each.broker_id <= leader.broker_id,
                    each.broker_id,
                ),
            )
            chosen.append(follower)
        leader_id, *followers = (each.broker_id for each in chosen)
        # The first follower in sync becomes the leader when this one dies.
        followers.sort(key=lambda each: inherited[leader_id, each])
        inherited.update((leader_id, each) for each in followers[:1])
        followed.update((leader_id, each) for each in followers)
        leaders_by_broker[leader_id] += 1
        replicas_by_broker.update((leader_id, *followers))
        placed.append((leader_id, *followers))
    return placed
