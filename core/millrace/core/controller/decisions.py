"""What the controller decides: requests, heartbeats and the clock become changes of its metadata.

Each decision names the objects that its answer rests on; the answer is sent when these are stored
(see `controller`). Parts with a state have their own modules: `membership`, `topic_requests`,
`reassigning`, `unclean_recovery`. The rest are functions from one state to the next: `elections`,
`isr_changes`, `reassignment`, `renewal`, `internal_topics`, `quota_changes`, and `balance`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from millrace.core.controller import (
    internal_topics,
    quota_changes,
    topic_changes,
)
from millrace.core.controller.brokers.membership import Membership, led_unwillingly
from millrace.core.controller.decided.decided_metadata import DecidedMetadata
from millrace.core.controller.decided.decision import Decision, GrantEpoch, decide_each
from millrace.core.controller.effects import (
    AskLogEnds,
    ElectedUncleanly,
    LackingCommitted,
    OlderCopyAccepted,
    TopicGone,
    TopicRaised,
)
from millrace.core.controller.lease import Deposed
from millrace.core.controller.partitions import (
    isr_changes,
    leadership,
    reassignment,
    renewal,
)
from millrace.core.controller.partitions.leadership import Changes, RulesByTopic
from millrace.core.controller.partitions.offline_replicas import OfflineReplicas
from millrace.core.controller.partitions.reassigning import Reassigning
from millrace.core.controller.partitions.unclean_recovery import LogEnds
from millrace.core.controller.topic_requests import TopicRequests, key_of
from millrace.core.errors import (
    InvalidReplicaAssignmentError,
    MillraceError,
)
from millrace.core.ids import EpochEnd, MonotonicMs, ProducerId, TopicPartition
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.model import (
    CLUSTER_KEY,
    PRODUCER_ID_BLOCK,
    SHARD_KEYS,
    BrokerLife,
    PartitionState,
    shard_of,
)
from millrace.core.metadata.requests import (
    AllocateProducerIds,
    AlterPartition,
    AlterPartitions,
    AlterTopics,
    ConfirmDeletions,
    CreatePositionsTopic,
    CreateTopics,
    CreateTransactionsTopic,
    DeleteQuotas,
    DeleteTopics,
    DrainBroker,
    ElectLeaders,
    Heartbeat,
    HeartbeatAnswer,
    LogEnd,
    PurgeTopics,
    ReassignPartitions,
    RegisterBroker,
    RenewReplicas,
    ReplicaRenewal,
    Request,
    SetQuotas,
    UndeleteTopics,
    UnregisterBroker,
)
from millrace.core.quotas.quota import Quota
from millrace.core.quotas.shares import BucketShare, QuotaShares

LEADER_BALANCE_INTERVAL_MS: Final = 500
"""Pause between two looks for leaderships to move: back to preferred leaders, and away from brokers
that lead more than their share."""

_T = TypeVar("_T")
_Report = ElectedUncleanly | OlderCopyAccepted | TopicGone | TopicRaised


class Decisions:
    """Decides every request by the part that it is about.

    Args:
        decided: changed by every decision.
        image: of what is stored.
        deposed: the broker of the controller before, if it is known.
    """

    def __init__(
        self,
        config: ClusterConfig,
        decided: DecidedMetadata,
        image: MetadataImage,
        deposed: Deposed | None = None,
    ) -> None:
        self._config = config
        self._deposed = deposed
        self._decided = decided
        self._stored_epoch = image.epoch
        self._topics = TopicRequests(config, decided)
        self._membership = Membership(config, decided, image)
        self._log_ends = LogEnds(config)
        self._offline = OfflineReplicas()
        self._quota_shares = QuotaShares()
        self._raised: list[TopicRaised] = []
        self._balanced_at: MonotonicMs | None = None
        self._settled_at = -1  # Count of changes when nothing was left to elect or even out.
        self._recovered_at = (-1, -1, -1)  # `_known_of_log_ends` at the last look at them.
        self._handlers: dict[type, Callable[..., Decision]] = {
            CreateTopics: self._topics.create,
            CreatePositionsTopic: self._topics.create_internal_topic,
            CreateTransactionsTopic: self._topics.create_internal_topic,
            AlterTopics: self._topics.alter,
            DeleteTopics: self._topics.delete,
            UndeleteTopics: self._topics.undelete,
            PurgeTopics: self._topics.purge,
            ConfirmDeletions: self._topics.confirm_deletions,
            AllocateProducerIds: self._allocate_producer_ids,
            RegisterBroker: self._membership.register,
            DrainBroker: self._membership.drain,
            UnregisterBroker: self._membership.unregister,
            AlterPartitions: self._alter_partitions,
            RenewReplicas: self._renew_replicas,
            ReassignPartitions: self._reassign_partitions,
            ElectLeaders: self._elect_leaders,
            SetQuotas: self._set_quotas,
            DeleteQuotas: self._delete_quotas,
        }

    def set_initial_brokers(self, brokers: int) -> None:
        """Replace `cluster.initial_brokers` (P77). Other holders of the settings do not use it."""
        self._config = self._topics.config = replace(self._config, initial_brokers=brokers)

    def decide(self, request: Request, now: MonotonicMs) -> Decision:
        """Decide on a request, and change the metadata accordingly."""
        if isinstance(request, Heartbeat):
            decision = self._heartbeat(request, now)
        else:
            decision = self._handlers[type(request)](request)
            self._topics.let_deleted_topics_give_way()
        self._remember_the_beginning()
        return decision

    def grant(self, grant: GrantEpoch) -> Decision:
        """Go on with a registration whose first phase is stored (P37)."""
        return self._membership.grant_epoch(grant)

    def on_stored(self, image: MetadataImage) -> None:
        """Take note of what is stored now."""
        self._stored_epoch = image.epoch
        self._membership.on_stored(image)
        for topic_id in list(self._decided.freed):
            shard, deleted = image.shards[shard_of(topic_id)], self._decided.deleted.get(topic_id)
            # It may have been brought back and deleted again, since an earlier deletion was stored.
            is_stored = (
                topic_id in shard.deletions or not self._decided.is_gone(topic_id)
                if deleted is None
                else shard.deleted.get(topic_id) == deleted
            )
            if is_stored or self._decided.topic(topic_id) is not None:
                del self._decided.freed[topic_id]

    def on_connection_broken(self, life: BrokerLife, now: MonotonicMs) -> None:
        """A broker's connection broke: its session ends soon."""
        self._membership.on_connection_broken(life, now)

    def take_reports(self) -> list[tuple[str, _Report]]:
        """Return the reports to make once the object under the key is stored; each report once."""
        elected, self._decided.elected_uncleanly = self._decided.elected_uncleanly, {}
        topics: list[TopicGone | TopicRaised] = [*self._topics.gone, *self._raised]
        self._topics.gone, self._raised = [], []
        accepted, self._membership.accepted = self._membership.accepted, []
        reports: list[tuple[str, _Report]] = [
            *((SHARD_KEYS[shard_of(topic.topic_id)], topic) for topic in topics),
            *((CLUSTER_KEY, OlderCopyAccepted(*copy)) for copy in accepted),
        ]
        for key, state in elected.items():
            topic, life = self._decided.topic(key.topic_id), state.leader_life
            assert life is not None
            if topic is not None:
                log_end = self._log_ends.of(key, life)
                report = ElectedUncleanly(topic.name, key, life, state.leader_epoch, log_end)
                reports.append((key_of(topic), report))
        return reports

    # The clock.

    def pause_ms(self, now: MonotonicMs) -> int:
        """Return when to tick next: at once for the first time, at a session's end, or as usual."""
        if self._balanced_at is None:
            return 0
        usual_ms = self._config.controller_tick_ms
        ends_at = self._membership.next_end()
        return usual_ms if ends_at is None else max(0, min(usual_ms, ends_at - now))

    def tick(self, now: MonotonicMs) -> list[AskLogEnds | LackingCommitted]:
        """Do what is due; return brokers to ask for log ends, and logs that lack records."""
        if self._balanced_at is None:
            self._balanced_at = now
            self._membership.expect_all(now, self._deposed)
            # Finish what a predecessor left half done: an entry that does not count (P37).
            every = leadership.all_partitions(self._decided)
            self._decided.put_partitions(leadership.elected(self._decided, self._config, every))
        self._membership.tick(now)
        self._topics.tick(now)
        touched = self._complete_reassignments()
        if now - self._balanced_at < LEADER_BALANCE_INTERVAL_MS:
            is_news = self._known_of_log_ends() != self._recovered_at
            return self._recover(touched) if is_news and self._decided.unproven else []
        self._balanced_at = now
        self._offline.forget_past(self._decided)
        self._membership.forget_holders()
        return self._look_for_leaders(touched)

    def _complete_reassignments(self) -> set[TopicPartition]:
        rules = RulesByTopic(self._decided, self._config)
        changes: Changes = {}
        for key in self._decided.reassigning:
            state = self._decided.partition(key)
            assert state is not None
            after = reassignment.completed(state, rules[key.topic_id])
            if after is not state:
                changes[key] = after
        self._decided.put_partitions(changes)
        return {*changes}

    def _put_untouched(self, changes: Changes, touched: set[TopicPartition]) -> None:
        new = {key: after for key, after in changes.items() if key not in touched}
        touched.update(new)
        self._decided.put_partitions(new)

    def _known_of_log_ends(self) -> tuple[int, int, int]:
        """Return counters that grow with everything on which the choice of a leader by logs
        depends.

        Stored images count, too: a broker does not answer a question about metadata it lacks.
        """
        return self._decided.changes, self._stored_epoch, self._log_ends.reports

    def _recover(self, touched: set[TopicPartition]) -> list[AskLogEnds | LackingCommitted]:
        """Elect leaders by the logs that are known; ask for the others."""
        self._recovered_at = self._known_of_log_ends()
        recovery = self._log_ends.decide(self._decided, self._offline)
        self._put_untouched(recovery.elected, touched)
        shown = {key: shown for key, shown in recovery.shown.items() if key not in touched}
        self._put_untouched(leadership.elected(self._decided, self._config, shown, shown), touched)
        return [
            *(AskLogEnds(life, tuple(keys)) for life, keys in recovery.asks.items()),
            *(self._lacking(life, ends) for life, ends in recovery.lacking.items()),
        ]

    def _lacking(
        self, life: BrokerLife, found: Iterable[tuple[LogEnd, EpochEnd]]
    ) -> LackingCommitted:
        partitions = []
        for log_end, committed_end in found:
            topic = self._decided.topic(log_end.topic_partition.topic_id)
            assert topic is not None
            partitions.append((topic.name, log_end, committed_end))
        return LackingCommitted(life, tuple(partitions))

    def _look_for_leaders(
        self, touched: set[TopicPartition]
    ) -> list[AskLogEnds | LackingCommitted]:
        """Elect where there is no leader or a wrong one; even out the rest. One step for each."""
        # Nothing changed since the last pass, so there is nothing to do.
        is_settled = self._settled_at == self._decided.changes
        if not is_settled:
            badly_led = [*self._decided.leaderless, *led_unwillingly(self._decided)]
            changes = leadership.elected(self._decided, self._config, badly_led)
            self._put_untouched(changes, touched)
        effects = self._recover(touched)
        if not is_settled:
            self._put_untouched(leadership.balanced(self._decided, self._config), touched)
            touched.update(self._raise_internal_topics(touched))
        # Those that were touched have had their one step, and may need another.
        self._settled_at = -1 if touched else self._decided.changes
        return effects

    def _raise_internal_topics(self, touched: set[TopicPartition]) -> list[TopicPartition]:
        """Add replicas that internal topics should have (P77); what is refused is tried again."""
        asked = [
            change
            for change in internal_topics.raised(self._decided, self._config)
            if TopicPartition(change.topic_id, change.partition) not in touched
        ]
        if not asked:
            return []
        answers = self._reassign_partitions(ReassignPartitions(reassignments=asked)).result
        assert isinstance(answers, list)
        begun = [
            TopicPartition(question.topic_id, question.partition)
            for question, answer in zip(asked, answers, strict=True)
            if not isinstance(answer, MillraceError)
        ]
        for topic_id, partitions in Counter(key.topic_id for key in begun).items():
            topic = self._decided.topic(topic_id)
            assert topic is not None
            self._raised.append(TopicRaised(topic.name, topic_id, partitions))
        return begun

    def _remember_the_beginning(self) -> None:
        """Store that the first brokers have registered: a greater number no longer counts (P77).

        A broker that registers may be the last one of them, or the number became smaller.
        """
        cluster = self._decided.cluster
        if not cluster.has_begun and topic_changes.has_begun(cluster, self._config):
            self._decided.cluster = replace(cluster, has_begun=True)

    def _heartbeat(self, request: Heartbeat, now: MonotonicMs) -> Decision:
        decision = self._membership.heartbeat(request, now)
        if not decision.is_refusal:
            self._log_ends.on_report(self._decided, request.life, request.log_ends)
            if request.offline:
                self._give_up(request)
            if request.quota_uses or self._quota_shares.has_demand:
                answer = decision.result
                assert isinstance(answer, HeartbeatAnswer)
                decision.result = replace(answer, quota_shares=self._divide_quotas(request))
        return decision

    def _divide_quotas(self, request: Heartbeat) -> Sequence[BucketShare]:
        """Take a broker's report, and return its shares of quotas."""
        cluster = self._decided.cluster
        living = [broker.broker_id for broker in cluster.brokers.values() if not broker.is_fenced]
        broker_id = request.life.broker_id
        self._quota_shares.keep_only({*living, broker_id})
        self._quota_shares.on_report(broker_id, request.quota_uses)
        return self._quota_shares.shares_of(broker_id, cluster.quotas, living)

    def _give_up(self, request: Heartbeat) -> None:
        """Do without a broker's damaged replicas; it reports them until the metadata shows that."""
        keys = self._offline.on_report(
            self._decided, request.life, request.offline, request.metadata_epoch
        )
        changes = leadership.given_up(self._decided, self._config, self._offline, keys)
        self._decided.put_partitions(changes)

    def _allocate_producer_ids(self, _: AllocateProducerIds) -> Decision:
        cluster = self._decided.cluster
        next_block = ProducerId(cluster.next_producer_id + PRODUCER_ID_BLOCK)
        self._decided.cluster = replace(cluster, next_producer_id=next_block)
        return Decision(range(cluster.next_producer_id, next_block), [CLUSTER_KEY])

    # Quotas.

    def _set_quotas(self, request: SetQuotas) -> Decision:

        def put(asked: Quota) -> Quota:
            cluster = self._decided.cluster
            quota = quota_changes.checked_new(cluster.quotas, asked, self._config.quotas_max)
            if not request.validate_only and cluster.quotas.get(quota.name) != quota:
                quotas = {**cluster.quotas, quota.name: quota}
                self._decided.cluster = replace(cluster, quotas=quotas)
            return quota

        return decide_each(put, request.quotas, lambda _: CLUSTER_KEY)

    def _delete_quotas(self, request: DeleteQuotas) -> Decision:

        def delete(name: str) -> Quota:
            cluster = self._decided.cluster
            quota = quota_changes.found(cluster.quotas, name)
            if not request.validate_only:
                quotas = {key: known for key, known in cluster.quotas.items() if key != name}
                self._decided.cluster = replace(cluster, quotas=quotas)
            return quota

        return decide_each(delete, request.names, lambda _: CLUSTER_KEY)

    # Partitions.

    def _alter_partitions(self, request: AlterPartitions) -> Decision:
        changes: Changes = {}
        rules = RulesByTopic(self._decided, self._config)

        def alter(change: AlterPartition) -> PartitionState:
            key = TopicPartition(change.topic_id, change.partition)
            if key in changes:
                raise InvalidReplicaAssignmentError(
                    "it is named twice in one request", topic_partition=key
                )
            changes[key] = isr_changes.altered(
                self._decided, rules.find(key.topic_id), change, self._offline.of(key)
            )
            return changes[key]

        return self._put_each(alter, request.changes, changes)

    def _renew_replicas(self, request: RenewReplicas) -> Decision:
        error = self._membership.stranger(request.replica)
        if error is not None:
            return Decision(error, is_refusal=True)
        changes: Changes = {}
        rules = RulesByTopic(self._decided, self._config)

        def renew(asked: ReplicaRenewal) -> PartitionState:
            key = asked.topic_partition
            changes[key] = renewal.renewed(
                self._decided, rules.find(key.topic_id), request.replica, asked
            )
            return changes[key]

        decision = self._put_each(renew, request.renewals, changes)
        for key in changes:
            self._offline.on_renewed(key, request.replica, self._stored_epoch)
            self._log_ends.forget(key, request.replica)
        return decision

    def _reassign_partitions(self, request: ReassignPartitions) -> Decision:
        reassigning = Reassigning(self._decided, self._config, self._offline, self._stored_epoch)
        return self._put_each(reassigning.decide, request.reassignments, reassigning.changes)

    def _elect_leaders(self, request: ElectLeaders) -> Decision:
        changes: Changes = {}

        def elect(key: TopicPartition) -> PartitionState:
            changes[key] = leadership.elected_on_request(
                self._decided, self._config, request.kind, key, self._offline.of(key)
            )
            return changes[key]

        return self._put_each(elect, request.partitions, changes)

    def _put_each(
        self, change: Callable[[_T], PartitionState], asked: Iterable[_T], changes: Changes
    ) -> Decision:
        """Put all successful changes into the metadata, as `change` has collected them."""
        decision = decide_each(change, asked)
        decision.keys += [SHARD_KEYS[shard_of(key.topic_id)] for key in changes]
        self._decided.put_partitions(
            {
                key: after
                for key, after in changes.items()
                if after is not self._decided.partition(key)
            }
        )
        return decision
