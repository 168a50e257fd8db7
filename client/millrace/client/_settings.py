"""Bounds of the clients' settings."""

from millrace.core.errors import InvalidConfigError


def bounded(name: str, value: object, low: int, high: int) -> int:
    """Return a whole number that lies within its bounds.

    Raises:
        InvalidConfigError: it does not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidConfigError(
            f"{name}={value!r}: it must be a whole number from {low} to {high}"
        )
    return value
