"""What log directories remember, written by threads that nobody can stop."""

import asyncio
from typing import Any

from millrace.broker.replica.log_directories import LogDirectories
from millrace.core.broker_config import StorageConfig
from millrace.core.ids import ControllerEpoch
from millrace.core.metadata.objects.store_versions import StoreVersions


class Directory:
    path = "/data"

    def keep_seen(self, seen: StoreVersions) -> None: ...


class Threads:
    """What they were asked to do; each goes on until the test ends it."""

    def __init__(self) -> None:
        self.jobs: list[tuple[StoreVersions, asyncio.Future[None]]] = []

    def call(self, path: str, _: object, seen: StoreVersions) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.jobs.append((seen, done))
        return done


async def _settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_file_is_not_written_by_two_threads_when_the_first_is_waited_for_no_more() -> None:
    threads: Any = Threads()
    directory: Any = Directory()
    files: Any = None
    failures: list[BaseException] = []
    directories = LogDirectories(files, [], StorageConfig(), threads, failures.append)
    directories.opened.append(directory)
    older, newer = (StoreVersions(ControllerEpoch(epoch)) for epoch in (1, 2))
    first = asyncio.create_task(directories.keep_seen(older))
    await _settled()
    first.cancel()
    second = asyncio.create_task(directories.keep_seen(newer))
    await _settled()
    assert [seen for seen, _ in threads.jobs] == [older]
    threads.jobs[0][1].set_result(None)
    await _settled()
    assert [seen for seen, _ in threads.jobs] == [older, newer]
    threads.jobs[1][1].set_result(None)
    await second
