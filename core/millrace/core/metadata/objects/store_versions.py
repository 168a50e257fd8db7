"""What a broker remembers of the coordination store, to detect that it was set back (P39).

Stored objects never go back: every write of one has the next version, and a controller that takes
over has a higher epoch than all before it, and rewrites each object under it. So a store with less
than a broker remembers was set back to an older state, for example from a backup, or is another
store. Later decisions are missing there: topics, leader epochs, broker epochs, producer ids. A
controller that continued would give the same numbers out twice and forget acknowledged changes. So
none does; an operator has to restore the newest state.

Brokers keep this in their log directories: a new controller epoch before any metadata of it is
used, and versions from time to time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from millrace.core.ids import ControllerEpoch
from millrace.core.metadata.model import CLUSTER_KEY, SHARD_KEYS
from millrace.core.metadata.objects.stored_object import CorruptMetadataError, StoredObject

_KEYS: Final = (CLUSTER_KEY, *SHARD_KEYS)


@dataclass(frozen=True, slots=True)
class StoreVersions:
    """The highest versions that were seen.

    Attributes:
        controller_epoch: the highest.
        versions: the highest of each object, the cluster's first and then the shards' by number; 0:
            none was seen.
    """

    controller_epoch: ControllerEpoch = field(default=ControllerEpoch(0))
    versions: tuple[int, ...] = (0,) * len(_KEYS)

    @classmethod
    def of(cls, objects: Mapping[str, StoredObject]) -> Self:
        """Return the epoch and versions of these objects."""
        epochs = (stored.controller_epoch for stored in objects.values())
        versions = (objects[key].version if key in objects else 0 for key in _KEYS)
        return cls(max(epochs, default=ControllerEpoch(0)), tuple(versions))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `str(seen)`; versions that it does not name were not seen.

        Raises:
            ValueError: it is no such text.
        """
        epoch, *versions = map(int, text.split())
        return cls(ControllerEpoch(epoch), ()).merged(cls(versions=_padded(versions)))

    def __str__(self) -> str:
        return " ".join(map(str, (self.controller_epoch, *self.versions)))

    def merged(self, other: "StoreVersions") -> Self:
        """Return what both have seen together."""
        pairs = zip(_padded(self.versions), _padded(other.versions), strict=True)
        return type(self)(
            max(self.controller_epoch, other.controller_epoch), tuple(map(max, pairs))
        )

    def includes(self, other: "StoreVersions") -> bool:
        """Whether nothing of the other is missing here."""
        return self.merged(other) == self

    def refuse_older(self, objects: Mapping[str, StoredObject | None]) -> None:
        """Compare all objects of a store, read now, with the versions seen before.

        Raises:
            CorruptMetadataError: the store was set back.
        """
        cluster = objects[CLUSTER_KEY]
        if cluster is not None and cluster.controller_epoch < self.controller_epoch:
            raise set_back(
                f"its controller epoch is {cluster.controller_epoch}, and "
                f"{self.controller_epoch} has begun"
            )
        for key, seen in zip(_KEYS, self.versions, strict=True):
            stored = objects[key]
            if stored is None:
                if seen:
                    raise set_back(f"{key!r} is gone, and had version {seen}")
                continue
            # A later controller has written it at least once more.
            is_later = stored.controller_epoch > self.controller_epoch
            if stored.version < seen + is_later and seen:
                raise set_back(f"{key!r} has version {stored.version}, and {seen} has been seen")


NOTHING_SEEN: Final = StoreVersions()


class RememberedVersions:
    """The versions that a broker stores in its log directories, and that its own controllers use.

    It is what the broker has seen itself. If another broker has seen more than this one's
    controller started from, it is what the other has seen, until this one has seen as much: what it
    saw meanwhile may be of an abandoned history that its own controller made.
    """

    def __init__(self) -> None:
        self._here = NOTHING_SEEN
        self._elsewhere: StoreVersions | None = None

    @property
    def seen(self) -> StoreVersions:
        """The value to store now."""
        return self._here if self._elsewhere is None else self._elsewhere

    def on_seen(self, seen: StoreVersions) -> None:
        """This broker has seen all this of the metadata by now."""
        self._here = seen
        if self._elsewhere is not None and seen.includes(self._elsewhere):
            self._elsewhere = None

    def on_seen_elsewhere(self, seen: StoreVersions) -> None:
        """Another broker made this broker's controller resign, because it has seen this."""
        self._elsewhere = seen


def _padded(versions: "tuple[int, ...] | list[int]") -> tuple[int, ...]:
    if len(versions) > len(_KEYS):
        raise ValueError(f"{len(versions)} versions of {len(_KEYS)} objects")
    return (*versions, *(0,) * (len(_KEYS) - len(versions)))


def set_back(what: str) -> CorruptMetadataError:
    """Return the error for a store that was set back to an older state."""
    return CorruptMetadataError(
        f"the coordination store was set back to an older state: {what}. Restore its newest state; "
        "no controller acts until then, and nothing was changed"
    )
