"""The outcomes of the records of an input: how many were written, which one was refused."""

import shlex
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Final

from millrace.cli.console.measures import Transfer
from millrace.cli.records.inputs import shown_name
from millrace.cli.records.sources import RecordColumns
from millrace.core.errors import Appended, MillraceError
from millrace.core.words import count

_FILES_NAMED_MAX: Final = 5


class Outcomes:
    """Counts blocks of records, which are added in the order of the input."""

    def __init__(self) -> None:
        self.written = Transfer()
        self.problem: MillraceError | None = None
        """The error of the first refused record, with its place in the input."""
        self._last = ""
        """Place of the last record that was written."""
        self._last_file, self._last_number = "", 0
        self._refused = 0
        self._unknown = 0
        self._added = 0
        """Records of all blocks."""
        self._aborted = 0
        self._committed: Outcomes | None = None
        """The state at the last commit, if records are written in transactions."""

    def add(self, columns: RecordColumns, errors: Mapping[int, MillraceError]) -> None:
        """Count a block that is settled.

        Args:
            errors: of its records, by their index, that were not written.
        """
        records = len(columns.values)
        self._added += records
        unknown = sum(error.appended is Appended.MAYBE for error in errors.values())
        self._unknown += unknown
        self._refused += len(errors) - unknown
        if errors and self.problem is None:
            index = min(errors)
            self.problem = copy(errors[index])
            self.problem.message = f"{columns.place(index)}: {self.problem.message}"
        if len(errors) < records:
            self.written.records += records - len(errors)
            last = max(set(range(records)).difference(errors))
            self._last = columns.place(last)
            self._last_file, self._last_number = columns.name, columns.numbers[last]
        if not errors:  # Bytes of failed records are not reported.
            self.written.size_bytes += columns.size_bytes

    def add_unsettled(self, columns: RecordColumns) -> None:
        """Count a block whose outcome is no longer awaited."""
        self._added += len(columns.values)
        self._unknown += len(columns.values)

    def commit(self) -> None:
        """All blocks so far count: they are committed."""
        self._committed = copy(self)
        self._committed.written = copy(self.written)

    def abort(self) -> None:
        """The blocks since the last commit do not count, whatever became of them."""
        self._aborted += self._go_back()

    def doubt(self) -> None:
        """It is not known whether the blocks since the last commit count."""
        self._unknown += self._go_back()

    def _go_back(self) -> int:
        """Return to the state of the last commit; return how many records came since."""
        before = self._committed or Outcomes()
        since = self._added - before._added
        seconds, self.written = self.written.seconds, copy(before.written)
        self.written.seconds = seconds
        self._last, self._last_file = before._last, before._last_file
        self._last_number, self._added = before._last_number, before._added
        self._refused, self._unknown = before._refused, before._unknown
        return since

    def summary(self) -> str:
        """Return the message if not all records were written."""
        text = f"{self.written.count} written"
        if self._last:
            text += f", the last from {self._last}"
        if self._aborted:
            text += f"; {self._aborted:,} not, as their transaction was aborted"
        if self._refused:
            text += f"; {self._refused:,} refused"
        if self._unknown:
            text += f"; of {self._unknown:,} it is not known"
        return text

    def how_to_go_on(self, files: Sequence[str], left: Sequence[str]) -> str:
        """Return the arguments with which the next run continues after the last written record.

        Empty if an earlier record was not written: no row is right to continue from.

        Args:
            files: all that were to be read.
            left: those of them that were not read to their end.
        """
        if not self._last or self._refused or self._unknown:
            return ""
        words = []
        if len(files) > 1:
            words = list(map(shlex.quote, left[:_FILES_NAMED_MAX]))
            if len(left) > len(words):
                words.append(f"(and the {count(len(left) - len(words), 'file')} after it)")
        if self._last_file == shown_name(left[0]):
            words.append(f"--from-row {self._last_number + 1}")
        return f"{' '.join(words)} goes on after {self._last}"
