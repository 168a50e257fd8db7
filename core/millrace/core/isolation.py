"""How far readers see: what is committed, or also records of open and aborted transactions.

The default is the same wherever a reader or the end of a log is named, so that the end of a
partition is one that a reader with default settings reaches. Kafka's is `read_uncommitted`.
"""

from typing import Final, Literal, get_args

Isolation = Literal["read_committed", "read_uncommitted"]
"""Kafka's names. `read_committed`: the records of a transaction once it is committed, and those of
no transaction. `read_uncommitted`: all records as soon as they are replicated."""

ISOLATIONS: Final[tuple[Isolation, ...]] = get_args(Isolation)
READ_COMMITTED: Final[Isolation] = "read_committed"
READ_UNCOMMITTED: Final[Isolation] = "read_uncommitted"
