"""The observer of a controller's machine, in tests of its shell."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from millrace.core.controller.effects import AskLogEnds
from millrace.core.metadata.objects.stored_object import StoredObject


@dataclass
class Observing:
    """Notes what the brokers would be sent."""

    published: list[list[str]] = field(default_factory=list)
    resigned: int = 0

    def on_published(self, objects: Mapping[str, StoredObject]) -> None:
        self.published.append(list(objects))

    def on_ask_log_ends(self, effect: AskLogEnds) -> None:
        pass

    def on_resigned(self) -> None:
        self.resigned += 1
