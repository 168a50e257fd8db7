"""Where a log begins, by the files that record it; never by the first segment that is there.

The recovery checkpoint has a line of every log with appends. A log without a line begins at 0. Only
if the checkpoint itself is lost, the first leader epoch counts, also where the first segment begins
at 0: its start is the first record's and moves with the log's, so no deleted record comes back
(P71). A log that begins after the recorded start has lost its first segments (P65).
"""

from collections.abc import Sequence

from millrace.broker.storage.recovery_checkpoint import RecoveryPoint
from millrace.core.ids import Offset
from millrace.core.replica.log.leader_epochs import EpochStart


def known_log_start(
    first_base: Offset,
    point: RecoveryPoint | None,
    epochs: Sequence[EpochStart],
    *,
    is_checkpoint_lost: bool,
) -> Offset | None:
    """Return the log's start offset; None when no file records so late a start.

    Args:
        first_base: of the first segment that is there.
        point: of the recovery checkpoint; None when it has no line.
        epochs: the log's leader epochs, as they were kept.
        is_checkpoint_lost: whether the checkpoint is gone or damaged.
    """
    if point is not None:
        return point.log_start_offset
    if is_checkpoint_lost and epochs and epochs[0].start_offset >= first_base:
        return epochs[0].start_offset
    return first_base if first_base == 0 else None
