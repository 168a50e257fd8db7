"""A broker's process has started: its identity and its new life.

A start in two phases (P37), because a decision about one object may rest on another only through
values copied into it, and there is no write of several at once:

1. the earlier life leaves every partition's ISR, and its ELR unless it surely still has its records
   (P26, P27); at the same time the broker is fenced, so that no leader takes it back in;
2. when that is stored, the new broker epoch is granted. The broker stays fenced until it has caught
   up with that metadata (P28).

A log directory remembers the latest life that ran with it, before that life's first heartbeat. So
the first heartbeat that lets a broker lead also reports that its directories remember this life
(`BrokerRegistration.directory_epoch`). Directories that remember only an earlier life are an older
copy, restored from a backup, and lack records acknowledged since. The broker is refused, as the
operator may have the newer copy. It is not treated as a lost disk automatically: if no other
replica is left, P31 would elect it, and cut off the records of the right one. A person may say that
this very copy counts as a lost disk (`RegisterBroker.accepted_copy`). They name its life and the
one whose directories are lost, so that the same copy, put back again later, is refused. A life that
was granted and crashed before its directories remembered it has done nothing, and is not missed.

A crash between the two phases leaves a fenced broker of the old epoch, in no ISR. The new epoch is
taken from the cluster's counter in the first phase, so it is granted to this start or to none.

Sources: KIP-631, KIP-966; KIP-380 for broker epochs.
"""

from collections.abc import Iterable
from dataclasses import replace

from millrace.core.controller.partitions.elections import Restart
from millrace.core.errors import (
    DuplicateBrokerRegistrationError,
    InvalidConfigError,
    MillraceError,
)
from millrace.core.ids import BrokerEpoch, BrokerId
from millrace.core.metadata import broker_levels
from millrace.core.metadata.model import BrokerLife, BrokerRegistration, ClusterState, Topic
from millrace.core.metadata.requests import AcceptedCopy, RegisterBroker


def kind_of(known: BrokerRegistration | None, request: RegisterBroker) -> Restart:
    """Return what a broker still has, by its directories and their markers (P27).

    The marker names the epoch: one of an earlier life proves nothing about the last.
    """
    if known is None:
        return Restart.CLEAN
    if not _has_its_directories(known, request):
        return Restart.LOST_DISK
    if request.directory_epoch is None and known.directory_epoch:
        return Restart.LOST_DISK  # Their state is unknown.
    if is_older_copy(known, request):
        return Restart.LOST_DISK  # Accepted, or it would have been refused.
    is_marked = request.previous_broker_epoch == known.broker_epoch
    return Restart.CLEAN if is_marked else Restart.UNCLEAN


def is_older_copy(known: BrokerRegistration, request: RegisterBroker) -> bool:
    """Whether a broker's directories remember an earlier life than the last one that used them."""
    epoch = request.directory_epoch
    return (
        epoch is not None and epoch < known.directory_epoch and _has_its_directories(known, request)
    )


def refusal(
    cluster: ClusterState,
    known: BrokerRegistration | None,
    request: RegisterBroker,
    *,
    topics: Iterable[Topic],
    is_alive: bool,
    brokers_max: int,
) -> MillraceError | None:
    """Return why a broker cannot be registered (P28).

    Args:
        known: the registration of its name.
        topics: all that there are, with the deleted ones.
        is_alive: whether a process of that name has a session that is not over.
        brokers_max: how many may be registered: their object is bounded.
    """
    problem = _directory_problem(cluster, known, request) or _copy_problem(cluster, known, request)
    if problem is None and known is None and len(cluster.brokers) >= brokers_max:
        problem = (
            f"broker {request.name!r} is new, and {len(cluster.brokers)} are registered (the "
            f"setting cluster.brokers_max allows {brokers_max}): unregister those that are gone "
            "for good. If each start of a broker makes another name, set node.name"
        )
    if problem is not None:
        return InvalidConfigError(problem)
    unsupported = broker_levels.refusal(request.level, request.name, cluster, topics)
    if unsupported is not None:
        return unsupported
    # A clean-shutdown marker is the last thing that a life writes: that one is over.
    if is_alive and kind_of(known, request) is not Restart.CLEAN:
        return DuplicateBrokerRegistrationError(
            f"broker {request.name!r} is alive in another process, or was a moment ago: try again "
            "when its session is over; if it does not end, two brokers have the same node.name"
        )
    return None


def reserved_life(
    cluster: ClusterState, known: BrokerRegistration | None, level: int
) -> tuple[ClusterState, BrokerLife]:
    """Begin the first phase: take the next broker epoch, and fence the earlier life.

    From now on no topic gets settings that a broker of `level` does not know.
    """
    broker_id = cluster.next_broker_id if known is None else known.broker_id
    life = BrokerLife(broker_id, BrokerEpoch(cluster.last_broker_epoch + 1))
    brokers = dict(cluster.brokers)
    if known is not None:
        brokers[broker_id] = replace(known, is_fenced=True, level=level)
    return (
        replace(
            cluster,
            brokers=brokers,
            next_broker_id=BrokerId(max(cluster.next_broker_id, broker_id + 1)),
            last_broker_epoch=life.broker_epoch,
        ),
        life,
    )


def granted(
    cluster: ClusterState, request: RegisterBroker, life: BrokerLife
) -> tuple[ClusterState, BrokerRegistration]:
    """Do the second phase: the new life is the broker's, fenced."""
    known = cluster.brokers.get(life.broker_id)
    is_drained = known is not None and known.is_drained
    registration = BrokerRegistration(
        broker_id=life.broker_id,
        name=request.name,
        # P77: one that does not know its zone at this start is still where it was.
        rack=request.rack or ("" if known is None else known.rack),
        host=request.host,
        port=request.port,
        incarnation_id=request.incarnation_id,
        directory_ids=tuple(sorted(request.directory_ids)),
        broker_epoch=life.broker_epoch,
        is_fenced=True,
        directory_epoch=request.directory_epoch or BrokerEpoch(0),
        level=request.level,
        replica_host=request.replica_host,
        replica_port=request.replica_port,
        is_draining=is_drained,
        is_drained=is_drained,
        # Until the heartbeat that unfences it reports its present media.
        media=() if known is None else known.media,
        outside_address="" if known is None else known.outside_address,
    )
    return with_broker(cluster, registration), registration


def with_broker(cluster: ClusterState, registration: BrokerRegistration) -> ClusterState:
    """Return the cluster with another registration of a broker."""
    return replace(cluster, brokers={**cluster.brokers, registration.broker_id: registration})


def unfenced(broker: BrokerRegistration) -> BrokerRegistration:
    """Return the registration of a broker that may lead: its directories remember this life."""
    return replace(broker, is_fenced=False, directory_epoch=broker.broker_epoch)


def _has_its_directories(known: BrokerRegistration, request: RegisterBroker) -> bool:
    return {*known.directory_ids} <= {*request.directory_ids}


def _copy_problem(
    cluster: ClusterState, known: BrokerRegistration | None, request: RegisterBroker
) -> str | None:
    epoch = request.directory_epoch
    if epoch is None or known is None:
        return None
    if epoch > cluster.last_broker_epoch:
        return (
            f"broker {request.name!r}: its log directories were used in broker epoch {epoch}, and "
            f"the cluster has given none above {cluster.last_broker_epoch}: the coordination store "
            "was set back to an older state. Restore its newest state; nothing was changed"
        )
    copy = AcceptedCopy(epoch, known.directory_epoch)
    if is_older_copy(known, request) and request.accepted_copy != copy:
        return (
            f"broker {request.name!r}: a log directory was last used in broker epoch {epoch}, but "
            f"the broker has run in epoch {known.directory_epoch} since: an older copy was put "
            "back, which lacks what was acknowledged meanwhile. Put the newest one back. If that "
            f"is lost, accept this copy in its place by {copy.as_setting}. It then counts as a "
            "lost disk: what other replicas have is fetched from them, and what none has is lost. "
            "Nothing was changed"
        )
    return None


def _directory_problem(
    cluster: ClusterState, known: BrokerRegistration | None, request: RegisterBroker
) -> str | None:
    if request.broker_id is not None and (known is None or known.broker_id != request.broker_id):
        owner = cluster.brokers.get(request.broker_id)
        if owner is None:
            return (
                f"broker {request.name!r}: its log directories belong to broker "
                f"{request.broker_id}, which the cluster does not know (any more): give it new "
                "log_dirs. If it was unregistered, these hold nothing that the cluster counts on"
            )
        return (
            f"broker {request.name!r}: its log directories belong to broker {request.broker_id}, "
            f"which is named {owner.name!r}: correct node.name, or give the broker its own log_dirs"
        )
    for other in cluster.brokers.values():
        shared = set(other.directory_ids) & set(request.directory_ids)
        if other is not known and shared:
            return (
                f"broker {request.name!r}: its log directory {min(shared)} is also one of broker "
                f"{other.name!r}: a copied directory cannot be used by two"
            )
    return None
