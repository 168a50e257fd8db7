"""One partition's log: its files, and every rule about them.

    <topic id>-<partition>/
        00000000000000000000.log        batches, byte for byte as the leader stamped them
        00000000000000000000.index      sparse index by offset and time, see sparse_index.py
        00000000000000004711.log        ... the last one is active and grows
        00000000000000004711.snapshot   producer states as of that offset
        leader-epochs                   see core/replica/log/leader_epochs.py
        failed                          the disk failed, see log_recovery.py
        damaged                         it was found damaged, likewise
        begins-anew                     the log starts again without these files, new_beginning.py
        cleaner-point                   how far it is compacted, see cleaner_point.py
        tier                            where its oldest segments lie instead, see tier.py
        ...-00000000000000009000.swap   a cleaned segment replaces others, see segment_swap.py

The broker has a `PartitionLog`, and calls its parts, which all work on one `LogState`. Imports go
down this table:

| module          | what                                                                           |
|-----------------|--------------------------------------------------------------------------------|
| `partition_log` | the log as the broker sees it: its parts and offsets, opening and closing      |
| `cleaner`       | replaces segments by their compacted copies                                    |
| `tiering`       | moves closed segments to another disk, and back                                |
| `retention`     | deletes the oldest segments, and advances the log's start                      |
| `writer`        | appends batches, and begins a new segment                                      |
| `truncation`    | ends the log at an earlier offset, or empties it                               |
| `scrubber`      | verifies closed segments                                                       |
| `reader`        | finds and reads batches by offset and by time                                  |
| `replacement`   | lets a cleaned segment take the place of others, also where that was refused   |
| `flusher`       | flushes, and advances the recovery point                                       |
| `state`         | segments, offsets, epochs and producers: their invariants and their locks      |
| `health`        | whether the log may be used, and what an error of the disk means for it        |

`log_recovery.py` opens a log after a crash; modules beside it handle the files named above.
"""

from millrace.broker.storage.log.partition_log import PartitionLog, open_log
from millrace.broker.storage.log.reader import Unread
from millrace.broker.storage.log.tiering import Moving, abandon

__all__ = ["Moving", "PartitionLog", "Unread", "abandon", "open_log"]
