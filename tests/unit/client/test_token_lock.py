"""The token lock excludes, and gives the token back whatever happens."""

import sys
import threading
from collections.abc import Iterator

import pytest

from millrace.client._threads.token_lock import TokenLock


@pytest.fixture
def _impatient_threads() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.00001)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_impatient_threads")
def test_threads_exclude_one_another() -> None:
    lock = TokenLock()
    inside: list[int] = []
    overlaps: list[list[int]] = []

    def work(name: int) -> None:
        for _ in range(2000):
            with lock:
                inside.append(name)
                if len(inside) > 1:
                    overlaps.append(list(inside))
                inside.remove(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not overlaps
    assert lock.token == [None]


def test_an_exception_gives_the_token_back() -> None:
    lock = TokenLock()
    with pytest.raises(ValueError, match="inside"), lock:
        _fail_inside(lock)
    assert lock.token == [None]


def _fail_inside(lock: TokenLock) -> None:
    assert lock.token == []
    raise ValueError("inside")


def test_whoever_waits_gets_it_in_the_end() -> None:
    lock = TokenLock()
    del lock.token[0]
    taken = threading.Event()

    def wait() -> None:
        with lock:
            taken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not taken.wait(0.02)
    lock.token.append(None)
    assert taken.wait(10)
    thread.join()
