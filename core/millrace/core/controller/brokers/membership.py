"""Registered brokers, which of them live, and which are about to stop.

A broker registers and gets a life (`registration`), stays alive by heartbeats (`sessions`), and
reports when it wants to stop (`shutdown`) or is reluctant to lead. An operator may drain it, and
unregister it when it is gone for good. Elections follow from that. All changes go into
`DecidedMetadata`.

A broker is forgotten only once no *stored* partition has it as a replica: the two are written one
after the other, and a crash in between must not leave replicas on an unknown broker.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain

from millrace.core.controller.brokers import registration, shutdown
from millrace.core.controller.brokers.sessions import Sessions
from millrace.core.controller.brokers.shutdown import Shutdowns
from millrace.core.controller.decided.decided_metadata import DecidedMetadata
from millrace.core.controller.decided.decision import Decision, GrantEpoch
from millrace.core.controller.lease import Deposed
from millrace.core.controller.partitions import closing, leadership
from millrace.core.controller.partitions.elections import Restart
from millrace.core.controller.partitions.leadership import RulesByTopic
from millrace.core.errors import (
    BrokerIdNotRegisteredError,
    BrokerInUseError,
    DuplicateBrokerRegistrationError,
    MillraceError,
    NotControllerError,
    StaleBrokerEpochError,
)
from millrace.core.ids import BrokerEpoch, BrokerId, MonotonicMs, TopicPartition
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import CLUSTER_KEY, SHARD_KEYS, BrokerLife, BrokerRegistration
from millrace.core.metadata.requests import (
    DrainBroker,
    Heartbeat,
    HeartbeatAnswer,
    RegisterBroker,
    UnregisterBroker,
)
from millrace.core.words import count

_NAMED_MAX = 10
"""Partitions that a refusal names."""


class Membership:
    """Decides on the requests and silences of brokers.

    Args:
        decided: changed by every decision.
        image: of what is stored.

    Attributes:
        accepted: older copies of disks that were accepted, to be reported: the broker, the
            life that the copy remembers, and the one whose disk is given up.
    """

    def __init__(
        self, config: ClusterConfig, decided: DecidedMetadata, image: MetadataImage
    ) -> None:
        self._config = config
        self._decided = decided
        self._image = image
        self._sessions = Sessions(config)
        self._shutdowns = Shutdowns(config)
        self.accepted: list[tuple[BrokerId, BrokerEpoch, BrokerEpoch]] = []
        self._starting: dict[BrokerId, BrokerLife] = {}  # Between the phases of registration.
        # Epoch of the first image with the broker's life: the broker has to have seen it (P28).
        self._shown_since = dict.fromkeys(image.cluster.brokers, image.epoch)

    def on_stored(self, image: MetadataImage) -> None:
        """Take note of what is stored now."""
        old = self._image.cluster
        if image.cluster is not old:
            for broker_id, broker in image.cluster.brokers.items():
                known = old.brokers.get(broker_id)
                if known is None or known.life != broker.life:
                    self._shown_since[broker_id] = image.epoch
        self._image = image

    def expect_all(self, now: MonotonicMs, deposed: Deposed | None) -> None:
        """Give a session to every broker that was alive for the controller before (P29).

        Args:
            deposed: the broker of the controller before, if it is known.
        """
        for _, broker in sorted(self._decided.cluster.brokers.items()):
            if not broker.is_fenced:
                until = None
                if deposed is not None and broker.name == deposed.holder:
                    until = deposed.until(now, self._config.broker_reconnect_grace_ms)
                self._sessions.expect(broker.life, now, until)

    def tick(self, now: MonotonicMs) -> None:
        """Fence the brokers whose session is over."""
        ended = self._sessions.ended(now)
        if ended:
            self._fence(ended)

    def next_end(self) -> MonotonicMs | None:
        """Return when the next session ends, unless its broker sends a heartbeat."""
        return self._sessions.next_end()

    def on_connection_broken(self, life: BrokerLife, now: MonotonicMs) -> None:
        """A broker's connection broke: its session ends soon."""
        self._sessions.on_connection_broken(life, now)

    def register(self, request: RegisterBroker) -> Decision:
        cluster = self._decided.cluster
        known = cluster.broker_named(request.name)
        is_alive = known is not None and self._may_be_alive(known, request)
        is_retry = known is not None and known.incarnation_id == request.incarnation_id
        error = registration.refusal(
            cluster,
            known,
            request,
            topics=chain(
                self._decided.topics(),
                (deleted_topic.topic for deleted_topic in self._decided.deleted.values()),
            ),
            is_alive=is_alive and not is_retry,
            brokers_max=self._config.brokers_max,
        )
        if error is not None:
            return Decision(error, is_refusal=True)
        if known is not None and is_retry and known.broker_id not in self._starting:
            return Decision(known, [CLUSTER_KEY])
        self._decided.cluster, life = registration.reserved_life(cluster, known, request.level)
        self._starting[life.broker_id] = life
        grant = GrantEpoch(request=request, life=life)
        if known is None:
            return self.grant_epoch(grant)
        self._sessions.end(life.broker_id)
        self._shutdowns.forget(life.broker_id)
        restart = registration.kind_of(known, request)
        self._decided.put_partitions(
            leadership.restarted(self._decided, self._config, life, restart)
        )
        closed, brokers = self._decided.deleted.values(), self._decided.cluster.brokers
        for deleted in closing.restarted(closed, brokers, life, restart):
            self._decided.put_deleted(deleted)
        # All keys: the removal of the earlier life may not be stored yet.
        return Decision(grant, [CLUSTER_KEY, *SHARD_KEYS])

    def _may_be_alive(self, known: BrokerRegistration, request: RegisterBroker) -> bool:
        """Whether another process of a broker's name may live (P28).

        A new controller does not know brokers without a heartbeat. But a process locks its log
        directories: a process that has all of the broker's has outlived the earlier one.
        """
        has_its_disks = registration.kind_of(known, request) is not Restart.LOST_DISK
        return self._sessions.is_alive(known.broker_id) or (
            not has_its_disks and self._sessions.is_expected(known.broker_id)
        )

    def grant_epoch(self, grant: GrantEpoch) -> Decision:
        if self._starting.get(grant.life.broker_id) != grant.life:
            error = DuplicateBrokerRegistrationError(
                f"broker {grant.request.name!r} has registered again meanwhile"
            )
            return Decision(error, is_refusal=True)
        del self._starting[grant.life.broker_id]
        known = self._decided.cluster.brokers.get(grant.life.broker_id)
        epoch = grant.request.directory_epoch
        if known is not None and registration.is_older_copy(known, grant.request):
            assert epoch is not None
            self.accepted.append((known.broker_id, epoch, known.directory_epoch))
        self._decided.cluster, granted = registration.granted(
            self._decided.cluster, grant.request, grant.life
        )
        return Decision(granted, [CLUSTER_KEY])

    def heartbeat(self, request: Heartbeat, now: MonotonicMs) -> Decision:
        life = request.life
        error = self.stranger(life)
        if error is not None:
            return Decision(error, is_refusal=True)
        self._sessions.on_heartbeat(life, request.metadata_epoch, now)
        keys: list[str] = []
        broker = self._decided.cluster.brokers[life.broker_id]
        reported = replace(
            broker,
            media=request.media,
            outside_address=request.outside_address,
            drpc_addresses=request.drpc_addresses,
            tls_addresses=request.tls_addresses,
            kafka_addresses=request.kafka_addresses,
            level=request.level,
        )
        if reported != broker:
            broker = reported
            self._decided.cluster = registration.with_broker(self._decided.cluster, broker)
        if request.reluctance is not broker.reluctance:
            broker = replace(broker, reluctance=request.reluctance)
            self._put_willingness(broker)
        may_stop = False
        if request.wants_shutdown:
            if broker.is_fenced:
                may_stop = True  # It is in no ISR.
            else:
                self._shut_down(broker, now)
                may_stop = self._shutdowns.may_stop(
                    life.broker_id, self._image, self._sessions, now
                )
        elif broker.is_fenced and request.metadata_epoch >= self._shown_since[life.broker_id]:
            keys += self._unfence(broker)
        is_fenced = self._decided.cluster.brokers[life.broker_id].is_fenced
        # P40: a broker sends its next heartbeat after this answer. The answer waits for no write
        # that it does not report: otherwise a store that takes no writes would silence all brokers.
        stored = self._image.cluster.brokers.get(life.broker_id)
        if stored is None or stored.life != life or stored.is_fenced is not is_fenced:
            keys.append(CLUSTER_KEY)
        return Decision(HeartbeatAnswer(is_fenced, may_stop), keys)

    def stranger(self, life: BrokerLife) -> MillraceError | None:
        """Return the error if a life is not the registered one (P28)."""
        cluster = self._decided.cluster
        if life.broker_epoch > cluster.last_broker_epoch:
            return NotControllerError(
                f"broker {life.broker_id} is in epoch {life.broker_epoch}, and this controller has "
                f"granted none above {cluster.last_broker_epoch}: another one is the controller"
            )
        if not cluster.is_registered(life) or life.broker_id in self._starting:
            return StaleBrokerEpochError(
                f"broker {life.broker_id} is not in epoch {life.broker_epoch} any more: another "
                "process has registered under its name, or an operator had it unregistered, and "
                "this one must stop"
            )
        return None

    def _unfence(self, broker: BrokerRegistration) -> list[str]:
        """Let a broker that has caught up with its registration lead and be in sync (P28)."""
        self._decided.cluster = registration.with_broker(
            self._decided.cluster, registration.unfenced(broker)
        )
        return self._elect(list(self._decided.leaderless))

    def _shut_down(self, broker: BrokerRegistration, now: MonotonicMs) -> None:
        """Hand over a broker's leaderships, and remove it from ISRs with enough others (P32)."""
        self._shutdowns.begin(broker.broker_id, now)
        if not broker.is_draining:
            draining = replace(broker, is_draining=True)
            self._decided.cluster = registration.with_broker(self._decided.cluster, draining)
        if not self._shutdowns.is_news(broker.broker_id, self._decided.changes):
            return
        held = leadership.held_by(self._decided, [broker.broker_id])
        changes = leadership.elected(self._decided, self._config, held)
        rules = RulesByTopic(self._decided, self._config)
        for key in held:
            state = self._decided.partition(key)
            assert state is not None
            after = shutdown.left(state, rules[key.topic_id], broker.broker_id)
            if key not in changes and after is not state:
                changes[key] = after
        self._decided.put_partitions(changes)

    def drain(self, request: DrainBroker) -> Decision:
        broker = self._decided.cluster.brokers.get(request.broker_id)
        if broker is None:
            error = BrokerIdNotRegisteredError(f"there is no broker {request.broker_id}")
            return Decision(error, is_refusal=True)
        changed = replace(
            broker,
            is_drained=request.is_drained,
            is_draining=request.is_drained or self._shutdowns.is_wanted(broker.broker_id),
        )
        keys = [CLUSTER_KEY]
        if changed != broker:
            keys += self._put_willingness(changed)
        return Decision(changed, keys)

    def _put_willingness(self, changed: BrokerRegistration) -> list[str]:
        """Store a broker's changed willingness to lead, and elect accordingly."""
        self._decided.cluster = registration.with_broker(self._decided.cluster, changed)
        return self._elect([*led_unwillingly(self._decided), *self._decided.leaderless])

    def unregister(self, request: UnregisterBroker) -> Decision:
        broker_id = request.broker_id
        broker = self._decided.cluster.brokers.get(broker_id)
        if broker is None:
            error: MillraceError = BrokerIdNotRegisteredError(f"there is no broker {broker_id}")
            return Decision(error, is_refusal=True)
        problem = self._use_of(broker)
        if problem is not None:
            return Decision(BrokerInUseError(problem), is_refusal=True)
        self._sessions.end(broker_id)
        self._shutdowns.forget(broker_id)
        self._shown_since.pop(broker_id, None)
        others = dict(self._decided.cluster.brokers)
        del others[broker_id]
        self._decided.cluster = replace(self._decided.cluster, brokers=others)
        return Decision(broker, [CLUSTER_KEY])

    def _use_of(self, broker: BrokerRegistration) -> str | None:
        """Return why a broker cannot be unregistered; None: it can."""
        broker_id = broker.broker_id
        is_starting = broker_id in self._starting
        if not broker.is_fenced or self._sessions.is_alive(broker_id) or is_starting:
            return (
                f"broker {broker_id} ({broker.name}) is alive: stop it first, and wait until the "
                "cluster has noticed"
            )
        held = self._decided.replica_counts[broker_id]
        if held:
            names = [
                f"{topic.name}-{number}"
                for topic in self._decided.topics()
                for number, partition in enumerate(topic.partitions)
                if broker_id in partition.replicas
            ]
            more = f" and {held - _NAMED_MAX} more" if held > _NAMED_MAX else ""
            return (
                f"broker {broker_id} ({broker.name}) is to hold replicas of "
                f"{count(held, 'partition')}: "
                f"{', '.join(sorted(names)[:_NAMED_MAX])}{more}: reassign them to other brokers "
                "first"
            )
        if next(iter(self._image.replicas_of(broker_id)), None) is not None:
            return (
                f"broker {broker_id} ({broker.name}) has lost its last replica this moment, and "
                "that is not stored yet: try again"
            )
        return None

    def forget_holders(self) -> None:
        """Stop waiting for unregistered brokers to delete data of deleted topics.

        Both must be stored: that the broker is gone, and that its confirmation was awaited (P39).
        """
        known = self._image.cluster.brokers
        for shard in self._image.shards:
            for topic_id, holders in shard.deletions.items():
                for broker_id in sorted(holders - known.keys()):
                    self._decided.confirm_deletion(topic_id, broker_id)

    def _fence(self, lives: Iterable[BrokerLife]) -> None:
        """Fence brokers and elect other leaders, in one change (P29)."""
        brokers = dict(self._decided.cluster.brokers)
        fenced = []
        for life in lives:
            self._shutdowns.forget(life.broker_id)
            broker = brokers[life.broker_id]
            if broker.life == life and not broker.is_fenced:
                brokers[life.broker_id] = replace(broker, is_fenced=True)
                fenced.append(life.broker_id)
        if fenced:
            self._decided.cluster = replace(self._decided.cluster, brokers=brokers)
            self._elect(leadership.held_by(self._decided, fenced))

    def _elect(self, keys: Iterable[TopicPartition]) -> list[str]:
        changes = leadership.elected(self._decided, self._config, keys)
        return self._decided.put_partitions(changes)


def led_unwillingly(decided: DecidedMetadata) -> list[TopicPartition]:
    """Return the partitions whose leaders should hand over."""
    brokers = decided.cluster.brokers
    unwilling = {broker.broker_id for broker in brokers.values() if not broker.is_willing}
    if not any(decided.led_counts[broker_id] for broker_id in unwilling):
        return []
    return [
        TopicPartition(topic.topic_id, number)
        for topic in decided.topics()
        for number, partition in enumerate(topic.partitions)
        if partition.leader in unwilling
    ]
