"""The web page beside brokers on this machine: `millrace up` has it without paying for it.

This process only holds the listening socket. The first visit starts `millrace web` on it, as a
process of its own. So a broker's process never opens records of strangers for a page, and a page
that fails takes nothing with it; the next visit starts it again. While it cannot start, the visit
waits, and the start is tried again. It ends with this process, however that ends, because it
watches a pipe whose other end is here (`parent_process`).
"""

import os
import select
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Final, Self

from millrace.cli.console.failures import Failure
from millrace.cli.console.output import say
from millrace.cli.credentials import NONE

_PAUSE_S: Final = 1.0
"""Pause before a page that has ended by itself, or does not start, is started again."""
_STOP_S_MAX: Final = 10.0


class WebPage:
    """A context manager that holds the page's port. `start` it once clients can connect.

    Args:
        port: of this machine; 0: any that is free.
        is_chosen: a user wants this port; else any other one does as well.

    Raises:
        Failure: the port is taken, and no other one does.
    """

    def __init__(self, port: int, *, is_chosen: bool) -> None:
        from millrace.web.listening import LOOPBACK, listening_socket

        try:
            self._listening = listening_socket(port)
        except OSError as error:
            if is_chosen:
                raise Failure(
                    f"the web page cannot be served on {LOOPBACK}:{port}: {error.strerror}",
                    "--web-port takes another port; 0: any that is free; -1: no page",
                ) from error
            self._listening = listening_socket(0)
        self.address = f"http://{LOOPBACK}:{self._listening.getsockname()[1]}"
        self._ended = threading.Event()
        self._wake, self._waker = os.pipe()
        self._thread: threading.Thread | None = None

    def start(self, bootstrap: str, tls_ca_file: str = "") -> None:
        """Serve the pages of the cluster at these addresses.

        Args:
            tls_ca_file: the authority of its brokers; empty: they are in plain text.
        """
        # Whatever a variable says of another cluster.
        cluster = ("--bootstrap", bootstrap, "--tls-ca-file", tls_ca_file or NONE)
        self._thread = threading.Thread(target=self._run, args=(cluster,), name="web-page")
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        os.write(self._waker, b"x")
        if self._thread is not None:
            self._thread.join()
        self._listening.close()
        for end in (self._wake, self._waker):
            os.close(end)

    def _run(self, cluster: Sequence[str]) -> None:
        failure = ""
        while True:
            self._wait_for(self._listening.fileno())
            if self._ended.is_set():
                return
            try:
                self._serve(cluster)
                failure = ""
            except OSError as error:  # This process may have no descriptor left.
                if str(error) != failure:
                    failure = str(error)
                    say(f"the web page does not start, and is tried again: {failure}")
            if self._ended.wait(_PAUSE_S):
                return

    def _wait_for(self, descriptor: int) -> None:
        """Return once there is something to read, or the page is to end."""
        waiting = select.poll()  # `select.select` takes no descriptor above 1023.
        for end in (descriptor, self._wake):
            waiting.register(end, select.POLLIN)
        waiting.poll()

    def _serve(self, cluster: Sequence[str]) -> None:
        """Run the page's process until it ends by itself, or is to end.

        Raises:
            OSError: it cannot be started.
        """
        listening = self._listening.fileno()
        command = [
            *(sys.executable, "-m", "millrace.cli", "web"),
            *("--listen-fd", str(listening), *cluster),
        ]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listening])
        assert process.stdin is not None
        try:
            ended = os.pidfd_open(process.pid)
            try:
                self._wait_for(ended)
            finally:
                os.close(ended)
        finally:
            process.stdin.close()  # It stops.
            try:
                process.wait(_STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
