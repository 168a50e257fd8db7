"""The partition leader, spoken to in lines of text."""

from collections.abc import Iterable

from tests.fakes.completed import completed
from tests.fakes.replica_log import FakeReplicaLog
from tests.scenario.transcript import Command

from millrace.core.errors import MillraceError, NotLeaderError, StorageFullError
from millrace.core.ids import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    PartitionEpoch,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicPartition,
    WallMs,
)
from millrace.core.metadata.model import BrokerLife, PartitionState
from millrace.core.metadata.topic_config import Durability
from millrace.core.records.batch import prepare
from millrace.core.records.columns import Columns
from millrace.core.records.header import parse_header
from millrace.core.replica.replication.appends import Acks
from millrace.core.replica.replication.effects import Effect
from millrace.core.replica.replication.leader import PartitionLeader
from millrace.core.replica.replication.rules import AppendRules

PARTITION = TopicPartition(TopicId(b"t" * 16), 0)
_NOW = 1_000_000


class LeaderCommands:
    """Runs commands; each answers with what was completed, and where the leader stands."""

    def __init__(self) -> None:
        self._leader: PartitionLeader | None = None

    def __call__(self, command: Command) -> list[str]:
        """Run a command."""
        try:
            lines: list[str] = getattr(self, "_" + command.verb.replace("-", "_"))(command)
        except MillraceError as error:
            lines = [f"{error.name()}, appended={error.appended.name}"]
        return [*lines, self._state()]

    @property
    def _machine(self) -> PartitionLeader:
        assert self._leader is not None, "the first command is `begin`"
        return self._leader

    def _begin(self, command: Command) -> list[str]:
        end = Offset(command.number("end", 0))
        broker = BrokerLife(BrokerId(0), BrokerEpoch(1))
        state = PartitionState(
            replicas=(broker.broker_id,),
            leader=broker.broker_id,
            leader_epoch=LeaderEpoch(command.number("epoch", 0)),
            partition_epoch=PartitionEpoch(0),
            isr=(broker,),
        )
        self._leader = PartitionLeader(
            PARTITION,
            broker,
            state,
            FakeReplicaLog(end, end),
            AppendRules(durability=Durability(command.named.get("durability", "fsync"))),
            high_watermark=end,
            now=MonotonicMs(0),
        )
        return []

    def _append(self, command: Command) -> list[str]:
        (name,) = command.words
        count = command.number("records", 1)
        time = WallMs(_NOW + command.number("after", 0))
        producer_id = ProducerId(command.number("producer", -1))
        prepared = prepare(PARTITION, Columns(count, time, [b"x"] * count))
        header = parse_header(
            prepared.finish(
                producer_id,
                ProducerEpoch(command.number("producer_epoch", 0) if producer_id >= 0 else -1),
                command.number("sequence", -1),
            )
        )
        acks = Acks[command.named.get("acks", "all").upper()]
        waiter = self._machine.append(header, acks, name, WallMs(_NOW))
        what = "repeats" if waiter.is_duplicate else "has"
        done = ", done at once" if waiter.is_done else ""
        return [f"{name} {what} offsets {waiter.base_offset} to {waiter.last_offset}{done}"]

    def _written(self, command: Command) -> list[str]:
        return _outcomes(self._machine.on_written(Offset(command.number("to")), MonotonicMs(0)))

    def _flushed(self, command: Command) -> list[str]:
        return _outcomes(self._machine.on_flushed(Offset(command.number("to"))))

    def _write_failed(self, command: Command) -> list[str]:
        error = StorageFullError("the disk is full")
        return _outcomes(self._machine.on_write_failed(Offset(command.number("at")), error))

    def _check_epoch(self, command: Command) -> list[str]:
        self._machine.check_epoch(LeaderEpoch(command.number("epoch")))
        return ["that is the epoch"]

    def _resign(self, command: Command) -> list[str]:
        return _outcomes(self._machine.resign(NotLeaderError("another broker leads now")))

    def _state(self) -> str:
        machine = self._machine
        return (
            f"next={machine.next_offset} written={machine.written_offset} "
            f"flushed={machine.flushed_offset} high_watermark={machine.high_watermark}"
        )


def _outcomes(effects: Iterable[Effect]) -> list[str]:
    return [
        f"{waiter.owner} is acknowledged at offset {waiter.base_offset}"
        if waiter.error is None
        else f"{waiter.owner} fails: {waiter.error.name()}, appended={waiter.error.appended.name}"
        for waiter in completed(effects)
    ]
