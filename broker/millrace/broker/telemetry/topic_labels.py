"""Values of the label `topic`: bounded, however many topics there are.

The topics that come first are named, for as long as they exist. All others share one value, which
is no topic's name.
"""

from collections.abc import Container
from typing import Final

OTHERS: Final = "(others)"
"""The value for the topics that are not named."""


class TopicLabels:
    """Gives each topic its value of the label.

    Args:
        topics_max: topics that are named.
    """

    def __init__(self, topics_max: int) -> None:
        self._topics_max = topics_max
        self._labels: dict[str, str] = {}
        self._named = 0

    def label(self, topic: str) -> str:
        """Return the value for a topic; it stays the same until the topic is forgotten."""
        label = self._labels.get(topic)
        if label is None:
            has_room = self._named < self._topics_max
            self._named += has_room
            label = self._labels[topic] = topic if has_room else OTHERS
        return label

    def forget(self, topic: str) -> None:
        """Make room, because the topic is gone."""
        self._named -= self._labels.pop(topic, OTHERS) != OTHERS

    def keep_only(self, topics: Container[str]) -> None:
        """Forget all others: a look that was under way may have named one that was forgotten."""
        for topic in [label for label in self._labels if label not in topics]:
            self.forget(topic)
