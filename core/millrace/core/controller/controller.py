"""The controller: the one machine that changes the cluster's metadata.

It takes over (below), then decides on requests by changing its metadata (`decisions`), and writes
every object that changed with compare-and-swap. One write of an object is in flight at a time; what
changes meanwhile goes into the next one. An answer is released when all objects that it rests on
are stored as it saw them. So neither an answer nor the image shows a state that a crash could undo.

Taking over, so that a predecessor that does not know yet can do no harm (P34-P36):

1. read every object, the ClusterState last. Write nothing if these cannot follow from the objects
   seen before (`StoreVersions`), or if a shard is of a later controller than the ClusterState: the
   store, or a part of it, was set back or lost (P39);
2. write the ClusterState again with a controller epoch of one more;
3. read every shard and write it again under that epoch. A predecessor's write that comes after
   fails by its version; one that came before is read and kept;
4. only then look at requests.

Brokers register, and topics are made, only once every object is stored. So no controller leaves a
missing shard with brokers registered, or a shard with topics and no brokers: objects were lost, and
they are not created again.

A broker may have seen more than the store says. Either this controller was replaced, or the store
was set back; so it resigns and remembers that, and the next one finds out which at step 1.

Once active, a write can be refused only because a successor took over, or because the answer to our
own write was lost. The object is read to find out which. The same bytes: it is stored. The old
version: it is not, and is written again. Anything else ends this machine. The process goes on
without it and may start another, with a higher epoch.

Time is an argument: while this machine is active the shell calls `tick` after `pause_ms`, which it
asks again when a connection broke. Pure: the shell performs the effects in their order.
"""

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Final

from millrace.core.controller.decided.decided_metadata import DecidedMetadata
from millrace.core.controller.decided.decision import Decision, GrantEpoch
from millrace.core.controller.decisions import Decisions
from millrace.core.controller.effects import (
    Effect,
    PublishImage,
    ReadObject,
    Resigned,
    Respond,
    WriteObject,
)
from millrace.core.controller.lease import Deposed
from millrace.core.controller.request_limits import size_problem
from millrace.core.controller.writes import Writes
from millrace.core.errors import (
    Appended,
    ControllerNotAvailableError,
    InvalidConfigError,
    MalformedRequestError,
    NotControllerError,
)
from millrace.core.ids import ControllerEpoch, MonotonicMs
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import (
    CLUSTER_KEY,
    SHARD_KEYS,
    SHARDS,
    BrokerLife,
    ClusterState,
    StateShard,
    next_cluster,
    next_shard,
)
from millrace.core.metadata.objects.encoding import (
    decode_cluster,
    decode_shard,
    encode_cluster,
    encode_shard,
)
from millrace.core.metadata.objects.store_versions import NOTHING_SEEN, StoreVersions
from millrace.core.metadata.objects.stored_object import CorruptMetadataError, StoredObject
from millrace.core.metadata.requests import Request
from millrace.core.words import count

_SHARD_NUMBERS: Final = {key: number for number, key in enumerate(SHARD_KEYS)}


class Phase(Enum):
    """The phases of the machine."""

    TAKING_OVER = 1
    ACTIVE = 2
    RESIGNED = 3


class Controller:
    """The machine of one term: it takes over, decides, writes, and answers.

    Args:
        config: the same on every broker.
        new_cluster_id: the id to give when the store is empty: a new cluster.
        known_cluster_id: the id that this process knows its cluster by, if it does.
        seen: the remembered versions of the store.
        deposed: the broker of the controller before, if it is known.

    Attributes:
        seen: the same with everything that this machine has seen, for the next one.
        objects: the stored objects by key, as far as this machine knows: the full state for a
            broker that has just connected.
    """

    def __init__(
        self,
        config: ClusterConfig,
        *,
        new_cluster_id: str,
        known_cluster_id: str | None,
        seen: StoreVersions = NOTHING_SEEN,
        deposed: Deposed | None = None,
    ) -> None:
        self.seen = seen
        self.phase = Phase.TAKING_OVER
        self.objects: dict[str, StoredObject] = {}
        self._config = config
        self._new_cluster_id = new_cluster_id
        self._known_cluster_id = known_cluster_id
        self._deposed = deposed
        self._controller_epoch = ControllerEpoch(0)  # Until the ClusterState is claimed.
        self._found: dict[str, StoredObject | None] = {}  # What was there before that.
        self._decided = DecidedMetadata(ClusterState(cluster_id=new_cluster_id))
        self._image = MetadataImage.empty(self._decided.cluster)  # Of confirmed writes only.
        self._writes = Writes()
        self._unclaimed = set(range(SHARDS))
        self._decisions = Decisions(config, self._decided, self._image)  # Once active: another.

    def set_initial_brokers(self, brokers: int) -> None:
        """Let the cluster begin with so many brokers (P77), from the next request on."""
        self._config = replace(self._config, initial_brokers=brokers)
        self._decisions.set_initial_brokers(brokers)

    def take_over(self) -> list[Effect]:
        """Start; the caller has just acquired the lease."""
        return [ReadObject(key) for key in SHARD_KEYS]

    def handle(self, request_id: int, request: Request, now: MonotonicMs) -> list[Effect]:
        """Decide on a request.

        Args:
            request_id: names the request in its answer; no two open ones may be the same.
        """
        if self.phase is not Phase.ACTIVE:
            return [Respond(request_id, _not_controller("is not the controller now"))]
        if (problem := size_problem(request, self._config)) is not None:
            return [Respond(request_id, MalformedRequestError(problem))]
        return self._answer(request_id, self._decisions.decide(request, now))

    def pause_ms(self, now: MonotonicMs) -> int:
        """Return how long to wait before `tick`: `controller_tick_ms` at the most."""
        if self.phase is not Phase.ACTIVE:
            return self._config.controller_tick_ms
        return self._decisions.pause_ms(now)

    def tick(self, now: MonotonicMs) -> list[Effect]:
        """Let time pass: sessions end, reassignments complete, leaderships are evened out."""
        if self.phase is not Phase.ACTIVE:
            return []
        return [*self._decisions.tick(now), *self._write_changed()]

    def on_connection_broken(self, life: BrokerLife, now: MonotonicMs) -> list[Effect]:
        """A broker's connection to this controller broke, and it has no other one."""
        if self.phase is Phase.ACTIVE:
            self._decisions.on_connection_broken(life, now)
        return []

    def on_object_read(self, key: str, stored: StoredObject | None) -> list[Effect]:
        """Go on with an object as it is stored; None when it is not.

        Raises:
            CorruptMetadataError: the object is damaged, others that belong to it are gone, or the
                store was set back.
            InvalidConfigError: the store is of another cluster than this process knows.
        """
        if self.phase is Phase.RESIGNED:
            return []
        if self.phase is Phase.TAKING_OVER:
            if key == CLUSTER_KEY:
                return self._claim_cluster(stored)
            if self._controller_epoch:
                return self._claim_shard(_SHARD_NUMBERS[key], stored)
            self._found[key] = stored
            return [ReadObject(CLUSTER_KEY)] if len(self._found) == SHARDS else []
        in_flight = self._writes.in_flight(key)
        if stored == in_flight:
            return self.on_object_written(key)
        if (0 if stored is None else stored.version) == in_flight.version - 1:
            return [WriteObject(key, in_flight)]
        return self.resign(f"{key!r} was written by another controller")

    def on_object_written(self, key: str) -> list[Effect]:
        """A write was confirmed."""
        if self.phase is Phase.RESIGNED:
            return []
        stored, self._image, released = self._writes.end(key)
        self.objects[key] = stored
        if self.phase is Phase.TAKING_OVER:
            return self._go_on_taking_over(key)
        self._decisions.on_stored(self._image)
        effects: list[Effect] = [PublishImage(self._image, {key: stored})]
        for effect in released:
            if isinstance(effect, Respond) and isinstance(effect.result, GrantEpoch):
                granted = self._decisions.grant(effect.result)
                effects += self._answer(effect.request_id, granted)
            else:
                effects.append(effect)
        return effects + self._write_changed()

    def on_write_refused(self, key: str) -> list[Effect]:
        """A write was refused, or its outcome is unknown: read the object."""
        return [] if self.phase is Phase.RESIGNED else [ReadObject(key)]

    def on_seen_elsewhere(self, seen: StoreVersions) -> list[Effect]:
        """A broker says what it has seen of the store: resign if it is more than is here (P39)."""
        if self.phase is not Phase.ACTIVE:
            return []
        try:
            seen.refuse_older(self.objects)
            return []
        except CorruptMetadataError:
            pass  # Or this controller was replaced: reading the store will tell.
        effects = self.resign(
            f"a broker has seen more of the metadata: it knows the controller of epoch "
            f"{seen.controller_epoch}, and this one has {self._controller_epoch}"
        )
        self.seen = seen  # Ours is a part of it, or of a history that must not continue.
        return effects

    def resign(self, reason: str) -> list[Effect]:
        """End this machine, for example when the lease is lost. Waiting requests fail."""
        if self.phase is Phase.RESIGNED:
            return []
        self.phase = Phase.RESIGNED
        self.seen = self.seen.merged(StoreVersions.of(self.objects))
        error = _not_controller("stopped being the controller meanwhile", appended=Appended.MAYBE)
        responses: list[Effect] = [
            Respond(effect.request_id, error)
            for effect in self._writes.abandon()
            if isinstance(effect, Respond)
        ]
        return [*responses, Resigned(reason)]

    def _claim_cluster(self, stored: StoredObject | None) -> list[Effect]:
        if stored is not None:
            cluster = decode_cluster(stored)
        elif self._known_cluster_id is None:
            cluster = ClusterState(cluster_id=self._new_cluster_id)
        else:
            raise InvalidConfigError(
                "the coordination store is empty, but the log directories belong to the cluster "
                f"{self._known_cluster_id}: the store was lost or its path changed. Restore it; "
                "nothing was changed"
            )
        if self._known_cluster_id not in (None, cluster.cluster_id):
            raise InvalidConfigError(
                f"the coordination store belongs to the cluster {cluster.cluster_id}, but the log "
                f"directories to {self._known_cluster_id}: correct the path of one of them"
            )
        self._refuse_set_back(stored)
        self._controller_epoch = ControllerEpoch(cluster.controller_epoch + 1)
        self._image = MetadataImage.empty(cluster)
        self._decided = DecidedMetadata(cluster)
        self._decided.cluster = cluster  # Written again as it is, under the new epoch.
        return self._write_changed()

    def _refuse_set_back(self, cluster: StoredObject | None) -> None:
        """Refuse found objects that do not fit each other, or the remembered versions."""
        self.seen.refuse_older({**self._found, CLUSTER_KEY: cluster})
        epoch = 0 if cluster is None else cluster.controller_epoch
        for key, shard in self._found.items():
            # A controller writes the cluster before its shards, and the cluster was read last.
            if shard is not None and shard.controller_epoch > epoch:
                raise CorruptMetadataError(
                    f"the metadata object {CLUSTER_KEY!r} was lost or set back to an older state: "
                    f"its controller epoch is {epoch}, and {key!r} is of {shard.controller_epoch}. "
                    "Restore its newest state; nothing was changed"
                )

    def _claim_shard(self, number: int, stored: StoredObject | None) -> list[Effect]:
        key, brokers = SHARD_KEYS[number], self._image.cluster.brokers
        if stored is None and brokers:
            raise CorruptMetadataError(
                f"the metadata object {key!r} is missing from the coordination store, but the "
                f"cluster has {count(len(brokers), 'broker')}: its topics were lost. Restore the "
                "store from a backup; no topic was changed"
            )
        shard = StateShard(number=number) if stored is None else decode_shard(number, stored)
        if shard.controller_epoch > self._controller_epoch:
            return self.resign(f"{key!r} belongs to a later controller")
        if (shard.topics or shard.deleted or shard.deletions) and not brokers:
            raise CorruptMetadataError(
                f"the metadata object {key!r} holds topics, but the cluster has no brokers: the "
                f"object {CLUSTER_KEY!r} was lost and created again. Restore the store from a "
                "backup; no topic was changed"
            )
        self._image = self._image.with_shard(shard)
        self._decided.take_shard(shard)
        self._decided.changed[key] = None
        return self._write_changed()

    def _go_on_taking_over(self, written: str) -> list[Effect]:
        if written == CLUSTER_KEY:
            return [ReadObject(key) for key in SHARD_KEYS]
        self._unclaimed.discard(_SHARD_NUMBERS[written])
        if self._unclaimed:
            return []
        self.phase = Phase.ACTIVE
        self._decisions = Decisions(self._config, self._decided, self._image, self._deposed)
        return [PublishImage(self._image, dict(self.objects))]

    def _answer(self, request_id: int, decision: Decision) -> list[Effect]:
        keys = decision.keys
        if decision.is_refusal:  # Any change that is not stored yet may be the reason.
            keys = [*keys, *self._writes.unstored(self._decided.changed)]
        answer = Respond(request_id, decision.result)
        return self._writes.hold(answer, keys, self._decided.changed) + self._write_changed()

    def _write_changed(self) -> list[Effect]:
        """Write every changed object that has no write in flight."""
        effects: list[Effect] = []
        for key, report in self._decisions.take_reports():
            effects += self._writes.hold(report, [key], self._decided.changed)
        for key in list(self._decided.changed):
            if not self._writes.is_in_flight(key) or self.phase is Phase.TAKING_OVER:
                del self._decided.changed[key]
                effects.append(self._writes.begin(key, *self._next_version(key)))
        return effects

    def _next_version(self, key: str) -> tuple[StoredObject, Callable[[], MetadataImage]]:
        """Return the object's next version, and what the image becomes once it is stored."""
        if key == CLUSTER_KEY:
            cluster = next_cluster(
                self._image.cluster, self._decided.cluster, self._controller_epoch
            )
            return encode_cluster(cluster), lambda: self._image.with_cluster(cluster)
        number = _SHARD_NUMBERS[key]
        content = self._decided.shard_content(number)
        shard = next_shard(self._image.shards[number], *content, self._controller_epoch)
        return encode_shard(shard), lambda: self._image.with_shard(shard)


def no_controller(why: str) -> ControllerNotAvailableError:
    """Return the error that says why no broker acts as the controller."""
    return ControllerNotAvailableError(f"there is no controller: {why}")


def _not_controller(what: str, *, appended: Appended = Appended.NO) -> NotControllerError:
    return NotControllerError(f"this broker {what}: try again", appended=appended)
