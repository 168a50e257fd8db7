"""A text about when deleting frees space, for messages about full disks."""

from typing import Final

IN_TRASH: Final = (
    "takes space for storage.trash_delay_ms more, a day by default; to have it at once remove the "
    "directories that end in `.deleted` from the brokers' log_dirs"
)
