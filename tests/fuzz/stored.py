"""What lies on disks and in the coordination store: files, metadata objects, records of state.

Checksums would keep a fuzzer out, so they are set right: these are bytes that another release may
have written.
"""

import struct
from contextlib import nullcontext, suppress
from typing import Any, Final

import crc32c

from millrace.broker.storage import index_chunks
from millrace.broker.storage.cleaner_point import read_point
from millrace.broker.storage.epoch_checkpoint import read_epochs
from millrace.broker.storage.log_directory.clean_shutdown import read_marker
from millrace.broker.storage.log_directory.ownership import read_identity, read_seen
from millrace.broker.storage.recovery_checkpoint import RecoveryCheckpoint
from millrace.broker.storage.sealed_file import VERSION, DamagedFileError
from millrace.broker.storage.tier import read_tier
from millrace.core.coordinator.groups import coordinator
from millrace.core.coordinator.transactions import records as transaction_records
from millrace.core.errors import CorruptBatchError, CorruptLogError, UnsupportedFormatError
from millrace.core.ids import ControllerEpoch, Offset, TopicId, TopicPartition, WallMs
from millrace.core.metadata.model import CLUSTER_KEY, SHARD_KEYS, shard_of
from millrace.core.metadata.objects import encoding
from millrace.core.metadata.objects.stored_object import (
    _HEAD,
    FORMAT,
    CorruptMetadataError,
    StoredObject,
)
from millrace.core.replica.log.producer_snapshot import parse_snapshot, write_snapshot
from millrace.core.replica.log.producer_states import ProducerStates

_PARTITION: Final = TopicPartition(TopicId(b"0123456789abcdef"), 3)
_KINDS: Final = (
    *("leader-epochs", "cleaner-point", "tier"),
    *("identity", "controller-epoch", "recovery-checkpoint", "clean-shutdown"),
)
_OF_PARTITIONS: Final = frozenset(_KINDS[:3])


class _OneFile:
    """A file system in which each file has the same content; what a reader needs of one."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def open(self, path: str) -> "_OneFile":
        return self

    def size(self, path: str) -> int:
        return len(self._content)

    def pread(self, size: int, offset: int) -> bytes:
        return self._content[offset : offset + size]

    def close(self) -> None:
        pass

    def new_mutex(self) -> Any:
        return nullcontext()


def fuzz_sealed_files(data: bytes) -> None:
    """Small files of log directories: read, or refused as damaged. The first byte chooses one."""
    kind, payload = _KINDS[(data[0] if data else 0) % len(_KINDS)], data[1:]
    named = f"{kind} {_PARTITION}" if kind in _OF_PARTITIONS else kind
    head = f"millrace {named} {VERSION} {len(payload)} {crc32c.crc32c(payload):08x}\n".encode()
    _read_sealed(kind, _OneFile(payload))
    _read_sealed(kind, _OneFile(head + payload))


def _read_sealed(kind: str, files: Any) -> None:
    match kind:
        case "leader-epochs":
            epochs = read_epochs(files, "", _PARTITION)
            if epochs is not None:
                assert all(entry >= (0, 0) for entry in epochs.entries)
        case "cleaner-point":
            read_point(files, "", _PARTITION)
        case "tier":
            with suppress(CorruptLogError):
                read_tier(files, "", _PARTITION, {"hdd": "/hdd"})
        case "identity":
            with suppress(DamagedFileError):
                read_identity(files, "")
        case "controller-epoch":
            with suppress(DamagedFileError):
                read_seen(files, "")
        case "recovery-checkpoint":
            checkpoint = RecoveryCheckpoint(files, "")
            payload = checkpoint.read()
            assert (payload is None) is checkpoint.is_lost
        case "clean-shutdown":
            read_marker(files, "", "ssd", b"")


def fuzz_index_file(data: bytes) -> None:
    """The index of a segment: what is sound of it, and no more than its bytes hold."""
    base_offset, binding = Offset(1000), index_chunks.binding_of(_PARTITION)
    layout, magic = (
        (index_chunks._CHUNK_3, index_chunks._MAGIC_3)
        if data[:1] >= b"\x80"
        else (index_chunks._CHUNK, index_chunks._MAGIC)
    )
    file = b""
    while len(data) >= layout.size:
        head, data = bytearray(data[: layout.size]), data[layout.size :]
        end = index_chunks.ENTRY.itemsize * (head[4] % 5) + 32 * (head[56] % 3 * (layout.size > 60))
        body, data = data[:end], data[end:]
        head[:4] = magic
        struct.pack_into("<q", head, 8, base_offset)
        struct.pack_into("<I", head, layout.size - 4, crc32c.crc32c(body))
        file += head + struct.pack("<I", crc32c.crc32c(bytes(head), binding)) + body
    contents = index_chunks.read(file, binding, base_offset)
    assert contents.nbytes <= len(file)
    assert (contents.coverage is None) is (contents.chunks == 0)
    assert contents.rows.nbytes + contents.aborts.nbytes <= contents.nbytes
    again = index_chunks.read(file[: contents.nbytes], binding, base_offset)
    assert again.nbytes == contents.nbytes


def fuzz_producer_snapshot(data: bytes) -> None:
    """A snapshot of producers: refused, or the same once more when it is written."""
    try:
        entries, ended = parse_snapshot(data)
        ProducerStates().restore(data)
    except CorruptBatchError:
        return
    assert parse_snapshot(write_snapshot(entries, ended)) == (entries, ended)


def fuzz_cluster_object(data: bytes) -> None:
    """The cluster's metadata object: read, or refused. The bytes are the JSON of its state."""
    with suppress(CorruptMetadataError):
        encoding.decode_cluster(_stored(CLUSTER_KEY, data))


def fuzz_shard_object(data: bytes) -> None:
    """A shard's metadata object: refused, or the same once more when it is written."""
    number = shard_of(_PARTITION.topic_id)
    try:
        shard = encoding.decode_shard(number, _stored(SHARD_KEYS[number], data))
    except CorruptMetadataError:
        return
    assert encoding.decode_shard(number, encoding.encode_shard(shard)) == shard


def _stored(key: str, state: bytes) -> StoredObject:
    text = b'{"controller_epoch":1,"format":%d,"key":"%s","state":%s,"version":2}' % (
        FORMAT,
        key.encode(),
        state,
    )
    value = b"".join((_HEAD % crc32c.crc32c(text), text, b"}"))
    return StoredObject(value, 2, ControllerEpoch(1))


def fuzz_coordinator_records(data: bytes) -> None:
    """A record of positions or groups: refused, or the same once more when it is written."""
    _read_record(coordinator, data)


def fuzz_transaction_records(data: bytes) -> None:
    """A record of transactions: refused, or the same once more when it is written."""
    _read_record(transaction_records, data)


def _read_record(form: Any, data: bytes) -> None:
    """The first byte says how long the key is; 255: there is no value."""
    has_value, length = (data[0] != 255, data[0]) if data else (False, 0)
    key, value = data[1 : 1 + length], data[1 + length :] if has_value else None
    try:
        record = form.decode(key or None, value, WallMs(7))
    except UnsupportedFormatError:
        return
    assert form.decode(*form.encode(record), WallMs(7)) == record
