"""Threads that work for as long as a block runs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def running(job: Callable[[threading.Event], object]) -> Iterator[threading.Event]:
    """Run a job in a thread; yield what ends it, as the end of the block does.

    Args:
        job: ends when the event that it gets is set.
    """
    is_over = threading.Event()
    thread = threading.Thread(target=job, args=(is_over,))
    thread.start()
    try:
        yield is_over
    finally:
        is_over.set()
        thread.join()


@contextmanager
def repeated(job: Callable[[], object], pause_s: float) -> Iterator[None]:
    """Do a job in a thread again and again, after a pause of so many seconds each time."""

    def run(is_over: threading.Event) -> None:
        while not is_over.wait(pause_s):
            job()

    with running(run):
        yield
