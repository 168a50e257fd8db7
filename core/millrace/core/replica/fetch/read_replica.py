"""Which replica a reader should read from: one of its own zone, if that is as good (KIP-392).

The leader decides, because it alone knows how far the others are. A follower qualifies (P12) while
it is in sync and alive, is not about to stop, and has the position that the reader wants. The
reader stays with the leader in the leader's own zone, and in a zone without a qualifying follower.

Pure. Source: KIP-392, whose `RackAwareReplicaSelector` chooses likewise.
"""

from collections.abc import Collection, Iterable, Mapping

from millrace.core.ids import BrokerId, Offset
from millrace.core.metadata.model import BrokerLife, BrokerRegistration
from millrace.core.replica.replication.progress import Follower


def preferred_read_replica(
    zone: str,
    fetch_offset: Offset,
    *,
    leader: BrokerId,
    isr: Collection[BrokerLife],
    followers: Iterable[Follower],
    brokers: Mapping[BrokerId, BrokerRegistration],
) -> BrokerId | None:
    """Return the follower to read from; None: the leader.

    Args:
        zone: the reader's zone.
        fetch_offset: what it wants next.
        leader: of the partition.
        isr: in-sync replicas by their lives.
        followers: as the leader knows them.
        brokers: all that are registered.
    """
    leading = brokers.get(leader)
    if not zone or leading is None or leading.rack == zone:
        return None
    near = [
        follower
        for follower in followers
        if follower.life in isr
        and (broker := brokers.get(follower.broker_id)) is not None
        and broker.life == follower.life
        and broker.rack == zone
        and not broker.is_fenced
        and not broker.is_draining
        and follower.progress.log_start_offset <= fetch_offset <= follower.progress.log_end_offset
    ]
    furthest = max(
        near,
        key=lambda follower: (follower.progress.log_end_offset, -follower.broker_id),
        default=None,
    )
    return None if furthest is None else furthest.broker_id
