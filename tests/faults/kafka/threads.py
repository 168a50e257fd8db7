"""Clients of Kafka under faults, each in a thread of its own."""

import threading
import time
from collections.abc import Callable
from typing import Final

_STOP_SECONDS_MAX: Final = 150.0


class KafkaThreads:
    """The clients, from `begin_clients` to `stop_clients`.

    Attributes:
        failure: an unexpected error of a client.
        is_over: set when they shall end.
    """

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self.is_over = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Start a client."""

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self.failure = self.failure or error

        thread = threading.Thread(target=run, name=f"Kafka {name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """Tell the clients that it is over."""
        self.is_over.set()

    def stop_clients(self) -> None:
        """Wait until the clients have ended.

        Raises:
            AssertionError: one does not.
        """
        self.stop()
        deadline = time.monotonic() + _STOP_SECONDS_MAX
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        late = [thread.name for thread in self._threads if thread.is_alive()]
        assert not late, f"these clients do not end: {late}"
