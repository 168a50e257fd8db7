"""Names as clients of Kafka know them, and Millrace's own: one namespace, one to one (K7).

A listener has one namespace, and its clients see the names that lie in it, without it. Dots are
common in Kafka's names, so a namespace is no part of them. Groups and transactional ids lie in
namespaces, too.
"""

import re
import uuid

from millrace.core.errors import InvalidTopicError
from millrace.core.ids import TopicId
from millrace.core.topics import DEFAULT_NAMESPACE, TopicName, parse_topic_name


class Names:
    """The names of one namespace.

    Args:
        namespace: of the listener.
    """

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._prefix = "" if namespace == DEFAULT_NAMESPACE else f"{namespace}/"
        self._pattern_begin = f"{re.escape(namespace)}/(?:"

    def full(self, name: str) -> str:
        """Return the name of a topic, group or transactional id as Millrace's requests have it.

        A slash in a name does not lead to another namespace: the full name has one more. A topic
        may not have it, and the service that is asked for the topic says so. Groups and
        transactional ids may.
        """
        if not self._prefix and "/" in name:
            return f"{DEFAULT_NAMESPACE}/{name}"
        return f"{self._prefix}{name}"

    def known(self, full: str) -> str | None:
        """Return a topic as clients know it; None: it lies in another namespace."""
        if not full.startswith(self._prefix):
            return None
        name = full[len(self._prefix) :]
        return None if "/" in name else name

    def known_group(self, full: str) -> str | None:
        """Return a group as clients know it; None: clients of this namespace cannot name it.

        They cannot name the group that Millrace's own clients call `default/g`: `g` is another one.
        """
        name = full.removeprefix(f"{self.namespace}/")
        return name if self.full(name) == full else None

    def full_pattern(self, pattern: str) -> str:
        """Return a regular expression that matches full names of this namespace alone.

        Args:
            pattern: of names as clients know them; empty: of none.
        """
        return f"{self._pattern_begin}{pattern})" if pattern else ""

    def known_pattern(self, full: str) -> str:
        """Return a regular expression as clients know it; empty: it is of other names, too."""
        if not full.startswith(self._pattern_begin):
            return ""
        return full.removeprefix(self._pattern_begin).removesuffix(")")

    def topic(self, name: str) -> TopicName:
        """Return the topic that clients know by a name.

        Raises:
            InvalidTopicError: that is no name.
        """
        if "/" in name:
            raise InvalidTopicError(f"topic {name[:40]!r}: a name has no slash")
        return parse_topic_name(name, self.namespace)

    def of_topic(self, name: TopicName) -> str | None:
        """Return the name of a topic as clients know it; None: it is in another namespace."""
        return name.name if name.namespace == self.namespace else None


def uuid_of(topic_id: bytes) -> uuid.UUID:
    """Return a topic's id as Kafka's messages have it."""
    return uuid.UUID(bytes=bytes(topic_id))


def topic_id_of(found: uuid.UUID | None) -> TopicId | None:
    """Return a topic's id; None: the message names none."""
    return None if found is None else TopicId(found.bytes)
