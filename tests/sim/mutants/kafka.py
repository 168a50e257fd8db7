"""Mutants of what clients of Kafka rely on: batches, fetches, transactions and groups."""

from typing import Final

from tests.sim.mutants.mutant import Mutant, mutant

_BATCH: Final = "millrace.core.records.kafka_batch"
_GROUPS: Final = "millrace.core.coordinator.groups.coordinator:GroupCoordinator"
_CLASSIC: Final = "millrace.core.coordinator.groups.classic:ClassicGroups"
_STEP: Final = "millrace.core.coordinator.groups.classic_step"
_FETCH: Final = "millrace.broker.kafka.records.fetch_turn:FetchTurn"

# fmt: off
MUTANTS: Final[tuple[Mutant, ...]] = (
    mutant("by Kafka's protocol no batch is a successor", "K1",
           "millrace.broker.kafka.records.succession:Succession.begin",
           "standing = Standing.SUCCESSOR", "standing = Standing.NEXT"),
    # K2 and K3: what is stored as it was sent.
    mutant("what the leader stamps in Kafka's header is in the producer's checksum", "K2",
           "millrace.core.records.header:producer_checksum",
           "body = body[16:]", "body = body[12:]"),
    mutant("the offset is not stamped in Kafka's header", "K2", f"{_BATCH}:stamp",
           "_BASE_OFFSET.pack_into(kafka, 0, base_offset)", "pass"),
    mutant("the leader's epoch is not stamped in Kafka's header", "K2", f"{_BATCH}:stamp",
           "_LEADER_EPOCH.pack_into(kafka, _LEADER_EPOCH_AT, leader_epoch)", "pass"),
    mutant("Kafka's checksum does not know the leader's time", "K3", f"{_BATCH}:stamp",
           "_CRC.pack_into(kafka, _CRC_AT, crc)", "pass"),
    # K4: brokers of earlier releases.
    mutant("a leader takes Kafka's batches beside brokers that do not know them", "K4",
           "millrace.broker.rpc.appends:Appending.check_format",
           "if batch.format == KAFKA_FORMAT and image is not None:", "if False:"),
    mutant("a broker that does not know Kafka's batches comes back to them", "K4",
           "millrace.core.metadata.broker_levels:refusal",
           "if listening and level < KAFKA_BATCHES <= min(broker.level for broker in registered):",
           "if False:"),
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
           "millrace.broker.kafka.coordinators.transactions:TransactionRequests._end",
           "protocol=NOT_BUMPING", "protocol=2"),
    mutant("positions by Kafka's protocol need not be taken in", "T14",
           "millrace.core.coordinator.transactions.machine:TransactionCoordinator.handle_join",
           "if missing or missing_groups or not is_open:", "if missing or not is_open:"),
    mutant("a transaction by Kafka's protocol has positions of who is not a member any more", "P62",
           f"{_CLASSIC}.refusal_of_commit",
           "if generation < 0 and not member_id and not instance_id:", "if staged:"),
    mutant("clients of Kafka are told positions that wait for a transaction", "T10",
           "millrace.broker.kafka.coordinators.positions:PositionRequests._found",
           "if request.message.require_stable:", "if False:"),
    # The machine of classic groups.
    mutant("a classic group begins a generation before all have joined again", "P61",
           f"{_STEP}:Step._complete_if_joined",
           "if not group.was_empty and group.has_all_joined:", "if not group.was_empty:"),
    mutant("a heartbeat of a classic member does not prolong its session", "P61",
           f"{_CLASSIC}.heartbeat",
           "begin_session(group, group.members[member_id], now)", "pass"),
    # Groups of both protocols. What is stored is refused by the other one, too.
    mutant("members of Kafka's protocol join a group of Millrace's", "K11", f"{_CLASSIC}._joinable",
           "if self._speaks_ours(request.group) or not", "if not",
           also=mutant("a group of Millrace's becomes one of Kafka's", "K11",
                       f"{_GROUPS}.handle_generation",
                       "records += self.membership.handle_forget(name, now).records", "pass")),
    mutant("members of Millrace's protocol join a group of Kafka's", "K11",
           f"{_GROUPS}.handle_heartbeat", "if self.classic.joined(name):", "if False:"),
    mutant("a new coordinator forgets the members of classic groups", "P59", f"{_CLASSIC}.restart",
           "if generation.members", "if False"),
)
# fmt: on
