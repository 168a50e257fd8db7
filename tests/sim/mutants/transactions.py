"""Mutants of transactions in a partition: who may write, what ends one, what readers see."""

from typing import Final

from tests.sim.mutants.mutant import Mutant, mutant

_LOG: Final = "millrace.core.replica.log"
_STATES: Final = f"{_LOG}.producer_states:ProducerStates"
_LEADER: Final = "millrace.core.replica.replication.leader_transactions:LeaderTransactions"
_READER: Final = "millrace.core.client.consumer"
_CLEANING: Final = "millrace.core.replica.compaction.batches"

# fmt: off
MUTANTS: Final[tuple[Mutant, ...]] = (
    mutant("a batch opens a transaction of which its coordinator knows nothing", "P49",
           f"{_STATES}.must_join", "return not is_open and all(", "return False and all(",
           also=mutant("nobody asks whether a partition has joined", "P49",
                       f"{_LEADER}._check_joined",
                       "if is_open and is_confirmed:",
                       "if True:")),
    mutant("readers see open transactions", "P52",
           f"{_LOG}.open_transactions:OpenTransactions.begin",
           "self._first_offsets[producer_id] = first_offset", "pass"),
    mutant("nobody hears what was aborted", "P52",
           "millrace.broker.storage.aborted_index:aborts_of",
           "if not marker.is_commit and first >= 0", "if False"),
    mutant("readers of committed records are served what is not decided", "P52",
           "millrace.core.replica.fetch.session_reader:SessionReader._readable_end",
           "return replica.last_stable_offset if self.read_committed else replica.high_watermark",
           "return replica.high_watermark"),
    mutant("a broker names no aborted transaction", "P52",
           "millrace.broker.rpc.fetch_sessions:FetchStream._plan_partition",
           "if not self._reader.read_committed:", "if True:"),
    mutant("a consumer hands out aborted records", "P10",
           f"{_READER}.aborted:AbortedTransactions.has",
           "return known[0].first_offset <= base_offset", "return False"),
    mutant("a consumer skips what its producer committed before", "P10",
           f"{_READER}.aborted:AbortedTransactions.has",
           "return known[0].first_offset <= base_offset", "return True"),
    mutant("a consumer hands out markers", "P10", f"{_READER}.sessions:_is_passed",
           "return header.is_control or (", "return ("),
    mutant("a reader stays before what it passes by", "P10", f"{_READER}.fetcher:Fetcher._pass_on",
           "partition.take(passed)", "pass"),
    mutant("a marker ends a later transaction than its own", "T1", f"{_STATES}.check_marker",
           "if marker.producer_epoch <= entry.epoch and not is_of_epoch:", "if False:"),
    mutant("a batch joins the transaction before its own", "T2", f"{_STATES}._check_epoch",
           "if entry.first_offset != UNKNOWN_OFFSET:", "if False:",
           # Seeds 1 and 2 of the scenario "T2, T12" find both together, and not this alone.
           also=mutant("the transaction before is over where the first partition knows it", "T2",
                       "millrace.broker.coordinator.marker_delivery:MarkerDelivery._done",
                       "if not telling.owed and not telling.is_dropped:",
                       "if not telling.is_dropped:")),
    mutant("an aborted record replaces the committed one of its key", "T3",
           f"{_CLEANING}:KeyCollector.take",
           "or not (batch.header.is_control or batch.header in self._aborted)",
           "or not batch.header.is_control"),
    mutant("what is not decided is compacted", "T3",
           "millrace.broker.storage.log.cleaner:LogCleaner.clean",
           "state.last_stable_offset,", "state.high_watermark,"),
    mutant("a snapshot forgets which transactions are open", "T4", f"{_STATES}.restore",
           "self.transactions.replace_open(self._open())", "pass"),
    mutant("a marker does not say where its records lie", "T5", f"{_STATES}.check_marker",
           "return WrittenMarker(marker, entry.first_offset, entry.batches[-1].last_offset)",
           "return WrittenMarker(marker)"),
    mutant("what is stable ends before the log's start", "T6",
           "millrace.core.replica.replication.role:Role.last_stable_offset",
           "return max(stable, min(self.log.log_start_offset, self.high_watermark))",
           "return stable"),
)
# fmt: on
