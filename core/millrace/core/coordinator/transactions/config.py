"""The settings of transactions' coordinators."""

from dataclasses import dataclass
from typing import Final

from millrace.core.settings import INT64_MAX, Unit, constant, setting

EPOCH_MAX: Final = 2**15 - 1
"""The largest epoch of a producer: an int16 on disk."""
REQUEST_PARTITIONS_MAX: Final = 1000
REQUEST_GROUPS_MAX: Final = 100
"""What one request may take into a transaction."""
_HANGING_MS: Final = 300_000
"""What a coordinator may take to end a transaction that is open for too long."""


@dataclass(frozen=True, kw_only=True)
class TransactionsConfig:
    """Transactions that this broker coordinates: see [transactions](clusters.md#transactions)."""

    timeout_ms_max: int = setting(
        900_000,
        "Longest time-out that a producer may choose. A transaction that is open for longer than "
        "its time-out is aborted; until then readers of committed records wait for it.",
        kafka="transaction.max.timeout.ms",
        unit=Unit.MILLISECONDS,
        minimum=1000,
        maximum=86_400_000,
    )
    id_expiration_ms: int = setting(
        604_800_000,
        "A transactional id is forgotten when it was not used for this long. A producer that still "
        "has it is fenced then.",
        kafka="transactional.id.expiration.ms",
        unit=Unit.MILLISECONDS,
        minimum=1000,
        maximum=INT64_MAX,
        minus_one="never",
    )
    partition_ids_max: int = setting(
        10_000,
        "Most transactional ids in one partition of `__transactions`; another one is refused.",
        minimum=1,
        maximum=1_000_000,
    )
    partitions_max: int = setting(
        10_000,
        "Most partitions in one transaction; another one is refused, and the transaction can be "
        "committed without it, or aborted.",
        minimum=1,
        maximum=100_000,
    )
    partition_participants_max: int = setting(
        100_000,
        "Most topics and groups in the open transactions of one partition of `__transactions`, "
        "each counted once for every transaction in which it is and 1024 of its partitions, and "
        "most participants of its transactions, which count until an hour after the last one of "
        "their application. They take memory of the broker that leads it, up to 1 KB each.",
        minimum=1,
        maximum=10_000_000,
    )
    participants_max: int = setting(
        10_000,
        "Most [participants](clusters.md#participants) in one transaction; another one is refused.",
        minimum=1,
        maximum=100_000,
    )
    lease_ms: int = setting(
        60_000,
        "A transaction with participants is aborted when neither its application nor one of them "
        "has renewed it for this long. Clients renew it three times as often.",
        unit=Unit.MILLISECONDS,
        minimum=1000,
        maximum=3_600_000,
    )
    lease_ms_max: int = setting(
        86_400_000,
        "Longest time that a transaction with participants is open, however often it is renewed. "
        "Readers of committed records wait for it.",
        unit=Unit.MILLISECONDS,
        minimum=1000,
        maximum=INT64_MAX,
    )
    participants_kept_ms: int = constant(3_600_000)
    """How long after their last transaction participants are kept, to have their ids again."""
    epoch_max: int = constant(EPOCH_MAX)
    """The largest epoch of a producer. It fences only: records have smaller ones."""

    @property
    def hanging_ms(self) -> int:
        """After how long a transaction of a partition is hanging: no coordinator ends it (P54)."""
        return self.timeout_ms_max + _HANGING_MS
