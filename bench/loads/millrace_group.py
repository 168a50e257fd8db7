"""A member of Millrace's group that consumes at full speed, and commits as it does by default.

Ways: as in `millrace_consume`. `settings` has the `group`, and `begin_at`: the monotonic second
from which on records count, for all members of the group alike. Until then they join and read. Then
a member reads all that it owns from the beginning, over and over.
"""

import time

from bench.loads.millrace_consume import POLL_TIMEOUT_MS, WAYS
from bench.loads.spec import Load, Moved, run_from_command_line, used_since

from millrace.client import SyncAdmin, SyncConsumer

JOIN_POLL_MS = 100


def consume(load: Load) -> Moved:
    """Consume for the load's time and count the records."""
    with SyncAdmin(load.address) as admin:
        ends = admin.list_offsets(load.topic, "end")
    take = WAYS[load.way]
    begin_at = load.settings["begin_at"]
    owned: set[tuple[str, int]] = set()
    changed_at = 0.0

    def on_assigned(places: list[tuple[str, int]]) -> None:
        nonlocal changed_at
        owned.update(places)
        changed_at = time.monotonic()

    def on_revoked(places: list[tuple[str, int]]) -> None:
        nonlocal changed_at
        owned.difference_update(places)
        changed_at = time.monotonic()

    left = records = moved_bytes = 0
    with SyncConsumer(load.address, group=load.settings["group"]) as consumer:
        consumer.subscribe([load.topic], on_assigned=on_assigned, on_revoked=on_revoked)
        while time.monotonic() < begin_at:
            consumer.poll_batches(JOIN_POLL_MS)
        partitions = len(owned)  # A member that ends a moment later gets those of the others.
        cpu_started = time.process_time()
        while (seconds := time.monotonic() - begin_at) < load.seconds:
            if left <= 0:
                left = sum(ends[place].offset for place in owned)
                for place in owned:
                    consumer.seek(place, "beginning")
            count, size = take(consumer)
            if not count:
                raise SystemExit(f"nothing came for {POLL_TIMEOUT_MS} ms; it owns {sorted(owned)}")
            records += count
            moved_bytes += size
            left -= count
        if begin_at < changed_at < begin_at + load.seconds:
            raise SystemExit(
                f"the group changed {changed_at - begin_at:.1f} s after the time began"
            )
        detail = {"partitions": partitions, **used_since(cpu_started)}
    return Moved(records=records, bytes=moved_bytes, seconds=seconds, detail=detail)


if __name__ == "__main__":
    run_from_command_line(consume)
