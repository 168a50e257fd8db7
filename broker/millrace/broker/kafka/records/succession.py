"""Which batches of a connection come after others that are not in the log yet (K1, P43).

A leader that does not know an idempotent producer lets it begin with any sequence, as the records
before may be gone by their retention. So if a client sends batches 1 and 2 one after the other, and
1 is refused, 2 must not begin in its place: the repeated 1 would then be taken for an old one, and
count as written (librdkafka #4438). Millrace's own producers say of each batch whether earlier ones
are not acknowledged (`is_successor`). Kafka's protocol has no word for it. But a client sends the
batches of a partition by one connection, in their order, and repeats them in their order. So a
batch is a successor if an earlier one of its producer came by the same connection, and is not
answered yet, or was refused and not repeated with success. One that is refused for good, as its
client may not write or no topic can have the name, is forgotten: a stranger leaves nothing behind.

After a change of leaders that connection may be the old leader's: the Java producer sends its next
batches to the new one while those before are not answered there, maybe for long. So a batch that
does not continue what this connection has brought into the log is *uncertain*: a leader that does
not know the producer refuses it once, to be tried again. Its client first repeats what is before
it, if there is anything; else it repeats the batch alone, which may begin then.
"""

from enum import Enum
from typing import Final

from millrace.core.records.header import SEQUENCE_MAX

_SEQUENCES_MAX: Final = 64
"""Batches of one producer and partition that are remembered: the oldest ones, which decide."""
_PLACES_MAX: Final = 10_000
"""Producers and partitions of a connection that have such batches; the oldest are forgotten."""
_WRITTEN_MAX: Final = 1000
"""Likewise those of which it is remembered what is written; without that a batch is uncertain."""


class Standing(Enum):
    """How a batch stands to those before it. A leader that knows its producer knows better."""

    NEXT = "next"
    """Nothing before it is missing."""
    SUCCESSOR = "successor"
    """Earlier ones came by the same connection and are not in the log."""
    UNCERTAIN = "uncertain"
    """Earlier ones may be on their way to another leader."""


Place = tuple[str | bytes, int]
"""A topic, as the client names it, and a partition. A broker may hear of the topic after the first
batch, which is then refused."""


class Succession:
    """The batches of idempotent producers that came by one connection and are not in the log."""

    def __init__(self) -> None:
        # Of those that are not in the log: epoch, and base sequences.
        self._open: dict[tuple[Place, int], tuple[int, list[int]]] = {}
        # Of those that are: epoch, and the sequence that comes next.
        self._written: dict[tuple[Place, int], tuple[int, int]] = {}

    def begin(self, where: Place, producer_id: int, epoch: int, sequence: int) -> Standing:
        """Note a batch that has come; return how it stands to those before it."""
        place = (where, producer_id)
        known_epoch, sequences = self._open.get(place, (epoch, []))
        if known_epoch != epoch:
            sequences = []  # Batches of another epoch are not repeated.
        if any(_is_before(other, sequence) for other in sequences):
            standing = Standing.SUCCESSOR
        elif (
            sequence == 0
            or sequence in sequences  # Its client has nothing to send before it.
            or self._written.get(place) == (epoch, sequence)
        ):
            standing = Standing.NEXT
        else:
            standing = Standing.UNCERTAIN
        if sequence not in sequences and len(sequences) < _SEQUENCES_MAX:
            sequences.append(sequence)
        self._open[place] = (epoch, sequences)
        if len(self._open) > _PLACES_MAX:
            del self._open[next(iter(self._open))]
        return standing

    def end(self, where: Place, producer_id: int, epoch: int, sequence: int, count: int) -> None:
        """Forget a batch of so many records: it is in the log."""
        self.forget(where, producer_id, epoch, sequence)
        place = (where, producer_id)
        self._written.pop(place, None)  # Those that were quiet for longest are forgotten first.
        self._written[place] = epoch, (sequence + count) & SEQUENCE_MAX
        if len(self._written) > _WRITTEN_MAX:
            del self._written[next(iter(self._written))]

    def forget(self, where: Place, producer_id: int, epoch: int, sequence: int) -> None:
        """Forget a batch: its client does not repeat it."""
        place = (where, producer_id)
        known_epoch, sequences = self._open.get(place, (epoch, []))
        if known_epoch == epoch and sequence in sequences:
            sequences.remove(sequence)
            if not sequences:
                del self._open[place]


def _is_before(one: int, other: int) -> bool:
    """Whether a sequence comes before another one; they begin again at 0."""
    return 0 < (other - one) & SEQUENCE_MAX <= SEQUENCE_MAX // 2
