"""Threads that flush several files at the same time."""

import threading
from collections.abc import Iterator

import pytest

from millrace.broker.replica.flush_threads import THREADS_MAX, FlushThreads


class Files:
    """Notes who flushes how many at a time; a flush waits for `together` of them."""

    def __init__(self, together: int = 1) -> None:
        self.barrier = threading.Barrier(together)
        self.threads: set[threading.Thread] = set()
        self.most = 0
        self._lock = threading.Lock()
        self._now = 0

    def flush(self, number: int) -> int:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
            self.threads.add(threading.current_thread())
        self.barrier.wait(10)
        with self._lock:
            self._now -= 1
        if number < 0:
            raise OSError(f"file {number}")
        return 10 * number


@pytest.fixture
def threads_before() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before


@pytest.mark.usefixtures("threads_before")
def test_files_of_a_round_are_flushed_at_the_same_time() -> None:
    files = Files(together=3)
    flushing = FlushThreads("test", files.flush)
    for _ in range(2):
        assert sorted(flushing.flush_all([1, 2, 3])) == [(1, 10), (2, 20), (3, 30)]
    flushing.close()


@pytest.mark.usefixtures("threads_before")
def test_there_are_no_more_threads_than_the_bound_and_all_files_are_flushed() -> None:
    files = Files()
    flushing = FlushThreads("test", files.flush)
    wanted = list(range(100))
    assert sorted(flushing.flush_all(wanted)) == [(number, 10 * number) for number in wanted]
    assert files.most <= len(files.threads) <= THREADS_MAX + 1
    flushing.close()


def test_one_file_is_flushed_by_the_thread_that_asks() -> None:
    files = Files()
    flushing = FlushThreads("test", files.flush)
    assert list(flushing.flush_all([])) == []
    assert list(flushing.flush_all([1])) == [(1, 10)]
    assert files.threads == {threading.current_thread()}
    flushing.close()


def test_each_file_has_its_own_outcome() -> None:
    flushing = FlushThreads("test", Files().flush)
    outcomes = dict(flushing.flush_all([1, -2, 3, -4]))
    assert (outcomes.pop(1), outcomes.pop(3)) == (10, 30)
    assert {str(outcome) for outcome in outcomes.values()} == {"file -2", "file -4"}
    flushing.close()
