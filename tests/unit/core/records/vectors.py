"""The golden vectors in tests/data/batches: what every release must write and read, for ever.

NAME.json says in words and numbers what NAME.bin holds. To add one, write the JSON and run
`python -m tests.unit.core.records.vectors`, which writes the binaries that are missing and never
touches one that is there. A compressed one has to be made once by hand: compressors differ.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tests.unit.core.records.batches import numbers_of

from millrace.core.ids import (
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicPartition,
    WallMs,
)
from millrace.core.records import column_writer
from millrace.core.records.batch import open_batch
from millrace.core.records.columns import Columns
from millrace.core.records.header import parse_header, producer_section, seal, stamp

FOLDER = Path(__file__).resolve().parents[3] / "data" / "batches"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))

Description = dict[str, Any]


def description(name: str) -> Description:
    """Return what a vector is said to hold."""
    read: Description = json.loads((FOLDER / f"{name}.json").read_text())
    return read


def binary(name: str) -> bytes:
    """Return a vector's bytes."""
    return (FOLDER / f"{name}.bin").read_bytes()


def partition_of(described: Description) -> TopicPartition:
    """Return the partition that a vector is sealed for."""
    return TopicPartition(TopicId(bytes.fromhex(described["topic_id"])), described["partition"])


def decode(topic_partition: TopicPartition, batch: bytes) -> Description:
    """Return header and records of a batch as its description says them."""
    header = parse_header(batch)
    records = open_batch(topic_partition, header, batch, 1 << 20)
    records.validate(full=True)
    numbers = numbers_of(header)
    written: Description = dict(numbers)
    for name in ("attributes", "broker_attributes", "producer_crc"):
        written[name] = f"{numbers[name]:#x}"
    return {"header": written, "records": [_spelled(record) for record in records.to_pylist()]}


def encode(described: Description) -> bytes:
    """Return the uncompressed, stamped batch that a description tells to make."""
    header, records = described["header"], described["records"]
    count, attributes = len(records), int(header["attributes"], 16)
    offsets = [record["offset"] - header["base_offset"] for record in records]
    times = [record["timestamp"] for record in records]
    if int(header["broker_attributes"], 16):  # The records' own time is covered by append time.
        times = [header["base_timestamp"]] * count
    columns = Columns(
        record_count=count,
        timestamps=np.array(times, np.int64),
        keys=pa.array([_bytes(record["key"]) for record in records], pa.binary()),
        values=pa.array([_bytes(record["value"]) for record in records], pa.binary()),
        headers=[
            [(name, _bytes(value)) for name, value in record["headers"]] for record in records
        ],
        offset_deltas=np.array(offsets, np.int32),
    )
    written = column_writer.write(columns) if count else None
    body = b"" if written is None else written.body
    columns_there = 0 if written is None else written.attributes
    section = producer_section(
        stored_length=len(body),
        inflated_length=len(body),
        record_count=count,
        attributes=columns_there | attributes & 0x38,  # Of the rest, kinds are not to be computed.
        base_timestamp=WallMs(header["base_timestamp"]),
        max_timestamp=WallMs(header["max_timestamp"]),
        last_offset_delta=header["last_offset_delta"],
        producer_id=ProducerId(header["producer_id"]),
        producer_epoch=ProducerEpoch(header["producer_epoch"]),
        base_sequence=header["base_sequence"],
        delete_horizon=WallMs(header["delete_horizon"]),
    )
    sealed = seal(partition_of(described), section, body)
    if header["leader_epoch"] < 0:
        return sealed + body
    return (
        stamp(
            sealed,
            base_offset=Offset(header["base_offset"]),
            leader_epoch=LeaderEpoch(header["leader_epoch"]),
            append_timestamp=WallMs(header["append_timestamp"]),
        )
        + body
    )


def _spelled(record: dict[str, Any]) -> Description:
    return {
        "offset": record["offset"],
        "timestamp": record["timestamp"],
        "key": _text(record["key"]),
        "value": _text(record["value"]),
        "headers": [[header["key"], _text(header["value"])] for header in record["headers"]],
    }


def _text(cell: bytes | None) -> Any:
    if cell is None:
        return None
    return cell.decode() if cell.isascii() else {"hex": cell.hex()}


def _bytes(cell: Any) -> bytes | None:
    if cell is None:
        return None
    return bytes.fromhex(cell["hex"]) if isinstance(cell, dict) else cell.encode()


if __name__ == "__main__":
    for missing in NAMES:
        if not (FOLDER / f"{missing}.bin").exists():
            (FOLDER / f"{missing}.bin").write_bytes(encode(description(missing)))
