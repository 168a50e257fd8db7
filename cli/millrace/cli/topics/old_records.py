"""Warns of records that are older than their topic keeps records.

A topic keeps records by their own times, which a file or another topic may bring along. Brokers
take them, acknowledge them, and soon delete them.
"""

import time
from typing import TYPE_CHECKING

from millrace.cli.arguments.read_start import show_time
from millrace.cli.cluster import connect_admin
from millrace.cli.console.output import say
from millrace.cli.credentials import OF_ENVIRONMENT, Credentials
from millrace.core.errors import MillraceError
from millrace.core.words import duration

if TYPE_CHECKING:
    import pyarrow as pa


class OldRecords:
    """Looks at the times of records, and warns once."""

    def __init__(
        self, bootstrap: str, topic: str, credentials: Credentials = OF_ENVIRONMENT
    ) -> None:
        self._bootstrap, self._topic, self._credentials = bootstrap, topic, credentials
        self._retention_ms: int | None = None
        """-1: no more warning, as there was one or none is needed; None: not known yet."""

    def look(self, timestamps: "pa.Array | None") -> None:
        """Look at some times, in ms UTC; below 0, or None: these records are of now."""
        if timestamps is None or not len(timestamps) or self._retention_ms == -1:
            return
        import pyarrow.compute as pc

        timestamps = timestamps.filter(pc.greater_equal(timestamps, 0))

        if self._retention_ms is None:
            self._retention_ms = self._asked()
        oldest = pc.min(timestamps).as_py()
        now_ms = time.time_ns() // 1_000_000
        if self._retention_ms < 0:
            return
        if oldest is not None and oldest < now_ms - self._retention_ms:
            say(
                f"warning: {self._topic} keeps records for {duration(self._retention_ms)}, and "
                f"deletes soon what is older, as of {show_time(oldest)}: `millrace topic alter "
                f"{self._topic} --set retention.ms=-1` keeps it"
            )
            self._retention_ms = -1

    def _asked(self) -> int:
        """Ask how long the topic keeps records; return -1 if it keeps all, or does not say."""
        try:
            with connect_admin(self._bootstrap, credentials=self._credentials) as admin:
                config = admin.describe_topic(self._topic).config
        except MillraceError:
            # A user may have the right to write records, and no right to read settings.
            return -1
        deletes = "delete" in config["cleanup.policy"].value
        return int(config["retention.ms"].value) if deletes else -1
