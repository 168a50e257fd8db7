"""Mutants of the controller: elections, eligible replicas, registration, lease, reassignment,
deleted topics, decisions that last.
"""

from typing import Final

from tests.sim.mutants.mutant import Mutant, mutant
from tests.sim.mutants.shells import NEWS_IS_LATE

_CORE: Final = "millrace.core"
_BROKERS: Final = f"{_CORE}.controller.brokers"
_PARTITIONS: Final = f"{_CORE}.controller.partitions"
_ELECTIONS: Final = f"{_PARTITIONS}.elections"
_DELETED: Final = f"{_CORE}.controller.deleted_topics"
_CLOSING: Final = f"{_PARTITIONS}.closing"
_CHANGES: Final = f"{_PARTITIONS}.isr_changes"
_MEMBERSHIP: Final = f"{_BROKERS}.membership:Membership"
_CONTROLLER: Final = f"{_CORE}.controller.controller:Controller"

# fmt: off
ISR_CHANGES: Final[tuple[Mutant, ...]] = (
    mutant("a proposal on an older state is applied", "P19", f"{_CHANGES}:_check_epochs",
           "if change.partition_epoch < state.partition_epoch:", "if False:"),
    mutant("a proposal of an older leader is applied", "P19", f"{_CHANGES}:altered",
           "_check_epochs(key, state, change)", "", "_check_leader(key, state, rules, change)", ""),
    mutant("a proposal may name who is fenced, or an earlier life", "P19",
           f"{_CHANGES}:_check_eligible",
           "if not (rules.is_live(life) if is_member else rules.can_join(life)):", "if False:"),
)
# fmt: on

# fmt: off
ELECTIONS: Final[tuple[Mutant, ...]] = (
    mutant("the leader epoch stays when the leader changes", "P25",
           f"{_CORE}.metadata.model:PartitionState.successor",
           "leader_epoch = LeaderEpoch(self.leader_epoch + moves)",
           "leader_epoch = self.leader_epoch"),
    mutant("any live replica may be elected", "P25", f"{_ELECTIONS}:_in_sync",
           "return tuple(life for life in partition.isr if rules.is_live(life))",
           "lives = map(rules.life_of, partition.replicas)\n"
           "    return tuple(life for life in lives if life is not None and rules.is_live(life))"),
    mutant("who is eligible stays so when enough are in sync without it", "P26",
           f"{_ELECTIONS}:elr_after",
           "if len(isr) >= rules.min_isr(partition):", "if False:"),
    mutant("nobody stays eligible who leaves the in-sync replicas", "P26",
           f"{_ELECTIONS}:elr_after",
           "elif entry.broker_id not in in_sync:", "elif False:"),
    mutant("what is committed is not kept for eligible replicas", "P26", f"{_CHANGES}:altered",
           "committed_end=change.committed_end,", ""),
    mutant("an eligible replica need not show its log", "P26", f"{_ELECTIONS}:_proven",
           "if not partition.is_counted_on:", "if True:"),
    mutant("an eligible replica of whose log nothing is known has shown enough", "P26",
           f"{_ELECTIONS}:_proven",
           "if shown.get(life, False)", "if shown.get(life, True)"),
    mutant("an eligible replica must have one record more than it had", "P26",
           f"{_PARTITIONS}.unclean_recovery:LogEnds._look_at_eligible",
           "log_end.committed_offset >= partition.committed_end.end_offset",
           "log_end.committed_offset > partition.committed_end.end_offset"),
    mutant("who may have lost records stays eligible", "P27", f"{_ELECTIONS}:restarted",
           "keeps = restart is Restart.CLEAN or (restart is Restart.UNCLEAN and is_flushed)",
           "keeps = True"),
    mutant("a broker with another disk is taken for the same", "P27",
           f"{_BROKERS}.registration:kind_of",
           "if not _has_its_directories(known, request):", "if False:",
           "if request.directory_epoch is None and known.directory_epoch:", "if False:"),
    mutant("a broker that crashed is taken for one that was shut down", "P27",
           f"{_BROKERS}.registration:kind_of",
           "is_marked = request.previous_broker_epoch == known.broker_epoch", "is_marked = True"),
    mutant("a broker with another disk stays last known", "P27", f"{_ELECTIONS}:restarted",
           "if restart is not Restart.LOST_DISK or life.broker_id not in after.last_known_elr:",
           "if True:"),
    mutant("an older copy of a log directory is taken for the newest", "P28",
           f"{_BROKERS}.registration:is_older_copy",
           "and epoch < known.directory_epoch", "and False"),
    mutant("a broker that is reluctant to lead does not come in sync", "P25",
           f"{_ELECTIONS}:Rules.can_join",
           "return life in self._able", "return self.can_lead(life)"),
    mutant("the earlier life stays in sync until it is missed", "P37", f"{_MEMBERSHIP}.register",
           "leadership.restarted(self._decided, self._config, life, restart)", "{}"),
    mutant(
        # A replica leaves the ISR with its life, by P19 and the two phases of a registration. So
        # this mutant is about the entries that a leader asks for.
        "entries of earlier lives count",
        "P37",
        f"{_ELECTIONS}:Rules._able",
        "broker.life\n",
        "BrokerLife(broker.broker_id, type(broker.broker_epoch)(epoch))\n",
        "if not broker.is_fenced and not broker.is_draining",
        "if not broker.is_fenced and not broker.is_draining\n"
        "        for epoch in range(broker.broker_epoch + 1)",
    ),
    mutant("who is fenced goes on leading", "P29", f"{_ELECTIONS}:Rules._able",
           "if not broker.is_fenced and not broker.is_draining", "if not broker.is_draining"),
    mutant("a broker may lead before it knows that it is registered", "P28",
           f"{_MEMBERSHIP}.heartbeat",
           "elif broker.is_fenced and request.metadata_epoch >= self._shown_since[life.broker_id]:",
           "elif broker.is_fenced:", also=NEWS_IS_LATE),
    mutant("unclean elections need no permission", "P30", f"{_ELECTIONS}:Rules.of",
           "may_elect_unclean = cluster.unclean_leader_election_enable",
           "may_elect_unclean = True"),
    mutant("an unclean election is not on record", "P30", f"{_ELECTIONS}:unclean",
           ", is_unclean=True", ""),
    mutant("the replica whose log is shortest is elected", "P31",
           f"{_PARTITIONS}.unclean_recovery:best_replica",
           "best = max(", "best = min("),
    mutant("the first replica that is back is elected", "P31",
           f"{_PARTITIONS}.unclean_recovery:LogEnds.decide",
           "if not missing and reports.keys() >= {*partition.replicas}:",
           "if lives:\n"
           "            recovery.elected[key] = elections.unclean(partition, lives[0])\n"
           "        if False:"),
    mutant("a replica is as good as its broker's earlier life said", "P31",
           f"{_PARTITIONS}.unclean_recovery:LogEnds.decide",
           "if self.of(key, life) is None", "if life.broker_id not in reports"),
    mutant("the best replica is not waited for while its broker is dead", "P31",
           f"{_PARTITIONS}.unclean_recovery:best_replica",
           "map(log_end_of, partition.replicas)", "(log_end_of(each.broker_id) for each in lives)"),
    mutant("all replicas are waited for at one time", "P31",
           f"{_PARTITIONS}.unclean_recovery:LogEnds.decide",
           "reports.keys() >= {*partition.replicas}", "len(lives) == len(partition.replicas)"),
)
# fmt: on

# fmt: off
SHUTDOWN_AND_MOVES: Final[tuple[Mutant, ...]] = (
    mutant("a broker may stop at once", "P32", f"{_BROKERS}.shutdown:Shutdowns.may_stop",
           "if now - self._since[broker_id] >= self._config.controlled_shutdown_wait_ms:",
           "if True:"),
    mutant("who stops leaves the in-sync replicas though too few remain", "P32",
           f"{_BROKERS}.shutdown:left",
           "if len(others) == len(partition.isr) or len(others) < rules.min_isr(partition):",
           "if len(others) == len(partition.isr):"),
    mutant("old replicas go before the new ones are there", "P33",
           f"{_PARTITIONS}.reassignment:completed",
           "if not (have_joined and suffices):", "if not in_sync:"),
)
# fmt: on

# fmt: off
CONTROLLERS: Final[tuple[Mutant, ...]] = (
    mutant("a topic that is asked for again with its id is refused", "P36",
           f"{_CORE}.controller.topic_changes:created",
           "if there is not None and there.name == name:", "if False:"),
    mutant("a controller goes on from a store that was set back", "P39",
           f"{_CONTROLLER}._refuse_set_back",
           "self.seen.refuse_older({**self._found, CLUSTER_KEY: cluster})", "return"),
    mutant("each controller takes the epoch of the one before", "P35",
           f"{_CONTROLLER}._claim_cluster",
           "ControllerEpoch(cluster.controller_epoch + 1)",
           "ControllerEpoch(max(cluster.controller_epoch, 1))"),
    mutant("a write that was refused, or has no answer, counts as done", "P36",
           f"{_CONTROLLER}.on_write_refused",
           "return [] if self.phase is Phase.RESIGNED else [ReadObject(key)]",
           "return self.on_object_written(key)"),
    mutant("what another controller wrote counts as the own write", "P36",
           f"{_CONTROLLER}.on_object_read",
           "if stored == in_flight:",
           "if stored is not None and stored.version >= in_flight.version:"),
    mutant("a controller goes on when its lease has run out", "P38",
           f"{_CORE}.controller.lease:LeaseElection.is_held",
           "return self._held_until is not None and now < self._held_until",
           "return self._held_until is not None"),
    mutant("a broker follows a controller that was replaced", "P39",
           f"{_CORE}.metadata.objects.cache:MetadataCache.on_full_state",
           "self._refuse_stale(objects[CLUSTER_KEY].controller_epoch)", "",
           "self.seen.refuse_older(objects)", "",
           also=mutant(
               "a controller leads on brokers that have seen more",
               "P39",
               f"{_CONTROLLER}.on_seen_elsewhere",
               "seen.refuse_older(self.objects)",
               "",
           )),
)
# fmt: on

# fmt: off
DELETED_TOPICS: Final[tuple[Mutant, ...]] = (
    mutant("no replica stays eligible when its topic is deleted", "P75",
           f"{_CLOSING}:_without_leader",
           "elr=tuple(members[replica] for replica in partition.replicas if replica in members),",
           ""),
    mutant("a deleted topic keeps the states of its partitions", "P75", f"{_CLOSING}:closed",
           "return replace(topic, partitions=tuple(map(_without_leader, topic.partitions)))",
           "return topic"),
    mutant("a broker that starts keeps its earlier life in deleted topics", "P75",
           f"{_MEMBERSHIP}.register",
           "closed, brokers = self._decided.deleted.values(), self._decided.cluster.brokers",
           "closed, brokers = (), self._decided.cluster.brokers"),
    mutant("a broker that crashed has all records of deleted topics", "P75",
           f"{_CLOSING}:restarted",
           "elections.restarted(state, rules, life, restart)",
           "elections.restarted(state, rules, life, Restart.CLEAN)"),
    mutant("brokers delete the files of a topic that may be brought back", "P75",
           f"{_CORE}.metadata.image:MetadataImage.deletions_of",
           "for topic_id, broker_ids in shard.deletions.items()",
           "for topic_id, broker_ids in (\n"
           "                *shard.deletions.items(),\n"
           "                *((each, (broker_id,)) for each in shard.deleted),\n"
           "            )"),
    mutant("a deleted topic is gone before its time", "P75",
           f"{_DELETED}:KeptTimes.overdue",
           "if deleted[topic_id].kept_ms + unstored_ms >= retention_ms", ""),
)
# fmt: on

# fmt: off
LASTING: Final[tuple[Mutant, ...]] = (
    mutant("only living brokers count for the usual number of replicas", "P77",
           f"{_CORE}.controller.topic_changes:brokers_for_replicas",
           "for broker in cluster.brokers.values()",
           "for broker in cluster.brokers.values() if broker.is_there"),
    mutant("positions stay on the disks that there were at first", "P77",
           f"{_CORE}.controller.internal_topics:raised",
           "if topic is not None", "if False"),
    mutant("a cluster does not wait for its first brokers", "P77",
           f"{_CORE}.controller.topic_changes:has_begun",
           "return cluster.has_begun or", "return True or"),
)
# fmt: on

MUTANTS: Final = (
    *ISR_CHANGES,
    *ELECTIONS,
    *SHUTDOWN_AND_MOVES,
    *CONTROLLERS,
    *DELETED_TOPICS,
    *LASTING,
)
