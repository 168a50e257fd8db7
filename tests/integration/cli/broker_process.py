"""The embedded broker as a process that a test may stop and kill."""

from demo.up_process import UpProcess


class BrokerProcess(UpProcess):
    """One broker, which keeps its port from start to start."""

    address = ""

    def start(self) -> None:
        """Start the broker and wait until it is ready."""
        port = self.address.rpartition(":")[2] or "0"
        self.address = self.run("--port", port)["address"]

    def kill(self) -> None:
        """End the broker as a crash would."""
        self.abandon()
