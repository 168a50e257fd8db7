"""`millrace copy`: the records of a topic into another topic, of this cluster or of another one."""

import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from millrace.cli.arguments.read_start import (
    Position,
    from_option,
    keys_option,
    records_max_option,
    to_option,
)
from millrace.cli.cluster import CLIENT_ID, connect_admin, ranges_of, topic_argument
from millrace.cli.command import (
    Command,
    Destination,
    bootstrap_option,
    destination_of,
    output_option,
    to_bootstrap_option,
)
from millrace.cli.console.failures import ExitCode, Failure
from millrace.cli.console.interruption import END_S, LAST_STEP_S, Interrupted, Interruption
from millrace.cli.console.measures import Transfer, payload_bytes
from millrace.cli.console.output import print_json, say
from millrace.cli.topics.old_records import OldRecords
from millrace.cli.transfer.producing import compression_option, open_producer
from millrace.cli.transfer.reading import LOOK_MS, Ranges, Reader, assign_partitions, ends_of
from millrace.cli.transfer.stall_notices import StallNotices
from millrace.core.errors import MillraceError, UnknownTopicOrPartitionError
from millrace.core.topics import PartitionName, parse_topic_name
from millrace.core.words import count, shown

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.client import BatchHandle, SyncAdmin, SyncProducer, TopicDescription

_BATCHES_IN_FLIGHT_MAX: Final = 64
"""Batches that wait for their acknowledgement; `buffer_memory` bounds their bytes."""
_COMMIT_SECONDS: Final = 1.0
"""How often positions are stored."""
_LAST_ANSWERS_SECONDS: Final = END_S
"""How long answers that are on their way are waited for when the copy ends early."""
_LOOK_SECONDS: Final = 0.5
"""How often a wait for answers looks whether it is interrupted."""
_OFFSETS_SAID_MAX: Final = 20
_WITH_ID: Final = ", topic id "


@click.command(
    "copy",
    cls=Command,
    writes=True,
    examples="""
    millrace copy orders orders-again --create
    millrace copy orders orders --to-bootstrap other:7092 --create
    millrace copy orders trial --from -1000                    # the last ones of each partition
    millrace copy orders orders --profile production --to-profile staging --follow --name mirror
    """,
)
@topic_argument("source")
@click.argument("destination")
@to_bootstrap_option
@click.option(
    "--create",
    is_flag=True,
    help="Create DESTINATION if it is not there, with SOURCE's partitions and own settings.",
)
@from_option()
@to_option
@records_max_option
@keys_option
@click.option("--follow", "-f", is_flag=True, help="Do not end: go on with records that come.")
@click.option(
    "--name",
    metavar="NAME",
    help="Keep positions under this name in SOURCE's cluster, and go on from them: --from is where "
    "the first copy begins. Partitions that SOURCE gets later are copied from their start.",
)
@compression_option
@bootstrap_option
@output_option
def command(
    *,
    source: str,
    destination: str,
    to_bootstrap: str | None,
    create: bool,
    start: Position,
    until: Position | None,
    records_max: int | None,
    keys: list[bytes],
    follow: bool,
    name: str | None,
    compression: str,
    bootstrap: str,
    output: str,
) -> None:
    """Copy the records of SOURCE to DESTINATION, with keys, headers and timestamps.

    Where both have equally many partitions, a record goes to the partition of its number; else to
    that of its key. When SOURCE gets more partitions meanwhile, DESTINATION must get them first.
    The copies get new offsets. Without --follow and --to the command ends with the records that
    were there when it began.

    When it ends early, after an error or Ctrl-C, it says how far it came: the offset from which
    SOURCE's partitions are not copied. With --name it goes on from there when it is called again;
    after a crash, a second's records may be copied twice. It does not look again at records that
    --key left out.
    """
    from millrace.client import SyncConsumer

    place = destination_of(bootstrap, to_bootstrap)
    with connect_admin(bootstrap) as admin:
        described = admin.describe_topic(source)
        source = described.name
        mark = _prepare(admin, described, destination, place, create=create)
        ranges = {(source, partition): at for partition, at in ranges_of(admin, source).items()}
        ends = ends_of(admin, ranges, until, follow=follow)
        kept = _kept_offsets(admin, name, source, mark) if name else {}
        with (
            open_producer(
                place.bootstrap, compression=compression, **place.credentials._asdict()
            ) as producer,
            SyncConsumer(bootstrap, client_id=CLIENT_ID, metadata_max_age_ms=LOOK_MS) as consumer,
        ):
            partitions = len(producer.partitions_for(destination))
            keeps_partitions = partitions == len(ranges)
            if not keeps_partitions:
                say(
                    f"{destination} has not as many partitions as {source}: a record's key chooses "
                    "its partition"
                )
            assign_partitions(consumer, ranges, start, ends, grows=ends is None)
            for partition, offset in _starts(kept, ranges).items():
                consumer.seek(partition, offset)
            deleted = _deleted_uncopied(kept, ranges)
            interruption = Interruption(END_S)
            reader = Reader(
                consumer,
                ends,
                keys=keys,
                records_max=records_max,
            )
            taker = _Copier(
                producer,
                destination,
                interruption,
                OldRecords(place.bootstrap, destination, place.credentials),
                starts={
                    partition: consumer.position(partition) for partition in consumer.assignment()
                },
                passed=reader.passed,
                partitions=partitions if keeps_partitions else None,
            )
            keeper = _Keeper(admin, name, mark, taker) if name else None
            try:
                with StallNotices(producer):
                    _run(reader, taker, keeper, interruption, f"to {destination}")
            except BaseException:
                _say_how_far(taker, name)
                raise
            finally:
                deleted += consumer.metrics()["skipped_records"]
                _say_lost(deleted)
            if interruption.came:
                _say_how_far(taker, name)
                interruption.raise_if_came()
    if output == "json":
        offsets = [
            {"partition": partition, "offset": offset}
            for (_, partition), offset in sorted(taker.next_offsets.items())
        ]
        document = {"source": source, "destination": destination, **taker.copied.as_json()}
        print_json({**document, "deleted_uncopied": deleted, "next_offsets": offsets})
    else:
        say(f"{taker.copied.count} from {source} to {destination}")


def _prepare(
    admin: "SyncAdmin",
    source: "TopicDescription",
    destination: str,
    place: Destination,
    *,
    create: bool,
) -> str:
    """Check the destination, and create it if that is wanted; return what positions are marked by.

    Raises:
        Failure: it is the source, or is not there.
    """
    wanted = str(parse_topic_name(destination))
    with connect_admin(place.bootstrap, credentials=place.credentials) as other:
        cluster_id = other.describe_cluster().cluster_id
        if wanted == source.name and cluster_id == admin.describe_cluster().cluster_id:
            raise Failure(
                f"{wanted} would be copied into itself",
                "name another topic, or another cluster with --to-bootstrap",
            )
        try:
            found = other.describe_topic(wanted)
        except UnknownTopicOrPartitionError as error:
            if not create:
                raise Failure(
                    f"there is no topic {wanted} to copy to",
                    "--create makes it",
                    code_name=error.name(),
                    exit_code=ExitCode.NOT_FOUND,
                ) from error
            settings = {
                setting: entry.value
                for setting, entry in source.config.items()
                if entry.source == "topic"
            }
            found = other.create_topic(wanted, partitions=len(source.partitions), config=settings)
            say(f"created {wanted}")
    return f"copied to {wanted} of cluster {cluster_id}{_WITH_ID}{found.topic_id.hex()}"


def _kept_offsets(
    admin: "SyncAdmin", name: str, source: str, mark: str
) -> dict[PartitionName, int]:
    """Return from where an earlier copy under this name goes on.

    Raises:
        Failure: the positions are of something else.
    """
    kept = {
        place: position
        for place, position in admin.fetch_positions(name).items()
        if place[0] == source
    }
    without_id, _, _ = mark.partition(_WITH_ID)
    for position in kept.values():
        # An earlier release has left out the id.
        if position.metadata.startswith(without_id + _WITH_ID) and position.metadata != mark:
            raise Failure(
                f"the destination was deleted and made again since the last copy under {name!r}: "
                "what was copied then is not there",
                "another name copies everything again",
            )
        if position.metadata not in (mark, without_id):
            raise Failure(
                f"the positions under {name!r} are not of this copy, but "
                f"{position.metadata or 'of another reader'}",
                "choose another name for each copy of a topic",
            )
    return {place: position.offset for place, position in kept.items()}


def _starts(kept: Mapping[PartitionName, int], ranges: Ranges) -> dict[PartitionName, int]:
    """Return where a named copy goes on. Partitions without a position begin at their start."""
    if not kept:
        return {}
    return {
        partition: max(kept.get(partition, 0), first) for partition, (first, _) in ranges.items()
    }


def _deleted_uncopied(kept: Mapping[PartitionName, int], ranges: Ranges) -> int:
    """Return how many records were deleted since the last copy, and say where."""
    all_lost = 0
    for partition, (first, _) in ranges.items() if kept else ():
        if (lost := first - kept.get(partition, 0)) > 0:
            said = count(lost, "record was", "records were")
            say(f"{shown(partition)}: {said} deleted uncopied")
            all_lost += lost
    return all_lost


def _say_lost(records: int) -> None:
    if records:
        said = count(records, "record was", "records were")
        say(f"{said} deleted before being copied")


def _run(
    reader: Reader,
    taker: "_Copier",
    keeper: "_Keeper | None",
    interruption: Interruption,
    title: str,
) -> None:
    """Copy everything or until it is interrupted, and keep how far it came.

    An alarm ends any wait for the destination `END_S` after a signal. The positions are stored even
    then: the next copy repeats what is acknowledged after the stored ones.
    """

    def flush() -> None:
        taker.settle_done()
        if keeper is not None:
            keeper.look(time.monotonic())

    with interruption:
        try:
            if keeper is not None:
                keeper.store()  # So that also the next copy begins where this one does.
            reader.run(taker, flush, title=title, interruption=interruption)
            taker.settle_all(_LAST_ANSWERS_SECONDS if interruption.came else None)
            if taker.problem is not None:
                raise taker.problem
            interruption.allow(LAST_STEP_S)
        except BaseException as error:
            patience_s = 0 if isinstance(error, Interrupted) else _LAST_ANSWERS_SECONDS
            # A signal, or the alarm, ends one step. The first error is the one to report.
            with suppress(MillraceError, Interrupted):
                interruption.allow(patience_s + LAST_STEP_S)
                taker.settle_all(patience_s)
            if keeper is not None:
                with suppress(MillraceError, Interrupted):
                    keeper.store()
            raise
        if keeper is not None:
            keeper.store()
        taker.copied.seconds = reader.transfer.seconds


def _say_how_far(taker: "_Copier", name: str | None) -> None:
    offsets = sorted(taker.next_offsets.items())
    places = ", ".join(
        f"{topic}-{number} from {at}" for (topic, number), at in offsets[:_OFFSETS_SAID_MAX]
    )
    if len(offsets) > _OFFSETS_SAID_MAX:
        places += f" and {count(len(offsets) - _OFFSETS_SAID_MAX, 'more partition')}"
    say(f"{taker.copied.count} copied" + (f"; not copied: {places}" if places else ""))
    if name:
        say("the same command goes on from there")


@dataclass(slots=True)
class _Sent:
    """A batch on its way."""

    place: PartitionName
    records: "pa.RecordBatch"
    handle: "BatchHandle"


class _Copier:
    """Sends what is read, and knows from which offset on it is not acknowledged.

    Args:
        old: warns of records that the destination soon deletes.
        starts: where partitions of the source begin to be read.
        passed: the reader's; it may be ahead of the records that were to be copied.
        partitions: the number of the destination's, where a record goes to the partition of its
            number; None: its key chooses.
    """

    def __init__(
        self,
        producer: "SyncProducer",
        destination: str,
        interruption: Interruption,
        old: OldRecords,
        *,
        starts: Mapping[PartitionName, int],
        passed: Mapping[PartitionName, int],
        partitions: int | None,
    ) -> None:
        self._producer, self._destination = producer, destination
        self._interruption, self._old = interruption, old
        self._partitions = partitions
        self._in_flight: deque[_Sent] = deque()
        self._failed: set[PartitionName] = set()
        self.copied = Transfer()
        self._acknowledged, self._passed = dict(starts), passed
        self.problem: MillraceError | Failure | None = None
        """The first error of a record."""

    @property
    def next_offsets(self) -> dict[PartitionName, int]:
        """The offset in each partition of the source before which nothing is left to be copied."""
        waiting = self._failed | {sent.place for sent in self._in_flight}
        known = dict.fromkeys(list(self._passed), 0) | self._acknowledged  # Some have come since.
        return {
            place: at if place in waiting else max(at, self._passed.get(place, at))
            for place, at in known.items()
        }

    def write(self, topic: str, partition: int, records: "pa.RecordBatch") -> None:
        """Send records; wait if too many are on their way."""
        self._old.look(records.column("timestamp"))
        handle = self._producer.send_batch(  # Those without a time get that of their sending.
            self._destination,
            records,
            partition=None if self._partitions is None else partition,
        )
        self._in_flight.append(_Sent((topic, partition), records, handle))
        while len(self._in_flight) > _BATCHES_IN_FLIGHT_MAX and not self._interruption.came:
            with suppress(TimeoutError):
                self._settle_oldest(_LOOK_SECONDS)
        self.settle_done()

    def settle_done(self) -> None:
        """Count what was acknowledged.

        Raises:
            MillraceError: a record was refused.
            Failure: the source has grown, and the destination has not.
        """
        while self._in_flight and self._in_flight[0].handle.done():
            self._settle_oldest(None)
        if self.problem is not None:
            raise self.problem

    def settle_all(self, timeout_s: float | None) -> None:
        """Wait for everything that is on its way, at most for so long altogether."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        with suppress(TimeoutError):
            while self._in_flight:
                self._settle_oldest(None if until is None else max(until - time.monotonic(), 0))

    def _settle_oldest(self, timeout_s: float | None) -> None:
        sent = self._in_flight[0]
        with suppress(MillraceError):  # `errors` has the records.
            sent.handle.result(timeout_s)
        errors = sent.handle.errors()
        offsets = sent.records.column("offset")
        if sent.place not in self._failed:
            first = min(errors, default=None)
            self._acknowledged[sent.place] = (
                offsets[-1].as_py() + 1 if first is None else offsets[first].as_py()
            )
        if errors:
            self._failed.add(sent.place)
            self.problem = self.problem or self._explained(errors[min(errors)], sent.place)
        # Not before: an alarm in between would let `next_offsets` pass over what was refused.
        self._in_flight.popleft()
        self.copied.records += len(offsets) - len(errors)
        if not errors:
            self.copied.size_bytes += payload_bytes(sent.records)

    def _explained(self, error: MillraceError, place: PartitionName) -> MillraceError | Failure:
        """Return the error to show for a refused record: what to do if the source has grown."""
        topic, partition = place
        if (
            self._partitions is None
            or partition < self._partitions
            or not isinstance(error, UnknownTopicOrPartitionError)
        ):
            return error
        # The key alone would put the record elsewhere than earlier records with the same key.
        wanted = partition + 1
        return Failure(
            f"{topic} has grown to {wanted} partitions or more, and {self._destination} has "
            f"{self._partitions}",
            f"give {self._destination} {wanted} partitions, and copy again: `millrace topic alter "
            f"{self._destination} --partitions {wanted}`",
            code_name=error.name(),
            exit_code=ExitCode.NOT_FOUND,
        )


class _Keeper:
    """Keeps positions under a name."""

    def __init__(self, admin: "SyncAdmin", name: str, mark: str, taker: _Copier) -> None:
        self._admin, self._name, self._mark, self._taker = admin, name, mark, taker
        self._stored: dict[PartitionName, int] = {}
        self._looked = time.monotonic()

    def look(self, now: float) -> None:
        """Store positions if it is time."""
        if now - self._looked >= _COMMIT_SECONDS:
            self.store()
            self._looked = now

    def store(self) -> None:
        """Store what has changed."""
        from millrace.client import Position

        changed = {
            partition: offset
            for partition, offset in self._taker.next_offsets.items()
            if self._stored.get(partition) != offset
        }
        if changed:
            self._admin.commit_positions(
                self._name,
                {place: Position(offset, metadata=self._mark) for place, offset in changed.items()},
            )
            self._stored |= changed
