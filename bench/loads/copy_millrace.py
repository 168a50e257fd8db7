"""Millrace's client copying a topic exactly once: `Consumer.process_exactly_once`.

`settings` has the `group`, the topic `into` which it copies, `commit_ms`, and how many `records`
the topic has. What the group has committed with its transactions counts. The clock starts with the
first records.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress

from bench.loads.spec import Load, Moved, run_from_command_line, used_since

from millrace.client import Admin, Consumer, FetchedRecords, OutputRecords, Producer


def copy(load: Load) -> Moved:
    """Copy for the load's time and count what was committed."""
    return asyncio.run(_copy(load))


async def _copy(load: Load) -> Moved:
    settings = load.settings
    group, into = settings["group"], settings["into"]
    begun = asyncio.Event()

    def same(read: FetchedRecords) -> Iterator[OutputRecords]:
        begun.set()
        records = read.records
        yield OutputRecords(into, records.column("value"), records.column("key"))

    async with (
        Consumer(load.address, group=group, enable_auto_commit=False) as consumer,
        Producer(load.address, transactional_id=group) as producer,
    ):
        await consumer.subscribe([load.topic])
        copying = asyncio.create_task(
            consumer.process_exactly_once(same, producer, interval_ms=settings["commit_ms"])
        )
        await begun.wait()
        started, cpu_started = time.perf_counter(), time.process_time()
        await asyncio.wait([copying], timeout=load.seconds)
        seconds, used = time.perf_counter() - started, used_since(cpu_started)
        copying.cancel()
        with suppress(asyncio.CancelledError):
            await copying
    async with Admin(load.address) as admin:
        committed = await admin.fetch_positions(group)
    records = sum(position.offset for position in committed.values())
    if records >= settings["records"]:
        raise SystemExit(f"all {records} records were copied before the time was over")
    return Moved(records=records, bytes=0, seconds=seconds, detail=used)


if __name__ == "__main__":
    run_from_command_line(copy)
