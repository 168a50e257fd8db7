"""When deleting frees space, in words: said wherever somebody may delete because a disk is full."""

from typing import Final

IN_TRASH: Final = (
    "takes space for storage.trash_delay_ms more, a day by default; to have it at once remove the "
    "directories that end in `.deleted` from the brokers' log_dirs"
)
