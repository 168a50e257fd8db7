"""The golden vectors in tests/data/batches: what every release must write and read, for ever.

NAME.json says in words and numbers what NAME.bin holds. To add one, write the JSON and run
`python -m tests.unit.core.records.vectors`, which writes the binaries that are missing and never
touches one that is there. A compressed one has to be made once by hand: compressors differ.

One of format 2 also says what Kafka's header has. It is written by the encoder of
`tests.fakes.kafka_batches`, which is not the product's.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tests.fakes import kafka_batches
from tests.fakes.kafka_batches import Record
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
from millrace.core.records.header import (
    HEADER_BYTES,
    KAFKA_FORMAT,
    KAFKA_MAGIC,
    MAGIC,
    parse_header,
    producer_section,
    seal,
    stamp,
)
from millrace.core.records.kafka_batch import read_header

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
    found = {"header": written, "records": [_spelled(record) for record in records.to_pylist()]}
    if header.format == KAFKA_FORMAT:
        kafka = read_header(batch[HEADER_BYTES:])
        found["kafka"] = {
            "crc": f"{kafka.crc:#x}",
            "attributes": f"{kafka.attributes:#x}",
            "base_timestamp": kafka.base_timestamp,
            "max_timestamp": kafka.max_timestamp,
        }
    return found


def encode(described: Description) -> bytes:
    """Return the uncompressed, stamped batch that a description tells to make."""
    return _kafka(described) if "kafka" in described else _columns(described)


def _kafka(described: Description) -> bytes:
    header, records, kafka = described["header"], described["records"], described["kafka"]
    base_offset, base_timestamp = header["base_offset"], kafka["base_timestamp"]
    own = not int(header["broker_attributes"], 16)  # Append time covers the records' own.
    data = b"".join(
        kafka_batches.encoded(
            Record(
                cell_of(record["value"]),
                cell_of(record["key"]),
                record["timestamp"] if own else base_timestamp,
                [(name, cell_of(value)) for name, value in record["headers"]],
            ),
            record["offset"] - base_offset,
            base_timestamp,
        )
        for record in records
    )
    body = kafka_batches.of_bytes(
        data,
        len(records),
        attributes=int(kafka["attributes"], 16),
        last_offset_delta=header["last_offset_delta"],
        base_timestamp=base_timestamp,
        max_timestamp=kafka["max_timestamp"],
        producer_id=header["producer_id"],
        producer_epoch=header["producer_epoch"],
        base_sequence=header["base_sequence"],
        base_offset=base_offset,
        leader_epoch=header["leader_epoch"],
    )
    return _stamped(described, _section(header, body, header["attributes"], KAFKA_MAGIC), body)


def _columns(described: Description) -> bytes:
    header, records = described["header"], described["records"]
    count, attributes = len(records), int(header["attributes"], 16)
    offsets = [record["offset"] - header["base_offset"] for record in records]
    times = [record["timestamp"] for record in records]
    if int(header["broker_attributes"], 16):  # The records' own time is covered by append time.
        times = [header["base_timestamp"]] * count
    columns = Columns(
        record_count=count,
        timestamps=np.array(times, np.int64),
        keys=pa.array([cell_of(record["key"]) for record in records], pa.binary()),
        values=pa.array([cell_of(record["value"]) for record in records], pa.binary()),
        headers=[
            [(name, cell_of(value)) for name, value in record["headers"]] for record in records
        ],
        offset_deltas=np.array(offsets, np.int32),
    )
    written = column_writer.write(columns) if count else None
    body = b"" if written is None else written.body
    columns_there = 0 if written is None else written.attributes
    # Of the rest, kinds are not to be computed.
    section = _section(header, body, f"{columns_there | attributes & 0x38:#x}", MAGIC)
    return _stamped(described, section, body)


def _section(header: Description, body: bytes, attributes: str, magic: bytes) -> bytes:
    return producer_section(
        magic=magic,
        stored_length=len(body),
        inflated_length=len(body),
        record_count=header["record_count"],
        attributes=int(attributes, 16),
        base_timestamp=WallMs(header["base_timestamp"]),
        max_timestamp=WallMs(header["max_timestamp"]),
        last_offset_delta=header["last_offset_delta"],
        producer_id=ProducerId(header["producer_id"]),
        producer_epoch=ProducerEpoch(header["producer_epoch"]),
        base_sequence=header["base_sequence"],
        delete_horizon=WallMs(header["delete_horizon"]),
    )


def _stamped(described: Description, section: bytes, body: bytes) -> bytes:
    header = described["header"]
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


def cell_of(cell: Any) -> bytes | None:
    """Return a key or value as a description spells it."""
    if cell is None:
        return None
    return bytes.fromhex(cell["hex"]) if isinstance(cell, dict) else cell.encode()


if __name__ == "__main__":
    for missing in NAMES:
        if not (FOLDER / f"{missing}.bin").exists():
            (FOLDER / f"{missing}.bin").write_bytes(encode(description(missing)))
