"""The embedded broker as a process that a test may stop and kill."""

import time

from demo.up_process import START_SECONDS_MAX, UpProcess


class BrokerProcess(UpProcess):
    """One broker, which keeps its port from start to start."""

    address = ""

    def start(self) -> None:
        """Start the broker and wait until it is ready.

        Meanwhile somebody may have its port for a moment: a client that tried to connect, from that
        very port of all.
        """
        port = self.address.rpartition(":")[2] or "0"
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                self.address = self.run("--port", port)["address"]
            except RuntimeError as error:
                is_taken = port != "0" and "Address already in use" in str(error)
                if not is_taken or time.monotonic() > deadline:
                    raise
            else:
                return

    def kill(self) -> None:
        """End the broker as a crash would."""
        self.abandon()
