"""Writes of metadata objects: at most one of each in flight, and the effects that wait for it.

All changes during a write go into the next one together. An effect that rests on objects, such as
an answer, is held back until each of them is stored as it was at the decision.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from millrace.core.controller.effects import Effect, WriteObject
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import CLUSTER_KEY, SHARD_KEYS
from millrace.core.metadata.objects.stored_object import StoredObject


@dataclass(slots=True)
class Held:
    """An effect and how many objects must still be stored before it is released."""

    effect: Effect
    objects: int = 0


@dataclass(slots=True)
class _Write:
    in_flight: StoredObject | None = None
    confirms: Callable[[], MetadataImage] | None = None
    held: list[Held] = field(default_factory=list)  # Released by the write in flight.
    held_by_next: list[Held] = field(default_factory=list)


class Writes:
    """The writes in flight, and what waits for each."""

    def __init__(self) -> None:
        self._writes = {key: _Write() for key in (CLUSTER_KEY, *SHARD_KEYS)}

    def is_in_flight(self, key: str) -> bool:
        """Whether the object is being written."""
        return self._writes[key].in_flight is not None

    def in_flight(self, key: str) -> StoredObject:
        """Return what is being written."""
        stored = self._writes[key].in_flight
        assert stored is not None
        return stored

    def unstored(self, changed: Iterable[str]) -> list[str]:
        """Return the objects that are being written, and those that are to be."""
        in_flight = (key for key, write in self._writes.items() if write.in_flight is not None)
        return list(dict.fromkeys((*in_flight, *changed)))

    def hold(self, effect: Effect, keys: Iterable[str], changed: Iterable[str]) -> list[Effect]:
        """Hold an effect back until these objects are stored; return it if they all are.

        Args:
            changed: objects that differ from what is stored or being written.
        """
        held = Held(effect)
        changed = {*changed}
        for key in dict.fromkeys(keys):
            write = self._writes[key]
            if key in changed:
                write.held_by_next.append(held)
                held.objects += 1
            elif write.in_flight is not None:
                write.held.append(held)
                held.objects += 1
        return [] if held.objects else [effect]

    def begin(
        self, key: str, stored: StoredObject, confirms: Callable[[], MetadataImage]
    ) -> WriteObject:
        """Write an object; the effects held back for its next version wait for this.

        Args:
            confirms: the image, once this is stored.
        """
        write = self._writes[key]
        write.in_flight, write.confirms = stored, confirms
        write.held, write.held_by_next = write.held_by_next, []
        return WriteObject(key, stored)

    def end(self, key: str) -> tuple[StoredObject, MetadataImage, list[Effect]]:
        """The write is done; return what was written, the image, and the effects released by it."""
        write = self._writes[key]
        stored, confirms, held = write.in_flight, write.confirms, write.held
        assert stored is not None
        assert confirms is not None
        write.in_flight, write.confirms, write.held = None, None, []
        released: list[Effect] = []
        for waiting in held:
            waiting.objects -= 1
            if not waiting.objects:
                released.append(waiting.effect)
        return stored, confirms(), released

    def abandon(self) -> list[Effect]:
        """Return all effects held back, each once, in any order."""
        held = {
            id(waiting): waiting.effect
            for write in self._writes.values()
            for waiting in (*write.held, *write.held_by_next)
        }
        return list(held.values())
