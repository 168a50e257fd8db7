"""A witness of what brokers do with their disks: it checks each step against its rule.

A broker believes what its disk told it. The witness knows what is on the platter, and what a log
held before its process died. So it finds a false promise of the storage code when the code makes
it, and not when the power fails.

- Flushed bytes and names are on the platter (P13, P63, P69); so are the small files that are
  replaced as a whole (P69), and every leader epoch that recovery cannot reconstruct (P2).
- A log that is opened holds what was flushed (P65), in whole batches (P66). It knows their epochs
  and producers (P45). Its closed segments match their files (P68).
- A segment that moves to another disk is on its platter before it counts there, and the original
  counts until then (P76).
- A directory counts as cleanly closed only if it was (P27).

After a fault has changed bytes, the witness judges only what recovery can know.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

from tests.sim.machines.disk import SimulatedDisk
from tests.sim.machines.machine import BrokerMachine
from tests.sim.world import Violation

from millrace.broker.storage.epoch_checkpoint import FILE_NAME as EPOCHS
from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.log.state import LogState
from millrace.broker.storage.log_directory import LogDirectory
from millrace.broker.storage.producer_snapshots import SUFFIX as SNAPSHOT
from millrace.broker.storage.recovery_checkpoint import FILE_NAME as CHECKPOINT
from millrace.broker.storage.segment import Segment, parse_offset_name
from millrace.broker.storage.tier import FILE_NAME as TIER
from millrace.core.errors import CorruptBatchError, CorruptLogError, UnsupportedFormatError
from millrace.core.ids import NO_PRODUCER_ID, UNKNOWN_OFFSET, Offset, ProducerId, TopicPartition
from millrace.core.metadata.objects.store_versions import NOTHING_SEEN
from millrace.core.records.batch import walk
from millrace.core.records.header import Attributes, BatchHeader, verify_body
from millrace.core.records.markers import Marker, WrittenMarker, read_markers
from millrace.core.replica.log.producer_snapshot import ProducerEntry

_OF_A_LIFE: Final = ("broker-epoch", "identity")
_SEEN: Final = "controller-epoch"
_Batch: TypeAlias = tuple[BatchHeader, list[WrittenMarker]]


@dataclass(frozen=True, slots=True)
class Start:
    """The state in which a process found its directories.

    Attributes:
        was_closed: the previous life closed all of them cleanly, and nothing was written since.
        wipes: how often the machine has got an empty disk.
    """

    was_closed: bool
    wipes: int


@dataclass(slots=True)
class _Promise:
    """Up to which offset a log was flushed, and up to which recovery knows it.

    Attributes:
        replaced: how often the disk's content had been replaced by then.
    """

    replaced: int
    flushed_offset: Offset
    recovery_point: Offset


class LogWitness:
    """One witness for all machines; it outlives their processes.

    Attributes:
        starts: the start of each process, by its name.
        believes_witnesses: whether a log must not be truncated even if its directory's checkpoint
            is damaged; then the other files that tell of its length must be intact.
    """

    def __init__(self) -> None:
        self.starts: dict[str, Start] = {}
        self.believes_witnesses = False
        self._closed: dict[tuple[str, str], int] = {}
        self._remembered: dict[str, set[object]] = {}
        self._promises: dict[tuple[str, TopicPartition], _Promise] = {}
        self._epochs_seen: dict[tuple[str, int, TopicPartition], object] = {}

    # --- Directories -------------------------------------------------------------------------

    def on_closed(self, machine: BrokerMachine, directory: LogDirectory) -> None:
        """A process has closed a directory, and ends."""
        self._closed[machine.name, directory.path] = machine.disk.wipes

    def on_started(self, machine: BrokerMachine, process: str, directory: LogDirectory) -> None:
        """A process has opened a directory."""
        wipes = machine.disk.wipes
        was_closed = self._closed.pop((machine.name, directory.path), -1) == wipes
        if directory.was_clean and not was_closed:
            raise Violation(
                f"{machine.name} takes {directory.path} for closed in order, and it was not"
            )
        known = self.starts.get(process)
        self.starts[process] = Start(was_closed and (known is None or known.was_closed), wipes)

    def on_recalled(self, machine: BrokerMachine, what: object) -> None:
        """A process has read the memory of earlier lives."""
        if what not in (None, NOTHING_SEEN, *self._remembered.get(machine.name, ())):
            raise Violation(f"{machine.name} remembers {what}, which it never wrote")

    def on_remembering(self, machine: BrokerMachine, what: object) -> None:
        """A process is about to replace its memory of its lives, or of the store."""
        self._remembered.setdefault(machine.name, set()).add(what)

    def on_life_begun(self, machine: BrokerMachine, directory: LogDirectory) -> None:
        """A process has stored the number of its life."""
        for name in _OF_A_LIFE:
            self._judge_file(machine, directory, name)

    def on_seen_kept(self, machine: BrokerMachine, directory: LogDirectory) -> None:
        """A process has stored its memory of the store."""
        self._judge_file(machine, directory, _SEEN)

    # --- Flushes -----------------------------------------------------------------------------

    def on_flushed(self, machine: BrokerMachine, log: LogState) -> None:
        """Check the flushed offset of a log. Later records need not be on disk."""
        # A power cut may remove an empty segment, which holds nothing.
        path = next((segment.path for segment in reversed(log.segments) if segment.size), "")
        if not path or not machine.disk.exists(path):
            return  # Or the partition was dropped in the meantime.
        is_all = log.flushed_offset == log.log_end_offset
        if is_all and not machine.disk.is_durable(path):
            raise Violation(f"{machine.name} takes {path} for flushed, and it is not")
        self._promises[machine.name, log.topic_partition] = _Promise(
            machine.disk.replaced, log.flushed_offset, self._known_point(machine, log)
        )

    def _known_point(self, machine: BrokerMachine, log: LogState) -> Offset:
        known = self._promises.get((machine.name, log.topic_partition))
        is_known = known is not None and known.replaced == machine.disk.replaced
        return known.recovery_point if known is not None and is_known else Offset(0)

    def on_cutting(self, machine: BrokerMachine, topic_partition: TopicPartition) -> None:
        """A log is about to be truncated, emptied or dropped: this ends its promises."""
        self._promises.pop((machine.name, topic_partition), None)

    def on_checkpoint(self, machine: BrokerMachine, directory: LogDirectory) -> None:
        """The recovery points of all logs of a directory are durable."""
        disk, logs = machine.disk, dict(directory.logs)
        for topic_partition, log in logs.items():
            promise = self._promises.get((machine.name, topic_partition))
            if promise is not None:
                promise.recovery_point = log.state.recovery_point
        if disk.failures or disk.is_damaged:
            return
        self._judge_file(machine, directory, CHECKPOINT)
        for topic_partition, log in logs.items():
            self._judge_epochs(machine, topic_partition, log)

    def _judge_file(self, machine: BrokerMachine, directory: LogDirectory, name: str) -> None:
        disk, path = machine.disk, f"{directory.path}/{name}"
        if disk.failures or disk.is_damaged:
            return
        if disk.exists(path) and not disk.is_durable(path):
            raise Violation(f"{path} of {machine.name} would not survive a power cut")

    def _judge_epochs(
        self, machine: BrokerMachine, topic_partition: TopicPartition, log: PartitionLog
    ) -> None:
        """Check the epochs that begin below the recovery point: recovery does not read those."""
        due = [
            entry
            for entry in log.leader_epochs.entries
            if entry.start_offset < log.state.recovery_point
        ]
        key = machine.name, machine.lives, topic_partition
        if not due or self._epochs_seen.get(key) == due[-1]:
            return
        path = f"{log.directory}/{EPOCHS}"
        lines = machine.disk.durable_contents(path).splitlines()
        for epoch, start_offset in due:
            if f"{epoch} {start_offset}".encode() not in lines:
                raise Violation(f"{path} of {machine.name} does not say that {epoch} began")
        self._epochs_seen[key] = due[-1]

    # --- Logs --------------------------------------------------------------------------------

    def on_opened(self, machine: BrokerMachine, log: LogState) -> None:
        """A log was opened, recovered and, if the topic requires it, flushed."""
        disk, what = machine.disk, f"{machine.name} opens {log.topic_partition}"
        promise = self._promises.get((machine.name, log.topic_partition))
        if promise is not None and promise.replaced == disk.replaced:
            end = promise.flushed_offset
            if disk.is_damaged:  # A damaged tail looks like a torn one.
                end = promise.recovery_point
                if not self.believes_witnesses and _is_checkpoint_damaged(disk):
                    end = Offset(0)
            if log.log_end_offset < end:
                raise Violation(f"{what} up to {log.log_end_offset}, and had flushed up to {end}")
        for found in log.segments[:-1]:
            if disk.size(found.path) != found.size:
                raise Violation(f"{what}, and takes {found.path} for {found.size} bytes long")
        self.on_flushed(machine, log)
        self.judge_contents(machine, log)

    def on_refused(self, machine: BrokerMachine, path: str, error: CorruptLogError) -> None:
        """A log was found damaged; one in two places is, if the broker has lost a part (P76)."""
        disk = machine.disk
        was_changed = disk.failures or disk.is_damaged or disk.is_older_copy or disk.set_backs
        if not was_changed and disk.exists(f"{path}/{TIER}"):
            raise Violation(f"{machine.name} has lost a part of a log: {error.message}")

    def on_cut(self, machine: BrokerMachine, log: LogState) -> None:
        """A log was truncated."""
        for name in machine.disk.list(log.directory):
            as_of = parse_offset_name(name, SNAPSHOT)
            if as_of is not None and as_of > log.log_end_offset:
                raise Violation(f"{machine.name} cuts {log.topic_partition}, and keeps {name}")
        self.on_flushed(machine, log)
        self.judge_contents(machine, log)

    def on_not_written(self, machine: BrokerMachine, log: LogState) -> None:
        """Batches were not written, because the disk is full."""
        active = log.segments[-1]
        if machine.disk.size(active.path) != active.size:
            raise Violation(f"{machine.name} leaves half a batch in {active.path}")

    def on_segment_moving(self, machine: BrokerMachine, state: LogState, found: Segment) -> None:
        """A segment is about to count on another disk (P76)."""
        if found.next_offset > state.high_watermark and state.is_at_home(found):
            raise Violation(f"{machine.name} moves {found.path}, which is not committed")

    def on_segment_moved(self, machine: BrokerMachine, state: LogState, found: Segment) -> None:
        """A segment counts on another disk (P76)."""
        disk, note = machine.disk, f"{state.directory}/{TIER}"
        if disk.exists(note) and not disk.is_durable(note):
            raise Violation(f"{note} of {machine.name} would not survive a power cut")
        folder = state.folder_of(found.base_offset)
        if folder == found.folder:
            raise Violation(f"{machine.name} moves {found.path}, and it still counts there")
        path = f"{folder}/{found.path.rpartition('/')[2]}"
        if not disk.failures and not disk.is_durable(path):
            raise Violation(f"{machine.name} lets {path} count, and it would not survive")

    def judge_contents(self, machine: BrokerMachine, log: LogState) -> None:
        """Check a log's knowledge of its batches, at least of those in its last segment."""
        what = f"{machine.name}, {log.topic_partition}"
        headers, is_sound = self._headers(machine, log)
        for header, _ in headers:
            offset = max(header.base_offset, log.log_start_offset)
            if log.leader_epochs.epoch_of(offset) != header.leader_epoch:
                raise Violation(
                    f"{what}: offset {offset} is of leader epoch {header.leader_epoch}, and the "
                    f"epochs are {log.leader_epochs.entries}"
                )
        states = log.producer_states
        for producer_id in states:
            entry = states.entry(producer_id)
            last = -1 if entry is None or not entry.batches else entry.batches[-1].last_offset
            if last >= log.log_end_offset:
                raise Violation(f"{what}: it knows {entry}, and ends at {log.log_end_offset}")
        if not is_sound:
            return
        for producer_id, newest in _newest(headers).items():
            entry = states.entry(producer_id)
            if not _is_known(entry, newest):
                raise Violation(f"{what}: of producer {producer_id} it knows {entry}, not {newest}")

    def _headers(self, machine: BrokerMachine, log: LogState) -> tuple[list[_Batch], bool]:
        """Return the headers and markers of the last batches, and whether all of them are intact.

        If the disk is damaged, return those of all batches: small files may be damaged too.
        """
        disk = machine.disk
        found: list[_Batch] = []
        try:
            for segment in log.segments if disk.is_damaged else log.segments[-1:]:
                for header, batch in walk(disk.contents(segment.path)[: segment.size]):
                    if header.next_offset > log.log_start_offset:
                        verify_body(log.topic_partition, header, batch)
                        markers = (
                            read_markers(log.topic_partition, header, batch)
                            if header.is_control
                            else []
                        )
                        found.append((header, markers))
        except (CorruptBatchError, UnsupportedFormatError, FileNotFoundError) as error:
            if not disk.is_damaged:
                raise Violation(
                    f"{machine.name} keeps in {log.topic_partition} what is no batch: {error}"
                ) from None
            return found, False
        return found, True


def _newest(batches: list[_Batch]) -> dict[ProducerId, BatchHeader | Marker]:
    """Return the last batch or marker of each producer."""
    found: dict[ProducerId, BatchHeader | Marker] = {}
    for header, markers in batches:
        if header.producer_id != NO_PRODUCER_ID:
            found[header.producer_id] = header
        for marker, _, _ in markers:
            found[marker.producer_id] = marker
    return found


def _is_known(entry: ProducerEntry | None, last: BatchHeader | Marker) -> bool:
    """Whether a producer's state is what its last batch or marker makes of it (P45)."""
    if entry is None:
        return False
    is_open = entry.first_offset != UNKNOWN_OFFSET
    if isinstance(last, Marker):
        return not is_open and entry.epoch >= last.producer_epoch
    is_known = bool(entry.batches) and entry.batches[-1].base_offset == last.base_offset
    return is_known and (is_open or not last.attributes & Attributes.TRANSACTIONAL)


def _is_checkpoint_damaged(disk: SimulatedDisk) -> bool:
    return any(path.endswith(CHECKPOINT) for path in disk.damaged)
