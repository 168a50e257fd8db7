"""Names of topics.

A topic is `namespace/name`. The namespace is a Kubernetes namespace and the boundary of access; it
may be left out when it is `default`, and then messages leave it out, too.
"""

import re
from typing import Final, NamedTuple, TypeAlias

from millrace.core.errors import InvalidTopicError

DEFAULT_NAMESPACE: Final = "default"
INTERNAL_PREFIX: Final = "__"
NAME_LENGTH_MAX: Final = 249
NAMESPACE_LENGTH_MAX: Final = 63

_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)

PartitionName: TypeAlias = tuple[str, int]
"""A partition as users name it: topic and number."""


class TopicName(NamedTuple):
    """A topic's name, valid by construction through `parse_topic_name`."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return self.name if self.namespace == DEFAULT_NAMESPACE else f"{self.namespace}/{self.name}"

    @property
    def is_internal(self) -> bool:
        """Whether the topic belongs to the cluster itself."""
        return self.name.startswith(INTERNAL_PREFIX)


POSITIONS_TOPIC: Final = TopicName(DEFAULT_NAMESPACE, "__positions")
"""Where positions are kept, see `core/coordinator/positions`."""
TRANSACTIONS_TOPIC: Final = TopicName(DEFAULT_NAMESPACE, "__transactions")
"""Where the states of transactions are kept, see `core/coordinator/transactions`."""


def parse_topic_name(text: str, default: str = DEFAULT_NAMESPACE) -> TopicName:
    """Read `name` or `namespace/name`.

    Args:
        text: the name.
        default: the namespace of a name without one.

    Raises:
        InvalidTopicError: the text is not a topic's name; says which rule it breaks.
    """
    if len(text) > NAMESPACE_LENGTH_MAX + 1 + NAME_LENGTH_MAX:
        raise InvalidTopicError(f"topic {text[:40]!r}...: its name has {len(text)} characters")
    namespace, slash, name = text.rpartition("/")
    if not slash:
        namespace = default
    if not is_namespace(namespace):
        raise InvalidTopicError(
            f"topic {text!r}: the namespace {namespace!r} must be 1 to {NAMESPACE_LENGTH_MAX} "
            "lower case letters, digits or hyphens, and begin and end with a letter or digit"
        )
    if len(name) > NAME_LENGTH_MAX or not _NAME.fullmatch(name) or name in (".", ".."):
        raise InvalidTopicError(
            f"topic {text!r}: the name must be 1 to {NAME_LENGTH_MAX} ASCII letters, digits, dots, "
            "underscores or hyphens, and neither '.' nor '..'"
        )
    return TopicName(namespace, name)


def is_namespace(text: str) -> bool:
    """Return whether a text is the name of a namespace."""
    return len(text) <= NAMESPACE_LENGTH_MAX and _NAMESPACE.fullmatch(text) is not None
