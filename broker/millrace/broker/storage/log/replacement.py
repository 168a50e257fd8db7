"""Lets a cleaned segment take the place of others, and completes that if it was refused.

From when its name says which segments it replaces, it counts after a crash. If the process lacks
descriptors or memory then, the rest is done later: by the next cleaning or reader, or before the
log is cut, emptied or begins later. Until then the segment's records cannot be read. Appends go on.
"""

from millrace.broker.storage import segment_swap
from millrace.broker.storage.file_system import is_passing
from millrace.broker.storage.log.health import may_pass
from millrace.broker.storage.log.state import LogState


def finish(state: LogState) -> None:
    """Complete the replacement of segments, if one is to be completed; the caller holds `lock`.

    Raises:
        StorageBusyError: not now; to be called again.
        LogDirFailedError: the disk failed; the log takes no more calls.
    """
    if state.replacement is None:
        return
    swap, made, is_decided = state.replacement
    try:
        if not is_decided:
            state.files.fsync_directory(made.folder)
            state.replacement = state.replacement._replace(is_decided=True)
        segment_swap.carry_out(state.files, made.folder, swap, indexes=state.directory)
    except OSError as error:
        # Where the disk refused, only the next start can complete it.
        refuse = state.health.refusal if is_passing(error) else state.health.fail
        raise refuse(error, "replacing segments of", made.folder) from error
    ready = made.moved_to(state.files, state.directory, state.cache, made.folder)
    state.segments = tuple(ready if segment is made else segment for segment in state.segments)
    state.replacement, state.held = None, ()
    try:
        ready.index.save(ready.coverage)
    except OSError as error:
        if not may_pass(error):
            raise state.health.fail(error, "indexing a segment of") from error
