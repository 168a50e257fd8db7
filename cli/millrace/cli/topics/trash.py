"""Texts about when deleting frees space."""

from typing import Final

UNTIL_GONE: Final = (
    "can be brought back with `millrace topic undelete`, and takes space until then: for "
    "cluster.deleted_topic_retention_ms, a day by default; `millrace topic purge` frees it at once"
)
IN_TRASH: Final = (
    "takes space for a day by default. To have it at once, give deleted topics up with `millrace "
    "topic purge`, and remove the directories that end in `.deleted` from the brokers' log_dirs"
)
