"""Sets of offsets, stored as runs: the offsets that were read from a log form a few runs."""

from bisect import bisect_right


class Coverage:
    """A set of offsets as disjoint runs, ascending, that do not touch."""

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.lasts: list[int] = []

    def add(self, first: int, last: int) -> None:
        at = bisect_right(self.firsts, first)
        if at and self.lasts[at - 1] >= first - 1:
            at -= 1
            first = self.firsts[at]
            if self.lasts[at] >= last:
                return
        end = at
        while end < len(self.firsts) and self.firsts[end] <= last + 1:
            last = max(last, self.lasts[end])
            end += 1
        self.firsts[at:end] = [first]
        self.lasts[at:end] = [last]

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self.firsts, offset)
        return bool(at) and offset <= self.lasts[at - 1]

    @property
    def highest(self) -> int:
        """The greatest offset; -1 when there is none."""
        return self.lasts[-1] if self.lasts else -1

    def has_between(self, before: int, after: int) -> bool:
        """Return whether any offset lies between two others, both exclusive."""
        at = bisect_right(self.lasts, before)
        return at < len(self.lasts) and max(self.firsts[at], before + 1) < after
