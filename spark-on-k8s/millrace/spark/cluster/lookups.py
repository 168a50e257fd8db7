"""The driver's look-ups at the brokers: the partitions, and where they begin and end.

The client follows leaders that move. When no broker at all can be reached, as while the only one
restarts, it raises an error at once; here the look-up is repeated, for as long as it may take.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, TypeAlias, TypeVar

from millrace.client import (
    AfterBytes,
    ConnectionFailedError,
    OffsetAndTimestamp,
    SyncAdmin,
    UnknownTopicOrPartitionError,
)
from millrace.core.isolation import READ_UNCOMMITTED, Isolation
from millrace.core.topics import PartitionName, parse_topic_name
from millrace.spark.cluster.offsets import (
    UNKNOWN_EPOCH,
    Log,
    LogPosition,
    Offsets,
    check_topic_names,
)
from millrace.spark.errors import InvalidOptionError
from millrace.spark.options.option import credential_files
from millrace.spark.options.source_options import SourceOptions
from millrace.spark.options.subscriptions import (
    At,
    AtOffset,
    AtTime,
    OffsetsOption,
    Partitions,
    TopicPattern,
    Topics,
)

CLIENT_ID: Final = "millrace-spark"
_WAIT_S_MAX: Final = 1.0
"""Pause between two checks for new partitions."""
_PAUSE_S: Final = 0.01
_RETRY_PAUSE_S: Final = 0.1
_DECISIONS_MAX: Final = 5
"""Attempts of a decision while topics of a pattern disappear."""

_Answer = TypeVar("_Answer")
_Asked: TypeAlias = Literal["beginning", "end"] | int | AfterBytes


def until_answered(ask: Callable[[], _Answer], timeout_ms: int) -> _Answer:
    """Return the brokers' answer; repeat the request while none can be reached.

    Raises:
        ConnectionFailedError: none could be reached in this time.
    """
    deadline = time.monotonic() + timeout_ms / 1000
    while True:
        try:
            return ask()
        except ConnectionFailedError:
            if time.monotonic() + _RETRY_PAUSE_S >= deadline:
                raise
        time.sleep(_RETRY_PAUSE_S)


class _NotSureError(Exception):
    """The broker that answered may lag behind the others."""


class Lookups:
    """Asks brokers on behalf of one query.

    Opened at the first use, in the driver. The first broker to answer may lag behind, and not know
    new or deleted topics yet. Once all brokers were asked, no older answer is used. That is done
    only when it matters: it takes a while if a broker is down.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._admin: SyncAdmin | None = None
        self._is_sure = False

    def __getstate__(self) -> SourceOptions:
        return self._options  # Connections stay where they are.

    def __setstate__(self, options: SourceOptions) -> None:
        self.__init__(options)  # type: ignore[misc]

    def ask(self, question: Callable[[SyncAdmin], _Answer]) -> _Answer:
        """Return the brokers' answer.

        Raises:
            ConnectionFailedError: none could be reached for `requestTimeoutMs`.
        """
        if self._admin is None:
            self._admin = SyncAdmin(
                self._options.bootstrap_servers,
                client_id=CLIENT_ID,
                request_timeout_ms=self._options.request_timeout_ms,
                **credential_files(self._options)._asdict(),
            )
        admin = self._admin
        return until_answered(lambda: question(admin), self._options.request_timeout_ms)

    def settle(self, decide: Callable[[], _Answer]) -> _Answer:
        """Return a decision that takes several look-ups; repeat it if a topic disappears meanwhile.

        The next list lacks a topic that matches a pattern, or a named one whose loss is no failure;
        whether that is a loss is decided then.

        Raises:
            UnknownTopicOrPartitionError: a named topic does not exist.
            ConnectionFailedError: the decision must be certain, and not all brokers answered.
        """
        options = self._options
        may_go = isinstance(options.subscription, TopicPattern) or not options.fail_on_data_loss
        left = _DECISIONS_MAX if may_go else 1
        while True:
            try:
                return decide()
            except _NotSureError:
                self.survey()
            except UnknownTopicOrPartitionError:
                left -= 1
                if not left:
                    raise

    def make_sure(self) -> None:
        """Make `settle` ask all brokers, once, and decide again: a topic seems to be gone."""
        if not self._is_sure:
            raise _NotSureError

    def close(self) -> None:
        """Close the connections; they are opened again when they are needed."""
        if self._admin is not None:
            self._admin.close()
            self._admin = None
            self._is_sure = False

    def survey(self) -> None:
        """Ask all brokers: later look-ups are not older than the newest metadata of any of them.

        Raises:
            ConnectionFailedError: some unfenced ones did not answer for `requestTimeoutMs`.
        """
        self.ask(_ask_all)
        self._is_sure = True

    def places(self) -> frozenset[PartitionName]:
        """Return the partitions that the query reads, as of now.

        Raises:
            UnknownTopicOrPartitionError: one that is named does not exist.
        """
        subscription = self._options.subscription
        match subscription:
            case Topics():
                names: Iterable[str] = subscription.names
            case TopicPattern():
                names = filter(subscription.matches, self.ask(lambda admin: admin.list_topics()))
            case Partitions():
                names = {topic for topic, _ in subscription.places}
        there = self._partitions_of(sorted(names))
        if not isinstance(subscription, Partitions):
            return there
        if missing := sorted(subscription.places - there):
            raise UnknownTopicOrPartitionError(
                f"assign names partitions that do not exist: {missing}: correct it, or add them"
            )
        return subscription.places

    def places_left(self) -> frozenset[PartitionName]:
        """Return the partitions that the query reads; a named topic that is gone may be no failure.

        Raises:
            UnknownTopicOrPartitionError: it is one, with `failOnDataLoss`.
        """
        subscription = self._options.subscription
        try:
            return self.places()
        except UnknownTopicOrPartitionError:
            if self._options.fail_on_data_loss or isinstance(subscription, TopicPattern):
                raise
        self.make_sure()
        if isinstance(subscription, Partitions):
            return subscription.places & self._existing({topic for topic, _ in subscription.places})
        return self._existing(str(parse_topic_name(name)) for name in subscription.names)

    def _existing(self, topics: Iterable[str]) -> frozenset[PartitionName]:
        """Return the partitions of those of these topics that exist."""
        there = self.ask(lambda admin: admin.list_topics(internal=True))
        return self._partitions_of(sorted(set(there).intersection(topics)))

    def _partitions_of(self, names: list[str]) -> frozenset[PartitionName]:
        check_topic_names(names)
        topics = self.ask(lambda admin: admin.describe_topics(names))
        return frozenset(
            (topic.name, partition.partition)
            for topic in topics.values()
            for partition in topic.partitions
        )

    def log(self, places: Iterable[PartitionName], ends: Offsets | None = None) -> Log:
        """Return where partitions begin and end; `ends` has the known ends.

        A record after the start of an open transaction is there, and no loss, whatever the
        isolation of the query: a query that had another one before may have read so far.
        """
        places = list(places)
        beginnings = self.offsets(dict.fromkeys(places, "beginning"))
        if ends is None:
            ends = _offsets(self._listed(dict.fromkeys(places, "end"), READ_UNCOMMITTED))
        return Log({place: found.offset for place, found in beginnings.items()}, ends)

    def log_of_existing(self, places: Iterable[PartitionName]) -> Log:
        """Return where the existing ones of these partitions begin and end: asks all brokers.

        Raises:
            ConnectionFailedError: not all of them answered.
        """
        self.survey()
        places = set(places)
        return self.log(sorted(places & self._existing({topic for topic, _ in places})))

    def offsets(
        self, wanted: Mapping[PartitionName, _Asked]
    ) -> dict[PartitionName, OffsetAndTimestamp]:
        """Return an offset for each partition; ends are those that the query may read."""
        return self._listed(wanted, self._isolation)

    def _listed(
        self, wanted: Mapping[PartitionName, _Asked], isolation: Isolation
    ) -> dict[PartitionName, OffsetAndTimestamp]:
        return self.ask(lambda admin: admin.list_offsets(wanted, isolation=isolation))

    @property
    def _isolation(self) -> Isolation:
        return self._options.reads

    def ends(self, places: Iterable[PartitionName]) -> Offsets:
        """Return up to where the query may read partitions."""
        return _offsets(self.offsets(dict.fromkeys(places, "end")))

    def wait_for_news(self, ends: Offsets, timeout_s: float) -> None:
        """Wait until the end of a partition moves, or the time is over; it may return earlier."""
        began = time.monotonic()
        known = {place: position.offset for place, position in ends.positions.items()}
        if known:
            wait_ms = int(min(timeout_s, _WAIT_S_MAX) * 1000)
            isolation = self._isolation
            self.ask(lambda admin: admin.wait_for_news(known, wait_ms, isolation=isolation))
        # A broker that cannot wait is asked as often as Spark would ask by itself.
        waited = time.monotonic() - began
        if waited < _PAUSE_S:
            time.sleep(min(_PAUSE_S, timeout_s) - waited)

    def resolve(self, option: str, where: OffsetsOption, *, at_start: bool) -> Offsets:
        """Return the position of an option for each partition of the query.

        Raises:
            InvalidOptionError: it names other partitions, or a time without later records.
        """
        wanted = where.of(option, self.places())
        found = self.offsets(
            {place: _asked(at) for place, at in wanted.items() if not isinstance(at, AtOffset)}
        )
        late = [place for place, position in found.items() if position.offset < 0]
        if late and at_start and self._options.starting_strategy == "error":
            raise InvalidOptionError(
                f"{option}: there are no records so late in {late}: choose an earlier time, or "
                "startingOffsetsByTimestampStrategy=latest"
            )
        exact = {place: at for place, at in wanted.items() if isinstance(at, AtOffset)}
        # Asked even if the offset is known: the answer names the topic.
        ends = _offsets(self.offsets(dict.fromkeys([*exact, *late], "end")))
        offsets = _offsets(found)
        return Offsets(
            {
                **offsets.positions,
                **{place: LogPosition(at.offset) for place, at in exact.items()},
                **{place: ends.positions[place] for place in late},
            },
            {**offsets.topic_ids, **ends.topic_ids},
        )

    def lost_from(self, offsets: Offsets) -> dict[PartitionName, int]:
        """Return the partitions that have lost records below these offsets, and the first lost
        offsets.

        A leader that was elected uncleanly has another log: there the epoch of the offsets ends
        before them.
        """
        epochs = {
            place: position.leader_epoch
            for place, position in offsets.positions.items()
            if position.leader_epoch != UNKNOWN_EPOCH
        }
        ends = self.ask(lambda admin: admin.find_epoch_ends(epochs)) if epochs else {}
        return {
            place: end for place, end in ends.items() if 0 <= end < offsets.positions[place].offset
        }

    def within_bytes(
        self, starts: Mapping[PartitionName, int], sizes: Mapping[PartitionName, int]
    ) -> Offsets:
        """Return the end of so many bytes of each partition: at least one batch."""
        wanted = {place: AfterBytes(starts[place], size) for place, size in sizes.items()}
        return _offsets(self.offsets(wanted))

    def record_bytes(self, topics: Iterable[str]) -> dict[PartitionName, float]:
        """Return the average size of a stored record in each partition that has any."""
        names = list(topics)
        logs = self.ask(lambda admin: [log for name in names for log in admin.describe_logs(name)])
        return {
            (log.topic, log.partition): log.size_bytes / (log.log_end_offset - log.log_start_offset)
            for log in logs
            if log.leads and log.log_end_offset > log.log_start_offset
        }


def _ask_all(admin: SyncAdmin) -> None:
    silent = admin.describe_cluster().unreachable
    if silent:
        raise ConnectionFailedError(
            f"brokers {list(silent)} do not answer, and may know better which topics there are"
        )


def _asked(at: At) -> _Asked:
    if isinstance(at, AtTime):
        return at.timestamp_ms
    return "beginning" if at == "earliest" else "end"


def _offsets(found: Mapping[PartitionName, OffsetAndTimestamp]) -> Offsets:
    return Offsets(
        {
            place: LogPosition(position.offset, position.leader_epoch)
            for place, position in found.items()
        },
        {place[0]: position.topic_id.hex() for place, position in found.items()},
    )
