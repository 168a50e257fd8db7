"""Mutants of what clients of Kafka rely on: batches, succession, fetches, and classic groups."""

from typing import Final

from tests.sim.mutants.mutant import Mutant, mutant

_BATCH: Final = "millrace.core.records.kafka_batch"
_CLASSIC: Final = "millrace.core.coordinator.groups.classic:ClassicGroups"
_COORDINATOR: Final = "millrace.core.coordinator.groups.coordinator:GroupCoordinator"
_STEP: Final = "millrace.core.coordinator.groups.classic_step"
_FETCH: Final = "millrace.broker.kafka.fetch_turn:FetchTurn"

# fmt: off
MUTANTS: Final[tuple[Mutant, ...]] = (
    # K1 to K3: what is stored as it was sent.
    mutant("by Kafka's protocol no batch is a successor", "P43",
           "millrace.broker.kafka.produce:_Connection.take",
           "part.is_successor = self._succession.begin(part.place, *part.producer)",
           "self._succession.begin(part.place, *part.producer)"),
    mutant("a batch that was refused holds up no successor", "P43",
           "millrace.broker.kafka.produce:_Connection._send",
           "results.append(self._refused(part, outcome, leaders))",
           "results.append(self._refused(part, outcome, leaders)); "
           "part.producer and self._succession.end(part.place, *part.producer)"),
    mutant("what the leader stamps in Kafka's header is in the producer's checksum", "P66",
           "millrace.core.records.header:producer_checksum",
           "body = body[16:]", "body = body[12:]"),
    mutant("the offset is not stamped in Kafka's header", "P66", f"{_BATCH}:stamp",
           "_BASE_OFFSET.pack_into(kafka, 0, base_offset)", "pass"),
    mutant("the leader's epoch is not stamped in Kafka's header", "P66", f"{_BATCH}:stamp",
           "_LEADER_EPOCH.pack_into(kafka, _LEADER_EPOCH_AT, leader_epoch)", "pass"),
    mutant("Kafka's checksum does not know the leader's time", "P66", f"{_BATCH}:stamp",
           "_CRC.pack_into(kafka, _CRC_AT, crc)", "pass"),
    mutant("a client of Kafka hears of what is written, and not of what is committed", "P16",
           "millrace.broker.kafka.produce:_Connection._on_checked",
           "body.acks, max(body.timeout_ms, 0)", "1, max(body.timeout_ms, 0)"),
    # What Kafka's readers get.
    mutant("readers of Kafka are not told what was aborted", "P52", f"{_FETCH}._plan",
           "return Plan(position, partition, read, aborted=aborted)",
           "return Plan(position, partition, read)"),
    mutant("readers of Kafka get what is not decided", "P52", f"{_FETCH}.__init__",
           "read_committed=request.read_committed", "read_committed=False"),
    # Transactions of Kafka's first protocol.
    mutant("a leader does not ask whether a client of Kafka has taken a partition in", "T14",
           "millrace.core.coordinator.transactions.machine:TransactionCoordinator.handle_join",
           "if missing or missing_groups or not is_open:", "if not is_open:"),
    mutant("an end by Kafka's protocol is one of Millrace's", "T14",
           "millrace.broker.kafka.transactions:TransactionRequests._end",
           "protocol=NOT_BUMPING", "protocol=2"),
    # K11, and the machine of classic groups.
    mutant("members of Kafka's protocol join a group of Millrace's", "P61",
           f"{_CLASSIC}._joinable", "self._speaks_ours(request.group) or", "",
           also=mutant("a classic generation replaces a group with members", "P61",
                       f"{_COORDINATOR}.handle_generation",
                       "records += self.membership.handle_forget(name, now).records", "pass")),
    mutant("members of Millrace's protocol join a group of Kafka's", "P61",
           f"{_COORDINATOR}.handle_heartbeat",
           "if self.classic.members(name):", "if False:"),
    mutant("a classic group begins a generation before all have joined again", "P61",
           f"{_STEP}:Step._complete_if_joined",
           "if not group.was_empty and group.has_all_joined:", "if not group.was_empty:"),
    mutant("a classic group's assignment is told before it is stored", "P59",
           f"{_STEP}:Step.assign",
           "self._store()", "self._store()\n    self.become_stable()"),
    mutant("a heartbeat of a classic member does not prolong its session", "P61",
           f"{_CLASSIC}.heartbeat",
           "begin_session(group, group.members[member_id], now)", "pass"),
    mutant("a classic member that is not heard stays for ever", "P61",
           f"{_STEP}:Step.look_at_times", "if member.ends_at > now:", "if True:"),
    mutant("a new coordinator forgets the members of classic groups", "P59", f"{_CLASSIC}.restart",
           "if generation.members", "if False"),
    mutant("members of a classic group do not hear that others join", "P61",
           f"{_CLASSIC}.heartbeat",
           "return Refused.REBALANCING if group.state is State.PREPARING else None", "return None"),
)
# fmt: on
