"""What the user is still to be told of partitions: their errors, and topics that are gone.

An error is told once. Of a deleted topic the user is told once, too, and not by an error; likewise
that a partition has come to the end that the user named, where the last batch there was none to
take.
"""

from millrace.core.errors import MillraceError
from millrace.core.ids import TopicPartition


class Untold:
    """The news of one consumer."""

    def __init__(self) -> None:
        self._errors: dict[TopicPartition, MillraceError] = {}
        """The first one is told first."""
        self._raised: tuple[TopicPartition, MillraceError] | None = None
        self._gone: dict[TopicPartition, MillraceError] = {}
        """Assigned partitions whose topic is gone, with the error that said so."""
        self._untold_gone: dict[TopicPartition, MillraceError] = {}
        """Those of them that the user was not told of yet."""
        self._is_end = False

    def add(self, place: TopicPartition, error: MillraceError) -> None:
        """Note the error of a partition."""
        self._errors[place] = error

    def on_taken(self, batch: object) -> None:
        """Raise the first error if there is no batch before it.

        Raises:
            MillraceError: a partition cannot go on.
        """
        self._raised = None
        if batch is None and self._errors:
            place = next(iter(self._errors))
            self._raised = place, self._errors.pop(place)
            raise self._raised[1]

    def raise_again(self) -> None:
        """Raise the error of the last `on_taken` once more: its caller had something to return."""
        if self._raised is not None:
            place, error = self._raised
            self._errors = {place: error, **self._errors}
            self._raised = None

    def forget(self, place: TopicPartition) -> None:
        """Forget what there is about a partition: it was moved, or is read no more."""
        for errors in (self._errors, self._gone, self._untold_gone):
            errors.pop(place, None)

    def on_gone(self, place: TopicPartition, error: MillraceError) -> None:
        """Note that the topic of a partition is gone."""
        self._errors.pop(place, None)
        self._gone[place] = self._untold_gone[place] = error

    def take_gone(self) -> dict[TopicPartition, MillraceError]:
        """Return the partitions whose topic is gone, with the error; each partition only once."""
        gone, self._untold_gone = self._untold_gone, {}
        return gone

    @property
    def has_gone(self) -> bool:
        """Whether `take_gone` would return something."""
        return bool(self._untold_gone)

    def on_end(self) -> None:
        """Note that a partition has come to its end without another batch to take."""
        self._is_end = True

    def take_end(self) -> bool:
        """Return, once, whether one has."""
        is_end, self._is_end = self._is_end, False
        return is_end

    def is_gone(self, place: TopicPartition) -> bool:
        """Return whether the topic of an assigned partition is gone."""
        return place in self._gone

    def __bool__(self) -> bool:
        return bool(self._errors or self._untold_gone or self._is_end)
