"""Which batches of a connection come after others that are not in the log yet (K1, P43).

A leader that does not know an idempotent producer lets it begin with any sequence, as the records
before may be gone by their retention. So if a client sends batches 1 and 2 one after the other, and
1 is refused, 2 must not begin in its place: the repeated 1 would then be taken for an old one, and
count as written (librdkafka #4438). Millrace's own producers say of each batch whether earlier ones
are not acknowledged (`is_successor`). Kafka's protocol has no word for it. But a client sends the
batches of a partition by one connection, in their order, and repeats them in their order. So a
batch is a successor if an earlier one of its producer came by the same connection, and is not
answered yet, or was refused and not repeated with success.
"""

from typing import Final

from millrace.core.records.header import SEQUENCE_MAX

_SEQUENCES_MAX: Final = 64
"""Batches of one producer and partition that are remembered: the oldest ones, which decide."""
_PLACES_MAX: Final = 10_000
"""Producers and partitions of a connection that have such batches; the oldest are forgotten."""

Place = tuple[str | bytes, int]
"""A topic, as the client names it, and a partition. A broker may hear of the topic after the first
batch, which is then refused."""


class Succession:
    """The batches of idempotent producers that came by one connection and are not in the log."""

    def __init__(self) -> None:
        self._open: dict[
            tuple[Place, int], tuple[int, list[int]]
        ] = {}  # Epoch, and base sequences.

    def begin(self, where: Place, producer_id: int, epoch: int, sequence: int) -> bool:
        """Note a batch that has come; return whether it is a successor."""
        place = (where, producer_id)
        known_epoch, sequences = self._open.get(place, (epoch, []))
        if known_epoch != epoch:
            sequences = []  # Batches of another epoch are not repeated.
        is_successor = any(_is_before(other, sequence) for other in sequences)
        if sequence not in sequences and len(sequences) < _SEQUENCES_MAX:
            sequences.append(sequence)
        self._open[place] = (epoch, sequences)
        if len(self._open) > _PLACES_MAX:
            del self._open[next(iter(self._open))]
        return is_successor

    def end(self, where: Place, producer_id: int, epoch: int, sequence: int) -> None:
        """Forget a batch: it is in the log."""
        place = (where, producer_id)
        known_epoch, sequences = self._open.get(place, (epoch, []))
        if known_epoch == epoch and sequence in sequences:
            sequences.remove(sequence)
            if not sequences:
                del self._open[place]


def _is_before(one: int, other: int) -> bool:
    """Whether a sequence comes before another one; they begin again at 0."""
    return 0 < (other - one) & SEQUENCE_MAX <= SEQUENCE_MAX // 2
