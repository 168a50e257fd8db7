"""A bound on the memory of large answers to fetches.

Every answer may have `limits.fetch_response_bytes_max` of records. What one has beyond that is
taken from a pool of the listener while it is planned, and given back when it is sent; where the
pool is empty, answers are small.
"""


class LargeAnswers:
    """The pool. It belongs to the event loop.

    Args:
        bytes_max: of all answers, beyond what each may have.

    Attributes:
        left: bytes that nobody has taken.
    """

    def __init__(self, bytes_max: int) -> None:
        self.left = bytes_max


class LargeAnswer:
    """What the answer of one connection, which has one at a time, has of the pool."""

    def __init__(self, pool: LargeAnswers) -> None:
        self._pool = pool
        self._taken = 0

    def take(self, wanted: int) -> int:
        """Take bytes, as many of these as are left; return how many the answer has now."""
        more = max(min(wanted - self._taken, self._pool.left), 0)
        self._pool.left -= more
        self._taken += more
        return self._taken

    def keep(self, needed: int) -> int:
        """Give back all but what is needed; return how many bytes the answer has now."""
        unused = max(self._taken - max(needed, 0), 0)
        self._pool.left += unused
        self._taken -= unused
        return self._taken
