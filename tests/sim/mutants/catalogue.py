"""All mutants, by the rules that they break.

Rules without a mutant: the simulator could not tell it from the product. What tests them instead:

| left out | rule | why there is no mutant | what tests the rule instead |
|---|---|---|---|
| joining without a fetch in this epoch | P22 | a follower that has not fetched has no progress to join with | the mutant of P9 that keeps what was reported in an earlier epoch |
| wall clock for lag | P23 | machines get only monotonic time | the mutant of P23 about a clock that jumped; F19 to F21 here and with real brokers |
| records of another leader count for an eligible replica | P26 | its snapshot would have to be from the moment before a truncation of its own tail | `tests/unit/core/replica/log/test_leader_epochs.py`: `test_records_of_another_leader_do_not_count_however_many_they_are` |
| an unclean election before eligible replicas have shown their logs | P26 | where an unclean election is allowed, records may be lost | `tests/unit/core/controller/partitions/test_elections.py`: `test_no_unclean_election_takes_place_before_the_logs_of_eligible_replicas_are_known` |
| a lease that is believed | P34 | the lease is no promise: the product always allows for two controllers | the mutants of P35, P36 and P38; `tests/sim/scenarios/rules.py`: P34 to P39 |
| blind retry after a time-out | P36 | a repeated write carries its old version, which the store refuses | the mutants of P36; `tests/integration/kubernetes/test_faults.py`: `test_an_answer_that_says_nothing_is_unavailability_and_nothing_is_sent_twice` |
| merge-patch without resourceVersion | P36 | the simulated API server takes no patches, as the store sends none | `tests/integration/kubernetes/test_faults.py`: `test_a_conflict_is_a_refusal_that_looking_again_resolves`; the store writes with PUT alone |
| deletion of what metadata does not name | P39, P70 | no code does that: only tombstones are looked up | `tests/unit/broker/storage/test_log_directory.py`: `test_directories_that_nobody_knows_are_left_alone`; `Invariants.on_deleting` after every deletion |
| no data plane without the store | P40 | only the controller speaks to the store | F42 and F43 of the simulator; `tests/integration/kubernetes/test_faults.py` |
| SQLite's NORMAL | P41 | SQLite itself is not simulated | `tests/integration/coordination/test_sqlite_store.py`: `test_objects_are_flushed_and_the_lease_is_not` |
| six batches in flight | P44 | writers of the simulator wait for each burst, which has fewer batches | `tests/unit/core/client/producer/test_sender.py`: `test_at_most_five_batches_of_a_partition_are_in_flight` |
| a copy takes its name before the replaced segments are removed for good | P57, P69 | power has to go between two calls, and the disk to lose one name and not the other | `tests/unit/broker/storage/test_cleaner.py`: `test_names_that_reach_the_disk_in_any_order_lose_nothing` |
| a reader goes on in the file that took the name of its segment | P57 | threads of the simulator rarely meet in that moment | `tests/integration/storage/test_compaction_threads.py` |
| a stored position is acknowledged before its commit | P60 | the mutant of P55 covers it | the mutant of P55 |
| a stamp in Kafka's header that nobody compares with ours (K2) | P66 | damage there is found by the producer's checksum or by ours, too, but for the stamp itself, which few bit flips of a run hit | `tests/unit/core/records/test_kafka_batch.py`: `test_a_stamp_that_differs_from_our_header_is_damage`, `test_every_byte_of_a_stored_batch_is_covered` |
| a batch of Kafka's with more records than the limit is taken (K4) | P66 | clients of the simulator send small batches | `tests/unit/core/records/test_kafka_batch.py`: `test_more_records_than_a_batch_holds_are_too_many` |
| a commit of an earlier generation of a classic group counts | P62 | members of the simulator stop before they join again, and a commit would have to come late by a whole rebalance | `tests/unit/core/coordinator/groups/test_classic.py`: `test_members_commit_in_their_generation_and_others_while_there_are_none` |
| a member that leaves a classic group stays until the others have waited for it | P61 | it costs the others a rebalance timeout, and nothing else | `tests/unit/core/coordinator/groups/test_classic.py`: `test_members_leave_together_and_each_hears_how_it_went` |
| a leader adds to a transaction of Kafka's protocol that it found open, and asks nobody (T8) | P49 | clients of the simulator take each partition in before they write to it, which the coordinator refuses while a marker is owed there | `tests/unit/core/replica/replication/test_leader_transactions.py`: `test_a_leader_asks_once_whether_a_transaction_that_another_one_began_is_the_open_one` |
| a coordinator prolongs sessions whenever it is late | P61 | no loop of the simulator is late for minutes | `tests/unit/core/coordinator/groups/test_stalls.py`: `test_a_broker_that_is_always_late_ends_sessions_after_about_twice_their_time` |
| a batch begins whose predecessors may be with another leader (K1) | P43 | producers of the simulator wait for the answers of the former leader, as librdkafka's do, and not Java's | `tests/model/test_kafka_succession.py`: `test_a_leader_that_trusts_another_connection_has_batches_out_of_order` |
| what a client of Kafka never wrote counts as old (K1) | P43 | clients of the simulator repeat in order | `tests/model/test_kafka_succession.py`: `test_a_leader_that_does_not_count_takes_what_was_never_written_for_old` |
| a client of Kafka hears of what is written, and not of what is committed | P16 | a leader has to die between both; three seeds with four kills have not met it | `tests/integration/kafka/test_produce.py` |
| a classic member that is not heard stays, or does not hear that others join | P61 | three seeds have met neither: a later rebalance removes such a member | `tests/unit/core/coordinator/groups/test_classic.py`: `test_a_silent_member_is_removed_and_the_others_join_again` |
| a classic assignment is told before it is stored | P59 | the coordinator has to die between both; three seeds have not met it | `tests/unit/core/coordinator/groups/test_classic.py`: `test_all_get_what_the_leader_brings_once_it_is_stored` |
| no digests between replicas | P67 | the product has none, see docs/design/choices.md | the mutants of P66 and P68; `tests/integration/faults`: F28 |
| what is not committed moves to another disk | P76 | as of P57: no closed segment is uncommitted for long | `tests/unit/core/replica/test_tiers.py`: `test_what_is_not_committed_stays_at_home` |
| a log that is cut within its tier keeps the tier's end | P76 | a cut has to reach back into a segment that was committed | `tests/unit/broker/storage/test_tiering.py`: `test_a_log_that_is_cut_goes_on` |
| a coordinator that is not the leader of the id's partition | P46 | as of P55: it is the same runtime | the mutants of P55; `tests/unit/broker/coordinator/test_transactions.py` |
| a marker that is refused counts as written | T1 | as long as T2 holds, what is refused by its epoch is there already | `tests/unit/core/replica/replication/test_leader_transactions.py`: `test_a_refused_marker_does_not_count_as_delivered` |
| a coordinator that was replaced still ends transactions | T1 | it tells committed decisions alone, and so does its successor (T9) | `tests/unit/core/replica/log/test_producers_in_transactions.py`: `test_a_marker_of_an_earlier_coordinator_is_fenced` |
| markers go in the first pass after the one that found them | T3 | a replica would have to have the records of a transaction, and to lack its marker for a whole pass | `tests/unit/broker/storage/test_cleaning_transactions.py`: `test_a_marker_outlives_its_records_and_its_horizon`, `test_markers_stay_until_every_replica_has_compacted_what_they_end` |
| a topic that is back joins before it has the marker that is owed to it | T8 | the id has to go on within the moment in which the topic is back; one seed in some catches it | `tests/unit/core/coordinator/transactions/test_machine.py`: `test_a_topic_that_is_back_gets_its_marker_before_the_next_transaction_of_the_id` |
| the last marker of a producer goes | T3 | a late batch would have to meet a replica that has copied the cleaned log | `tests/unit/broker/storage/test_cleaning_transactions.py`: `test_a_replica_that_copies_a_cleaned_log_knows_the_same_producers` |
| a producer with an open transaction is forgotten for a new one | T4 | no partition of the simulator has 20,000 producers | `tests/unit/core/replica/log/test_producers_in_transactions.py`: `test_a_producer_with_an_open_transaction_is_never_evicted` |
| a producer with an open transaction is forgotten by its age | T4 | no transaction of the simulator is open for a day | `tests/unit/core/replica/log/test_producers_in_transactions.py`: `test_a_producer_with_an_open_transaction_does_not_expire` |
| a coordinator's yes counts for the producer's next transaction, too | P49 | each transaction of the simulator has an epoch of its own (P48), which refuses what is late | `tests/unit/core/replica/replication/test_leader_transactions.py`: `test_a_guard_is_void_after_other_data_of_the_producer` |
| positions are stored although the transaction has ended meanwhile | P56 | the next positions of the producer replace them | `tests/unit/broker/coordinator/test_staged_commits.py`: `test_positions_are_not_stored_after_their_marker_has_passed` |
| a transaction has ended before its marker is committed | P52 | a leader would have to die between two fetches of its followers | `tests/unit/core/replica/log/test_open_transactions.py`: `test_an_end_counts_once_its_marker_is_below_the_high_watermark` |
| plain data in an open transaction | P51 | no client of the simulator sends any | `tests/unit/core/replica/log/test_producers_in_transactions.py`: `test_data_outside_of_an_open_transaction_is_refused` |
| after an abort a partition without a committed position goes on where it was | T18 | copies of the simulator have a position before a transaction of theirs is aborted | `tests/integration/client/test_transactions_with_consumers.py`: `test_after_an_abort_the_consumer_is_at_the_first_record_again` |
| what was read for a transaction that cannot begin is read no more | T18 | a begin would have to fail after a member has handed out records for it; one seed in some tens does that | `tests/integration/client/test_transactions_with_consumers.py`: `test_what_was_read_for_a_transaction_that_cannot_begin_is_read_again` |
| hanging transactions that nobody shows | P54 | what is shown to people is not simulated | `tests/unit/broker/replica/test_partition_transactions.py`: `test_metrics_show_what_readers_wait_for_and_that_it_hangs`; `tests/integration/test_transactions.py`: `test_an_open_transaction_of_one_partition_is_listed_and_ended_by_hand` |
| an older pending position that replaces a later commit | T10 | groups of the simulator commit either with transactions or without | `tests/model/test_pending_positions.py` |
| a partition count that changes | T11 | no code does that: clients cannot alter the topic | `tests/unit/core/controller/test_positions_topic.py`: `test_transactions_have_a_topic_of_their_own_that_grows_likewise` |
| an end that contradicts the one before | P48 | no client of the simulator does that | `tests/unit/core/coordinator/transactions/test_machine.py`: `test_an_end_that_contradicts_its_own_decision_is_refused` |
| markers are told of decisions that may be lost | T9 | a client whose end is lost asks for the same end again | `tests/unit/core/coordinator/transactions/test_machine.py`: `test_only_committed_decisions_are_told` |
| a marker's answer that completes a later transaction | T9 | a coordinator tells one decision of an id at a time | `tests/unit/core/coordinator/transactions/test_machine.py`: `test_a_late_answer_about_markers_completes_no_later_transaction` |
| the epoch of a fence is given to its producer | T13 | the next `init` would take one epoch more, which costs epochs alone | `tests/unit/core/coordinator/transactions/test_machine.py`: `test_nobody_writes_with_the_epoch_of_a_fence` |
| the last epoch writes, and no epoch is left to fence it | T13 | no broker of the simulator refuses an epoch beyond a largest one of 2 | `tests/unit/core/coordinator/transactions/test_machine.py`: `test_the_last_epoch_is_kept_for_the_marker` |
| an id that has expired is renewed | T13 | ids of the simulator do not live for a week | `tests/unit/core/coordinator/transactions/test_machine.py`: `test_an_id_that_has_expired_is_fenced_and_never_renewed_in_silence` |
| transactions beside brokers that do not know them | T16 | all brokers of the simulator are of this release | `tests/unit/core/controller/test_broker_levels.py`: `test_transactions_wait_for_the_last_upgrade_and_no_earlier_broker_comes_back`; `tests/integration/test_transactions.py`: `test_transactions_begin_when_the_last_broker_is_upgraded_and_none_goes_back` |
| ids without a namespace | T15 | ids of the simulator differ anyhow | `tests/unit/core/coordinator/transactions/test_transaction.py`: `test_an_id_is_in_a_namespace` |
| who calls is not asked, or not checked | G1, G2, G3, G4, G5, G6, G7, G9, G10 | nobody in the simulator shows a certificate, or a token of another cluster | `tests/unit/core/guard`, `tests/unit/broker/guard`, `tests/unit/operator/test_certificates.py` and `test_security.py`; `tests/integration/kubernetes/test_going_to_tls.py`, `tests/integration/test_broker_certificates.py`, `tests/integration/kubernetes/test_access.py` and `test_guard.py` |
| what a client of Kafka is told, or may call things | K5, K6, K7, K8, K9, K10 | clients of the simulator know what is served, have one namespace, and tokens without an end | `tests/unit/broker/kafka`, `tests/integration/kafka` |
| topic name instead of id | P70 | logs, requests and metadata are kept by id; a name is looked up once | F70 here and with real brokers |
"""  # noqa: E501

from typing import Final

from tests.sim.mutants import (
    compaction,
    drpc,
    groups,
    guard,
    kafka,
    metadata,
    quotas,
    replication,
    shared_transactions,
    shells,
    storage,
    tiers,
    transaction_clients,
    transaction_coordinators,
    transactions,
)
from tests.sim.mutants.mutant import Mutant

MUTANTS: Final[tuple[Mutant, ...]] = tuple(
    sorted(
        (
            *replication.MUTANTS,
            *metadata.MUTANTS,
            *storage.MUTANTS,
            *shells.MUTANTS,
            *groups.MUTANTS,
            *kafka.MUTANTS,
            *quotas.MUTANTS,
            *compaction.MUTANTS,
            *tiers.MUTANTS,
            *transactions.MUTANTS,
            *transaction_coordinators.MUTANTS,
            *transaction_clients.MUTANTS,
            *shared_transactions.MUTANTS,
            *drpc.MUTANTS,
            *guard.MUTANTS,
        ),
        key=lambda mutant: (mutant.rule[0], int(mutant.rule[1:])),
    )
)
