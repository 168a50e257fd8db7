"""A lock that costs a tenth of `threading.Lock`, for sections that never block.

`send()` has one microsecond for everything, and taking and leaving a `threading.Lock` through
`with` is a fifth of that. Here the thread that deletes the token from a list of one holds the lock,
and appends it to release:

    token = lock.token
    try:
        del token[0]
    except IndexError:
        ...  # Another thread has it: call `lock.wait()` and begin again.
    try:
        ...
    finally:
        token.append(None)

A Ctrl-C must never fall between taking the token and the `try` that gives it back. Python looks for
signals where a function begins, when a call has returned, and at jumps backwards. Deleting an item
is none of these; so neither a call that takes the token may stand before that `try`, nor a handler
of an exception, out of which the interpreter may jump back. For the same reason `with lock` is for
the event loop alone, where Ctrl-C is not raised: it would strike where `__exit__` begins.

A thread that finds no token lets other threads run and tries again: fair enough, as no thread waits
while it holds the lock.
"""

import time
from typing import Final

_YIELDS: Final = 20
_PAUSE_S: Final = 0.000_05


class TokenLock:
    """A lock that Ctrl-C never leaves taken. Not reentrant."""

    __slots__ = ("token",)

    def __init__(self) -> None:
        self.token: list[None] = [None]

    def wait(self) -> None:
        """Return when the token was there; another thread may take it first."""
        attempts = 0
        while not self.token:
            time.sleep(0 if attempts < _YIELDS else _PAUSE_S)
            attempts += 1

    def __enter__(self) -> None:
        while True:
            try:
                del self.token[0]
            except IndexError:
                self.wait()
            else:
                return

    def __exit__(self, *_: object) -> None:
        self.token.append(None)
