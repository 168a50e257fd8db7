"""The interface of a coordination store (docs/design/metadata.md).

Objects are written whole, each only in place of the version before it; there are no transactions
over several. The methods block and are called from threads: those of the lease from a thread of
their own, so that a slow write of an object does not cost the lease.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from millrace.core.controller.lease import LeaseRecord
from millrace.core.errors import RetriableError, StorageError
from millrace.core.metadata.objects.stored_object import StoredObject


class CoordinationStoreError(StorageError):
    """The store is damaged or its disk fails. The broker stops (P41); nothing is recreated."""


class CoordinationObjectTooLargeError(StorageError):
    """An object is larger than the store can hold. Nothing was written; a retry is no use."""


class CoordinationUnavailableError(RetriableError):
    """The store cannot be used for a while; a write may or may not have been done."""


def always() -> bool:
    """Allow every write."""
    return True


class CoordinationStore(Protocol):
    """What brokers and their controller ask of a store.

    Every method raises:
        CoordinationStoreError: the process must end.
        CoordinationUnavailableError: try again; the outcome of a write is unknown.

    Those of objects also raise:
        CorruptMetadataError: the stored objects are unusable: gone, or set back to an older state
            (P39), if the store can tell, or it takes no more writes.
        InvalidConfigError: it has no place for our objects.
        CoordinationObjectTooLargeError: the object is too large; nothing was written.
    """

    def read_all(self, keys: Sequence[str]) -> list[StoredObject | None]:
        """Return the latest version of each object; None when there is none."""

    def compare_and_swap_all(
        self, writes: Sequence[tuple[str, StoredObject]], may_write: Callable[[], bool] = always
    ) -> list[bool]:
        """Replace the version before `version` of each object durably, each independently.

        Given together they can share a flush or a round trip; they are no transaction.

        Args:
            may_write: called, from any thread, immediately before each write; returns whether to
                write (P38).

        Returns:
            For each: True when it was written. False, and it is unchanged, when another version is
            stored (0 is no object), or one of a higher controller epoch (P36), or `may_write`
            refused.
        """

    def read_lease(self) -> LeaseRecord | None:
        """Return the lease as it is stored."""

    def compare_and_swap_lease(self, new: LeaseRecord) -> bool:
        """Replace the version of the lease before; False when another one is stored."""

    def lease_mark(self) -> int:
        """Return a number that changes soon after another process has written the lease.

        It costs next to nothing, so it can be called many times a second. It is only a hint: it may
        change for no reason, late, or not at all.
        """

    def watch_lease(self, on_change: Callable[[], None]) -> bool:
        """Call this, from any thread, after each change of `lease_mark`.

        Returns:
            False: the store cannot tell, and its mark has to be looked at.
        """

    def close(self) -> None:
        """Give everything back. No other method is called any more."""
