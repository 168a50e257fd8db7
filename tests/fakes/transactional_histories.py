"""Histories of a perfect cluster with transactions, which tests can then spoil."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tests.checkers.check import check
from tests.checkers.history import FAIL, INVOKE, OK, Send
from tests.checkers.report import Expectations, Report
from tests.fakes.histories import PerfectCluster

_NOTHING: Final = Expectations(ok_shares={}, final_polls=False)


class Transactional(PerfectCluster):
    """A cluster with transactions; a marker takes an offset in each of their partitions."""

    def begin(self, process: str, *keys: int) -> list[Send]:
        """Begin a transaction with a record for each of these keys, which are written at once."""
        sends = [Send(key, self.new_value()) for key in keys]
        self.record(process, INVOKE, "txn", sends=sends)
        found = []
        for key, value, _ in sends:
            found.append(Send(key, value, len(self.logs[key])))
            self.logs[key].append(value)
        return found

    def end(
        self,
        process: str,
        sends: Sequence[Send],
        outcome: str = OK,
        reads: Mapping[int, Sequence[tuple[int, int]]] | None = None,
    ) -> None:
        """End it, with markers; tell what it has read."""
        self.record(process, INVOKE, "end", details="abort" if outcome == FAIL else "commit")
        for key in {send.key for send in sends}:
            self.logs[key].append(None)
        self.record(process, outcome, "txn", sends=sends, polled=[reads] if reads else [])

    def write(self, process: str, *keys: int) -> list[Send]:
        """Commit a transaction."""
        sends = self.begin(process, *keys)
        self.end(process, sends)
        return sends

    def hide(self, sends: Iterable[Send]) -> None:
        """Let committed readers find nothing where these records are."""
        for send in sends:
            assert send.offset is not None
            self.logs[send.key][send.offset] = None

    def abort(self, process: str, *keys: int) -> list[Send]:
        sends = self.begin(process, *keys)
        self.end(process, sends, FAIL)
        self.hide(sends)
        return sends

    def judge(self, *, commit_ns: int | None = None) -> Report:
        """Judge the history, after reads of the end; see `check`."""
        return check(self.finish(), expectations=_NOTHING, commit_ns=commit_ns)
