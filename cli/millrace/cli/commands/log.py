"""`millrace log`: the files of a broker, looked at without the broker."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from millrace.cli.arguments.read_start import show_time
from millrace.cli.command import Group, output_option
from millrace.cli.console.failures import ExitCode, Failure, did_you_mean
from millrace.cli.console.output import print_json, print_table, say
from millrace.core.words import size

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.broker.storage.file_system import FileSystem
    from millrace.broker.storage.inspection import PartitionFiles, StoredBatch, Verified
    from millrace.core.records.header import BatchHeader

INFLATED_BYTES_MAX = 512 << 20
"""The largest batch that `log dump --records` inflates: the bound of the brokers."""


@click.group(
    "log",
    cls=Group,
    examples="""
    millrace log verify ./millrace-data
    millrace log dump ./millrace-data --topic flights
    """,
)
def command() -> None:
    """Examine a data directory, with or without its broker; nothing in it is changed.

    DIRECTORY is what `millrace up` was given as --data-dir, or one of a broker's log_dirs.
    """


class _Place(NamedTuple):
    """A partition's files, and the name of its topic."""

    topic: str
    files: "PartitionFiles"

    @property
    def partition(self) -> int:
        return self.files.topic_partition.partition

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


_directory_argument = click.argument("directory", type=click.Path(exists=True, file_okay=False))


def _choice_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option(
        "--log-dir",
        "other_log_dirs",
        type=click.Path(exists=True, file_okay=False),
        multiple=True,
        help="Another log directory of the same broker, where closed segments of tiered topics "
        "lie; can be given more than once.",
    )(command)
    command = click.option(
        "--partition", "-p", type=click.IntRange(0), help="Only the partition of this number."
    )(command)
    return click.option("--topic", metavar="TOPIC", help="Only this topic, by name or id.")(command)


@command.command(
    "dump",
    examples="""
    millrace log dump ./millrace-data --topic flights --partition 0
    millrace log dump ./millrace-data --topic flights --from 1000 --max 5
    millrace log dump ./millrace-data --topic flights --records | jq .value
    """,
)
@_directory_argument
@_choice_options
@click.option("--from", "start", type=click.IntRange(0), default=0, help="Begin at this offset.")
@click.option("--max", "batches_max", type=click.IntRange(1), help="End after so many batches.")
@click.option("--records", is_flag=True, help="Show the records, as JSON lines.")
@output_option
def dump(
    *,
    directory: str,
    topic: str | None,
    partition: int | None,
    other_log_dirs: tuple[str, ...],
    start: int,
    batches_max: int | None,
    records: bool,
    output: str,
) -> None:
    """Show the record batches of a log, partition after partition.

    A batch is of `records`, of a `transaction`, or of `markers`: the ends of transactions. Its
    format is `columns`, or `kafka` as a Kafka client sent it. With --records a marker says whose
    transaction was committed or aborted, and where its records lie.
    """
    from millrace.broker.storage import inspection
    from millrace.broker.storage.posix_file_system import PosixFileSystem
    from millrace.core.ids import Offset

    files = PosixFileSystem()
    count = 0
    if not records and output == "table":
        click.echo(_BATCH_LINE.format(*(name.upper() for name in _BATCH_COLUMNS)))
    for place in _places(files, directory, other_log_dirs, topic, partition):
        for batch in inspection.batches(files, place.files, Offset(start)):
            if count == batches_max:
                return
            count += 1
            if records:
                _print_records(files, place, batch)
            elif output == "json":
                click.echo(json.dumps(_batch_document(place, batch), ensure_ascii=False))
            else:
                cells = _batch_document(place, batch)
                click.echo(_BATCH_LINE.format(*(str(cells[name]) for name in _BATCH_COLUMNS)))


@command.command(
    "verify",
    examples="""
    millrace log verify ./millrace-data
    millrace log verify ./millrace-data --topic flights --output json
    millrace log verify ./ssd --log-dir ./hdd
    """,
)
@_directory_argument
@_choice_options
@output_option
def verify(
    *,
    directory: str,
    topic: str | None,
    partition: int | None,
    other_log_dirs: tuple[str, ...],
    output: str,
) -> None:
    """Read every byte of a log and check it against its checksums.

    Ends with 6 when records are damaged or missing, or when an index names other aborted
    transactions than the markers do. What the broker mends by itself, such as a torn end after a
    crash, is told and harmless; while the broker runs, so is an end that grows.
    """
    from millrace.broker.storage import inspection
    from millrace.broker.storage.posix_file_system import PosixFileSystem

    files = PosixFileSystem()
    results = [
        (place, inspection.verify_partition(files, place.files))
        for place in _places(files, directory, other_log_dirs, topic, partition)
    ]
    if output == "json":
        print_json([_verified_document(place, verified) for place, verified in results])
    else:
        _print_verified(results)
    damaged = [str(place) for place, verified in results if not verified.is_sound]
    if damaged:
        raise Failure(f"damaged: {', '.join(damaged)}", exit_code=ExitCode.DAMAGED)


def _places(
    files: "FileSystem",
    directory: str,
    other_log_dirs: Sequence[str],
    topic: str | None,
    partition: int | None,
) -> Iterator[_Place]:
    """Yield the chosen partitions, by topic and number.

    Raises:
        Failure: there is no log, or nothing in it was chosen.
    """
    from millrace.broker.storage import inspection
    from millrace.broker.storage.sealed_file import DamagedFileError
    from millrace.cli.arguments.topic_names import topic_names

    try:
        found = inspection.log_directories(files, directory)
        others = [
            log_dir
            for path in other_log_dirs
            for log_dir in inspection.log_directories(files, path)
        ]
    except DamagedFileError as error:
        raise Failure(f"{directory}: {error}", exit_code=ExitCode.DAMAGED) from error
    if not found:
        raise Failure(
            f"{directory} is no log directory, and none lies in it",
            "name the --data-dir of `millrace up`, or one of a broker's log_dirs",
            exit_code=ExitCode.NOT_FOUND,
        )
    log_dirs = {identity.directory_id: path for path, identity in (*found, *others)}
    names = topic_names(Path(directory))
    places = []
    for path, _ in found:
        for copy in inspection.partitions(files, path, log_dirs):
            topic_id = copy.topic_partition.topic_id
            places.append(_Place(names.get(topic_id, topic_id.hex()), copy))
    chosen = [
        place
        for place in places
        if topic in (None, place.topic, place.files.topic_partition.topic_id.hex())
        and partition in (None, place.partition)
    ]
    if not chosen and (topic is not None or partition is not None):
        wanted = f"partition {partition}" if topic is None else f"topic {topic!r}"
        hint = did_you_mean(topic or "", sorted({place.topic for place in places}))
        raise Failure(f"{directory} holds no such {wanted}", hint, exit_code=ExitCode.NOT_FOUND)
    yield from sorted(chosen, key=lambda place: (place.topic, place.partition))


_BATCH_COLUMNS = (
    *("topic", "partition", "base_offset", "last_offset", "records", "bytes", "format"),
    *("compression", "kind", "max_timestamp", "leader_epoch", "producer_id", "base_sequence"),
    *("position", "file"),
)
_BATCH_LINE = (
    "{:<16} {:>9} {:>12} {:>12} {:>8} {:>9} {:>8} {:>11}  {:<11} {:<24} {:>12} {:>11} {:>13} "
    "{:>11}  {}"
)


def _batch_document(place: _Place, batch: "StoredBatch") -> dict[str, Any]:
    from millrace.core.records.compression import Codec
    from millrace.core.records.header import KAFKA_FORMAT

    header = batch.header
    return {
        "topic": place.topic,
        "partition": place.partition,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "bytes": header.length,
        "format": "kafka" if header.format == KAFKA_FORMAT else "columns",
        "compression": Codec(header.codec).name.lower(),
        "kind": _kind_of(header),
        "base_timestamp": show_time(header.base_timestamp),
        "max_timestamp": show_time(header.max_timestamp),
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "position": batch.position,
        "file": Path(batch.path).name,
    }


def _kind_of(header: "BatchHeader") -> str:
    """Return what a batch holds: the ends of transactions are `markers`."""
    if header.is_control:
        return "markers"
    return "transaction" if header.is_transactional else "records"


def _print_records(files: "FileSystem", place: _Place, batch: "StoredBatch") -> None:
    from millrace.cli.records.writers import JsonWriter
    from millrace.core.records.batch import open_batch

    header = batch.header
    file = files.open(batch.path)
    try:
        data = file.pread(header.length, batch.position)
    finally:
        file.close()
    opened = open_batch(place.files.topic_partition, header, data, INFLATED_BYTES_MAX)
    if header.is_control:
        _print_markers(place, opened)
    else:
        JsonWriter(sys.stdout.buffer).write(place.topic, place.partition, opened)


def _print_markers(place: _Place, opened: "pa.RecordBatch") -> None:
    """Print the ends of transactions that a control batch holds."""
    from millrace.core.records.markers import markers_of

    offsets = opened.column("offset").to_pylist()
    for offset, written in zip(offsets, markers_of(opened.column("value")), strict=True):
        marker = written.marker
        document = {
            "topic": place.topic,
            "partition": place.partition,
            "offset": offset,
            "marker": "commit" if marker.is_commit else "abort",
            "producer_id": marker.producer_id,
            "producer_epoch": marker.producer_epoch,
            "coordinator_epoch": marker.coordinator_epoch,
            "protocol": marker.protocol,
            "first_offset": written.first_offset,
            "last_offset": written.last_offset,
        }
        sys.stdout.buffer.write(json.dumps(document, ensure_ascii=False).encode() + b"\n")


def _print_verified(results: "list[tuple[_Place, Verified]]") -> None:
    if not results:
        say("no partitions there yet")
        return
    print_table(
        ["TOPIC", "PARTITION", "EARLIEST", "LATEST", "RECORDS", "BATCHES", "SIZE", "STATE"],
        [
            [
                place.topic,
                place.partition,
                verified.log_start_offset,
                verified.log_end_offset,
                verified.records,
                verified.batches,
                size(verified.size_bytes),
                "sound" if verified.is_sound else "DAMAGED",
            ]
            for place, verified in results
        ],
    )
    for _, verified in results:
        for finding in verified.findings:
            where = "" if finding.position is None else f", byte {finding.position}"
            say(f"{finding.severity.value}: {finding.path}{where}: {finding.message}")


def _verified_document(place: _Place, verified: "Verified") -> dict[str, Any]:
    return {
        "topic": place.topic,
        "topic_id": place.files.topic_partition.topic_id.hex(),
        "partition": place.partition,
        "log_start_offset": verified.log_start_offset,
        "log_end_offset": verified.log_end_offset,
        "records": verified.records,
        "batches": verified.batches,
        "size_bytes": verified.size_bytes,
        "is_sound": verified.is_sound,
        "findings": [
            {
                "severity": finding.severity.value,
                "file": finding.path,
                "position": finding.position,
                "message": finding.message,
            }
            for finding in verified.findings
        ],
    }
