"""A watch of the controller's Lease, in a thread of its own: brokers read a change at once.

Brokers read the Lease every now and then anyway, and trust only their own reads. So an event only
causes a read. An event that is lost, late, doubled or in the wrong order costs a late read or one
too many, and so does a watch that fails (F44). Each watch begins with the present state (it names
no resource version), so nothing is missed between two of them, and no history can be gone.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Final

import urllib3

from millrace.broker.coordination.kubernetes.api import KubernetesApi, events
from millrace.broker.coordination.store import CoordinationUnavailableError
from millrace.broker.events import LEASE_UNWATCHED
from millrace.runtime import host
from millrace.runtime.kubernetes.resources import Resource

_log = logging.getLogger(__name__)

_WATCH_S: Final = 60  # Then it is opened again, which detects a dead, silent connection.
_PAUSE_S: Final = 1.0  # Watches begin no closer together.


class LeaseWatcher:
    """Watches one Lease, from the first call of `events` on.

    Args:
        api: of the watcher alone: the watch keeps a connection busy.

    Attributes:
        on_event: called in the watcher's thread after each event.
    """

    def __init__(self, api: KubernetesApi, lease: Resource) -> None:
        self._api = api
        self._lease = lease
        self.on_event: Callable[[], None] = lambda: None
        self._events = 0
        self._trouble = ""
        self._lock = threading.Lock()  # Of the stream, and of whether another may begin.
        self._stream: urllib3.BaseHTTPResponse | None = None
        self._closed = host.current.new_event()
        self._thread: host.Thread | None = None

    @property
    def events(self) -> int:
        """Return the number of events so far. Called by one thread at a time."""
        if self._thread is None:
            self._thread = host.current.start_thread("watch-lease", self._run)
        return self._events

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            self._closed.set()
            if self._stream is not None:
                # It ended meanwhile, otherwise.
                with contextlib.suppress(OSError, RuntimeError, ValueError):
                    self._stream.shutdown()
        if self._thread is not None:
            self._thread.join()
        self._api.close()

    def _run(self) -> None:
        while True:
            begun_at = host.monotonic_s()
            try:
                self._watch()
                self._trouble = ""
            except CoordinationUnavailableError as error:
                if error.message != self._trouble:
                    LEASE_UNWATCHED.log(_log, error=error.message)
                self._trouble = error.message
            with self._lock:
                self._stream = None
            left_s = begun_at + _PAUSE_S - host.monotonic_s()
            if self._closed.wait(max(0.0, left_s)):
                return

    def _watch(self) -> None:
        with self._api.watch(self._lease.watching, _WATCH_S) as stream:
            with self._lock:
                if self._closed.is_set():
                    return
                self._stream = stream
            for _ in events(stream):
                self._events += 1
                self.on_event()
