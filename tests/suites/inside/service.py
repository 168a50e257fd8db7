"""What kafka-python's fixtures take from a module that its source distribution lacks.

A broker that runs already needs neither to start nor to stop.
"""

from typing import Any


class ExternalService:
    """A broker that others have started."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    def open(self) -> None:
        """Do nothing: it runs."""

    def close(self) -> None:
        """Do nothing: others stop it."""


class SpawnedService:
    """A process of Kafka's own scripts, which there are none of here."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        raise FileNotFoundError("no scripts of Kafka's here: only brokers that run already")
