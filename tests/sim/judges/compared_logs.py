"""What a replica's log holds, in the form in which checkers compare replicas."""

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache

from tests.fakes.keyed_batches import KeyedRecord, batches_in, records_of
from tests.sim.clients.readers_and_writers import Marks

from millrace.broker.storage.log import PartitionLog
from millrace.core.ids import TopicPartition
from millrace.core.records.batch import walk
from millrace.core.records.header import BatchHeader, parse_header, verify_body
from millrace.core.records.markers import AbortedTransaction


def batches_of(log: PartitionLog) -> list[list[object]]:
    """Return base offset, last offset and a digest of each batch of a log."""
    found: list[list[object]] = []
    offset = log.log_start_offset
    while (plan := log.reader.plan_read(offset, 1 << 20, log.log_end_offset)) is not None:
        for header, batch in walk(log.reader.read(plan)):
            digest = _digest(log.topic_partition, bytes(batch))
            found.append([header.base_offset, header.next_offset - 1, digest])
        offset = plan.end_offset
    return found


def committed_records(log: PartitionLog) -> list[KeyedRecord]:
    """Return the records of a log without markers, and without those of aborted transactions."""
    aborted = log.reader.aborted(log.log_start_offset, log.log_end_offset)
    return [
        record
        for header, batch in batches_in(log)
        if not header.is_control and not _is_aborted(header, aborted)
        for record in records_of(log, header, batch)
        if record.offset >= log.log_start_offset
    ]


def _is_aborted(header: BatchHeader, aborted: Sequence[AbortedTransaction]) -> bool:
    return header.is_transactional and any(
        header.producer_id == one.producer_id
        and one.first_offset <= header.base_offset <= one.last_offset
        for one in aborted
    )


def marks_among(records: Iterable[KeyedRecord]) -> dict[bytes, bytes | None]:
    """Return the last record of each key of a compacted log that others replace."""
    return {
        record.key: record.value
        for record in records
        if record.key is not None and record.key.startswith(Marks.PREFIX)
    }


def batches_of_values(records: Iterable[KeyedRecord]) -> list[list[object]]:
    """Return the records of a compacted log that nothing replaces, each as a batch of its own.

    Its batches differ between replicas, as each of them compacts by itself.
    """
    found: list[list[object]] = []
    for record in records:
        if record.key is not None and not record.key.startswith(Marks.PREFIX):
            assert record.value is not None
            found.append([record.offset, record.offset, record.value.hex()])
    return found


@lru_cache(maxsize=1 << 15)  # Every replica has the same batches.
def _digest(topic_partition: TopicPartition, batch: bytes) -> str:
    """Return the digest of a batch whose checksums hold."""
    verify_body(topic_partition, parse_header(batch), batch)
    return hashlib.blake2b(batch, digest_size=8).hexdigest()
