"""How long a driver may be silent, and may take to end: what its pod says, as it is made so."""

import os
from typing import Final

from millrace.core.numbers import parse_whole_number
from millrace.core.settings import INT32_MAX
from millrace.spark.errors import InvalidOptionError

_SILENT_VARIABLE: Final = "MILLRACE_SILENT_SECONDS_MAX"
_GRACE_VARIABLE: Final = "MILLRACE_GRACE_SECONDS"
_SILENT_S: Final = 60
_GRACE_S: Final = 120
_GRACE_SHARE: Final = 0.75
"""Of the time until the pod is killed: the rest is for Spark's own end."""


def silent_s_max() -> float:
    """Return how long a query may be silent before it is not healthy.

    Raises:
        InvalidOptionError: the variable is no number.
    """
    return _seconds(_SILENT_VARIABLE, _SILENT_S)


def micro_batch_grace_s() -> float:
    """Return how long a micro-batch may take to end after SIGTERM.

    Raises:
        InvalidOptionError: the variable is no number.
    """
    return _GRACE_SHARE * _seconds(_GRACE_VARIABLE, _GRACE_S)


def _seconds(variable: str, otherwise: int) -> int:
    text = os.environ.get(variable)
    if text is None:
        return otherwise
    number = parse_whole_number(text, INT32_MAX)
    if number is None:
        raise InvalidOptionError(f"{variable}={text!r}: give a whole number of seconds")
    return number
