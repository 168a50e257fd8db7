"""What the controller needs of a coordination store (design D7).

Objects are written whole, each only in place of the version before it; there are no transactions
over several. The methods block and are called from threads: those of the lease from one of its own,
so that a slow write of an object does not cost the lease.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from millrace.core.errors import RetriableError, StorageError
from millrace.core.metadata.lease import LeaseRecord
from millrace.core.metadata.stored import StoredObject


class CoordinationStoreError(StorageError):
    """The store is damaged or its disk fails. The broker stops (P41); nothing is made anew."""


class CoordinationObjectTooLargeError(StorageError):
    """An object is larger than the store can hold. Nothing was written, nor will it ever be."""


class CoordinationUnavailableError(RetriableError):
    """The store did nothing, or may have done the write, and works again after a while."""


def always() -> bool:
    """Return that a write may be done."""
    return True


class CoordinationStore(Protocol):
    """See the module.

    Every method raises:
        CoordinationStoreError: the process must end.
        CoordinationUnavailableError: to be tried again; whether a write was done is unknown.

    Those of objects also raise:
        CorruptMetadataError: what is stored is nothing to go on from: it is gone, or was set back
            to an older state (P39), where the store can tell, or it takes nothing more.
        InvalidConfigError: it has no place for our objects.
        CoordinationObjectTooLargeError: nor for one of this size; nothing was written.
    """

    def read_all(self, keys: Sequence[str]) -> list[StoredObject | None]:
        """Return the latest version of each object; None when there is none."""

    def compare_and_swap_all(
        self, writes: Sequence[tuple[str, StoredObject]], may_write: Callable[[], bool] = always
    ) -> list[bool]:
        """Store each object durably in place of the version before `version`, each for itself.

        Given together they can share a flush or a round trip; they are no transaction.

        Args:
            may_write: asked, from any thread, immediately before each write is done or sent: it is
                not, once this says no (P38).

        Returns:
            For each: False, and it is not changed, when another version is stored (0 is no
            object), or one of a higher controller epoch (P36), or when it was not to be written.
        """

    def read_lease(self) -> LeaseRecord | None:
        """Return the lease as it is stored."""

    def compare_and_swap_lease(self, new: LeaseRecord) -> bool:
        """Store the lease in place of the version before; False when another one is stored."""

    def lease_mark(self) -> int:
        """Return a number that is another one soon after somebody else has written the lease.

        It costs next to nothing, so that it can be asked many times a second. It is only a hint: it
        may change for no reason, late, or not at all.
        """

    def close(self) -> None:
        """Give everything back. No other method is called any more."""
