"""A broker's view of the metadata, from the stored objects that controllers push to it (P39).

First comes the full state, every object there is; then each object as it is written, in the order
in which the controller saw the writes confirmed. An object counts only with a higher version than
the one before, and only from a controller that has not been replaced: the shell keeps the highest
epoch seen over restarts (`seen`), and a lower controller epoch is refused.

A gap in the versions means that an object was missed: the cache asks for the full state again, and
applies nothing until it comes. A full state may skip versions, but a lower version means that the
store was set back, and this broker does not follow.

After each event the shell compares itself with the cache, and catches up: it asks for the full
state, if something was missed; it stores `seen` first of all, if that names a new controller; it
follows the image. A new session does what an ended one left undone. Versions seen under one
controller should be stored soon, too: only then is a store detected that is set back meanwhile.

A broker never deletes data because a topic is missing in the metadata. It deletes only what the
metadata lists as deleted (`MetadataImage.deletions_of`).
"""

from collections.abc import Mapping
from typing import Final

from millrace.core.errors import InvalidConfigError, StaleControllerEpochError
from millrace.core.ids import ControllerEpoch
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import (
    CLUSTER_KEY,
    SHARD_KEYS,
    ClusterState,
    StateShard,
    follows,
)
from millrace.core.metadata.objects.encoding import decode_cluster, decode_shard
from millrace.core.metadata.objects.store_versions import NOTHING_SEEN, StoreVersions
from millrace.core.metadata.objects.stored_object import CorruptMetadataError, StoredObject

_SHARD_NUMBERS: Final = {key: number for number, key in enumerate(SHARD_KEYS)}


class MetadataCache:
    """Turns the objects that are pushed into images.

    Args:
        cluster_id: of this broker's log directories; None when they are new.
        seen: what earlier caches of this broker have seen, as far as it was stored.

    Attributes:
        image: the metadata now; None before the first full state.
        cluster_id: as given, or as the metadata says.
    """

    def __init__(self, cluster_id: str | None = None, seen: StoreVersions = NOTHING_SEEN) -> None:
        self.image: MetadataImage | None = None
        self.cluster_id = cluster_id
        self._before = seen
        self._controller_epoch = seen.controller_epoch
        self._waits_for_full_state = True

    @property
    def seen(self) -> StoreVersions:
        """All that was ever seen of the store."""
        if self.image is None:
            return self._before
        versions = (self.image.cluster.version, *(shard.version for shard in self.image.shards))
        return self._before.merged(StoreVersions(self._controller_epoch, versions))

    @property
    def has_missed(self) -> bool:
        """Whether an object was missed: the controller must send the full state."""
        return self._waits_for_full_state and self.image is not None

    def on_full_state(self, objects: Mapping[str, StoredObject]) -> None:
        """Every stored object came.

        Raises:
            StaleControllerEpochError: from a controller that has been replaced.
            CorruptMetadataError: an object is damaged, missing, or goes back.
            InvalidConfigError: it is another cluster's.
        """
        missing = [key for key in (CLUSTER_KEY, *SHARD_KEYS) if key not in objects]
        if missing:
            raise CorruptMetadataError(
                f"the controller sent its full state without {', '.join(missing)}"
            )
        # A controller rewrites all objects before it sends any, so one epoch stands for all.
        self._refuse_stale(objects[CLUSTER_KEY].controller_epoch)
        image = self.image
        if image is None:
            image = MetadataImage.empty(self._decoded_cluster(objects[CLUSTER_KEY]))
        self.seen.refuse_older(objects)
        for key in (CLUSTER_KEY, *SHARD_KEYS):
            image = self._with_object(image, key, objects[key])
        self._waits_for_full_state = False
        self._take_up(image)

    def on_object(self, key: str, stored: StoredObject) -> None:
        """One object was written.

        Raises:
            StaleControllerEpochError: from a controller that has been replaced.
            CorruptMetadataError: it is damaged, or goes back.
            InvalidConfigError: it is another cluster's.
        """
        self._refuse_stale(stored.controller_epoch)
        if self._waits_for_full_state or self.image is None:
            return
        known = _version(self.image, key)
        if stored.version > known + 1:
            self._waits_for_full_state = True
        elif stored.version > known:
            self._take_up(self._with_object(self.image, key, stored))

    def _refuse_stale(self, controller_epoch: ControllerEpoch) -> None:
        if controller_epoch < self._controller_epoch:
            raise StaleControllerEpochError(
                f"this comes from a controller of epoch {controller_epoch}, and epoch "
                f"{self._controller_epoch} has begun: it was replaced, or the coordination store "
                "was set back to an older state"
            )

    def _take_up(self, image: MetadataImage) -> None:
        """Continue with an image. All its objects were whole, so their controller epoch counts."""
        if image is self.image:
            return
        self.image = image
        self._controller_epoch = max(
            self._controller_epoch,
            image.cluster.controller_epoch,
            *(shard.controller_epoch for shard in image.shards),
        )

    def _with_object(self, image: MetadataImage, key: str, stored: StoredObject) -> MetadataImage:
        if stored.version <= _version(image, key):
            return image
        if key == CLUSTER_KEY:
            cluster = self._decoded_cluster(stored)
            if not follows(image.cluster, cluster):
                raise _goes_back(key)
            return image.with_cluster(cluster)
        number = _SHARD_NUMBERS[key]
        shard = decode_shard(number, stored, image.shards[number])
        if not follows(image.shards[number], shard):
            raise _goes_back(key)
        return image.with_shard(shard)

    def _decoded_cluster(self, stored: StoredObject) -> ClusterState:
        cluster = decode_cluster(stored)
        if self.cluster_id not in (None, cluster.cluster_id):
            raise InvalidConfigError(
                f"the controller is of the cluster {cluster.cluster_id}, but the log directories "
                f"belong to {self.cluster_id}: correct the path of one of them"
            )
        self.cluster_id = cluster.cluster_id
        return cluster


def _version(image: MetadataImage, key: str) -> int:
    if key == CLUSTER_KEY:
        return image.cluster.version
    held: StateShard = image.shards[_SHARD_NUMBERS[key]]
    return held.version


def _goes_back(key: str) -> CorruptMetadataError:
    return CorruptMetadataError(
        f"the metadata object {key!r} has a higher version, but an epoch in it is lower than it "
        "was: the coordination store was set back. Nothing was changed"
    )
