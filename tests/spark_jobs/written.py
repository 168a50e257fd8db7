"""How far a Spark job is, read from its files."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet


class Written:
    """What a query has written: its checkpoint, and Parquet files beside their log.

    A micro-batch is planned (its offsets are in the checkpoint), its tasks write files, these are
    listed in the output's log, and then the batch is committed.
    """

    def __init__(self, folder: Path) -> None:
        self.output = folder / "out"
        self.checkpoint = folder / "checkpoint"
        self._log = self.output / "_spark_metadata"

    def planned(self) -> int:
        """Return the last batch that was planned; -1: none."""
        return max(_numbers(self.checkpoint / "offsets"), default=-1)

    def committed(self) -> int:
        """Return the last batch that was committed; -1: none."""
        return max(_numbers(self.checkpoint / "commits"), default=-1)

    def listed(self) -> int:
        """Return the last batch whose files are in the output's log; -1: none."""
        return max(_numbers(self._log), default=-1)

    def marks(self) -> set[str]:
        """Return all Parquet files, those that nobody lists too: new ones say that tasks write."""
        return {path.name for path in self.output.glob("part-*.parquet")}

    def listed_files(self) -> list[Path]:
        """Return the files that count: the others are of tasks that were killed."""
        batches = _numbers(self._log)
        compact = [number for number in batches if (self._log / f"{number}.compact").exists()]
        first = max(compact, default=0)
        listed: list[Path] = []
        for number in sorted(batch for batch in batches if batch >= first):
            name = f"{number}.compact" if number in compact else str(number)
            version, *entries = (self._log / name).read_text().splitlines()
            assert version == "v1"
            for entry in map(json.loads, entries):
                assert entry["action"] == "add"
                listed.append(self.output / Path(entry["path"]).name)
        return listed

    def leftovers(self) -> int:
        """Return how many files do not count."""
        return len(self.marks() - {path.name for path in self.listed_files()})

    def table(self) -> pa.Table:
        """Return all rows that count."""
        tables = [pyarrow.parquet.read_table(path) for path in self.listed_files()]
        return pa.concat_tables(tables)


def _numbers(folder: Path) -> list[int]:
    names = [path.name.removesuffix(".compact") for path in folder.glob("[0-9]*")]
    return [int(name) for name in names if name.isdigit()]
