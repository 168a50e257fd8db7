"""What the clients' own thread logs goes to a thread that does nothing but log.

`logging` holds locks while it calls a handler, closes one, or configures. A handler that sends its
lines through a synchronous client waits for the clients' thread meanwhile. If that thread took one
of these locks, both would wait for ever. So it takes none: its lines go, with their place and time,
through a bounded queue to a daemon thread. No client ever waits for that one.

asyncio and gRPC log in the clients' thread, too. A filter at their loggers diverts these lines.
Before `logging` asks the filter, it checks the level, and takes its lock if it does not remember
the outcome. So each thread has it remembered before it waits for the clients' thread: while a
thread holds the lock, no other one can make `logging` forget it.

The daemon thread stands still while the process forks. Otherwise it might be in the middle of a
line, and the child would wait for ever for the lock of `sys.stderr`, which nobody there releases.
"""

import asyncio
import atexit
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

from millrace.client import events
from millrace.client._threads import fork
from millrace.runtime import host

_LINES_MAX: Final = 1_000
"""Lines that wait to be logged; more are left out, and counted."""
_AT_EXIT_S: Final = 1.0
_AT_FORK_S: Final = 1.0
_LIBRARIES: Final = tuple(
    logging.getLogger(name) for name in ("asyncio", "grpc._cython.cygrpc", "grpc.aio._call")
)
_LEVELS: Final = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
_log = logging.getLogger(__name__)


class Log:
    """The logger of a module of the clients: it takes no lock in their thread.

    Args:
        name: of the module.
    """

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def log(
        self,
        level: int,
        msg: object,
        *args: object,
        exc_info: BaseException | None = None,
        stacklevel: int = 1,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        """Log a message: at once, or later if this is the clients' own thread."""
        lines = _lines_here()
        if lines is None:
            self._logger.log(
                level, msg, *args, exc_info=exc_info, stacklevel=stacklevel + 1, extra=extra
            )
            return
        caller = sys._getframe(stacklevel)
        record = self._logger.makeRecord(
            self._logger.name,
            level,
            caller.f_code.co_filename,
            caller.f_lineno,
            msg,
            args,
            None if exc_info is None else (type(exc_info), exc_info, exc_info.__traceback__),
            caller.f_code.co_name,
            extra,
        )
        lines.put(self._logger, record)


class _Lines:
    """Lines of one loop's thread, on their way to be logged."""

    def __init__(self) -> None:
        self._begin()
        fork.watch(self)

    def _begin(self) -> None:
        self._jobs = host.current.new_queue()
        self._thread: host.Thread | None = None
        self._resumes: list[host.Event] = []
        # The loop's thread changes the first two, the other thread the rest.
        self._put = self._left_out = 0
        self._done = self._left_out_told = 0

    def pause(self, seconds: float) -> None:
        """Let the thread stand still until `resume`, as a fork follows; wait at most so long."""
        if self._thread is None or self._thread is threading.current_thread():
            return
        stands, resumed = host.current.new_event(), host.current.new_event()
        self._resumes.append(resumed)
        self._jobs.put(partial(self._stand_still, stands, resumed))
        stands.wait(seconds)

    def resume(self) -> None:
        """Let the thread go on."""
        while self._resumes:
            self._resumes.pop().set()

    def _stand_still(self, stands: host.Event, resumed: host.Event) -> None:
        stands.set()
        resumed.wait(_AT_FORK_S)
        self._done -= 1  # It is no line.

    def on_forked(self) -> None:
        """This is the copy in a child, where the thread is not: the parent logs these lines."""
        self._begin()

    def put(self, logger: logging.Logger, record: logging.LogRecord) -> None:
        """Have a line logged soon; the loop's thread calls it."""
        if self._put - self._done >= _LINES_MAX:
            self._left_out += 1
            return
        if self._thread is None:
            try:
                self._thread = host.current.start_thread("millrace-log", self._run)
            except RuntimeError:  # The interpreter ends: there are no new threads.
                return
        self._put += 1
        self._jobs.put(partial(_emit, logger, record))

    def wait(self, seconds: float) -> None:
        """Wait until the lines so far are logged, at most so long."""
        if self._thread is not None:
            is_logged = host.current.new_event()
            self._jobs.put(is_logged.set)
            is_logged.wait(seconds)

    def _run(self) -> None:
        while True:
            job: Callable[[], object] = self._jobs.get()
            try:
                job()
            except Exception:  # Of a handler that does not take care of its own errors.
                if logging.raiseExceptions:
                    traceback.print_exc()
            self._done += 1
            left_out = self._left_out - self._left_out_told
            if left_out and self._done >= self._put:
                self._left_out_told += left_out
                events.CLIENT_LINES_LEFT_OUT.log(_log, lines=left_out)


class _Diverted(logging.Filter):
    """Diverts the lines of a library that come in the clients' own thread."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._logger = logger

    def filter(self, record: logging.LogRecord) -> bool:
        lines = _lines_here()
        if lines is None:
            return True
        # At the end a handler may be closed already, and gRPC talks a lot for debugging.
        if not _Process.is_ending or record.levelno >= logging.WARNING:
            lines.put(self._logger, record)
        return False


class _Process:
    """The state of this process."""

    is_ending = False


_by_loop: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _Lines]] = WeakKeyDictionary()


def divert(loop: asyncio.AbstractEventLoop) -> None:
    """Log what this loop's thread logs in another thread."""
    _by_loop[loop] = _Lines()


def is_clients_thread() -> bool:
    """Return whether this is the thread of the synchronous clients."""
    return _lines_here() is not None


def remember_levels() -> None:
    """Have `logging` remember which levels of libraries are on.

    A thread calls this before it waits for the clients' thread, whose libraries then log without
    the lock of `logging`.
    """
    for logger in _LIBRARIES:
        for level in _LEVELS:
            logger.isEnabledFor(level)


def _lines_here() -> _Lines | None:
    """Return where lines of this thread go; None: they are logged here."""
    try:
        return _by_loop.get(asyncio.get_running_loop())
    except RuntimeError:
        return None


def _emit(logger: logging.Logger, record: logging.LogRecord) -> None:
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)


def _at_exit() -> None:
    """Log what waits: the thread ends with the interpreter."""
    _Process.is_ending = True
    for lines in list(_by_loop.values()):
        lines.wait(_AT_EXIT_S)


def _before_fork() -> None:
    for lines in list(_by_loop.values()):
        lines.pause(_AT_FORK_S)


def _after_fork() -> None:
    for lines in list(_by_loop.values()):
        lines.resume()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork)
for _logger in _LIBRARIES:
    _logger.addFilter(_Diverted(_logger))
atexit.register(_at_exit)
