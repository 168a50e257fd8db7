"""Reconciles all Topics of one Cluster together: five hundred cost a few requests each, no storm.

A Topic gets a finalizer before its topic is created, so that the topic is deleted with it. It never
holds a deletion up for long: when the Cluster is gone, or being deleted, the finalizer is removed.
While the Cluster is paused, or no broker answers, a Topic waits, and its condition says so; a
namespace that is deleted waits a minute for that, and then the topic stays.
Only a Topic that protects its topic stays until a person lifts that, and its condition says so.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import msgspec

from millrace.client import Admin, LogDescription, TopicDescription
from millrace.core.controller.balancing.placement import Candidate
from millrace.core.controller.balancing.reassignment_plan import planned
from millrace.core.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    MillraceError,
    RetriableError,
)
from millrace.core.events import AUDIT_LOGGER
from millrace.core.ids import BrokerId
from millrace.core.media import Media, TopicMedia
from millrace.core.metadata.topic_config import PROTECTION_SETTING
from millrace.core.topics import parse_topic_name
from millrace.core.words import count, some
from millrace.operator import events
from millrace.operator.kube.api import Api
from millrace.operator.kube.kinds import CLUSTER, TOPIC
from millrace.operator.model.cluster import Cluster
from millrace.operator.model.conditions import Condition, Reason, not_known, not_ready
from millrace.operator.model.objects import Document, pool_object_name
from millrace.operator.model.topic import Deletion, Topic
from millrace.operator.plan.selectors import allows
from millrace.operator.plan.topics import (
    Alter,
    CannotBeError,
    Create,
    FoundTopic,
    MoveReplicas,
    RefusedMove,
    actions,
    misplaced,
    protects,
    silent,
    tiered,
    topic_name,
)
from millrace.operator.reconcile.again import GONE, Again
from millrace.operator.reconcile.brokers import Brokers, Found
from millrace.operator.reconcile.references import (
    NO_BROKER_ANSWERS,
    age,
    cluster_key,
    for_each,
    has_finalizer,
    hold,
    namespace_labels,
    namespaces_that_go,
    not_allowed,
    release,
    say_why_not,
    usable_cluster,
    without_cluster,
)
from millrace.operator.reconcile.resources import is_true, topic_of, write_status

_audit = logging.getLogger(AUDIT_LOGGER)

FINALIZER: Final = "millrace.dev/topic"

_REASONS: Final[Mapping[type[MillraceError], Reason]] = {
    InvalidPartitionsError: Reason.INVALID_PARTITIONS,
    InvalidReplicaAssignmentError: Reason.INVALID_REPLICATION_FACTOR,
    InvalidReplicationFactorError: Reason.INVALID_REPLICATION_FACTOR,
}
_PROTECTED: Final = not_ready(
    Reason.DELETION_PROTECTED,
    "the topic is protected against deletion: it stays, and so does this resource. To delete both, "
    f"set {PROTECTION_SETTING} in spec.config to false; to delete only the resource, set "
    "spec.deletionPolicy to Retain",
)
PLACED: Final = "Placed"
"""Type of the condition that every Topic has beside Ready."""
STEADY_S: Final = 60.0
BUSY_S: Final = 2.0
BLOCKED_S: Final = 10.0
"""Pause between two looks at deleted resources of a Cluster that is paused."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The outcome for a topic: its condition, and whether to look at it again soon."""

    condition: Condition
    is_settled: bool = True


class TopicsReconciler:
    """Looks at the Topics of one Cluster at a time.

    Args:
        clock: in step with the API server's clocks.
    """

    def __init__(
        self,
        api: Api,
        brokers: Brokers,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._brokers = brokers
        self._clock = clock

    async def reconcile(self, namespace: str, name: str) -> Again:
        """Bring all Topics of a cluster nearer to their wanted state.

        Returns:
            When to look again.

        Raises:
            ApiError: the API server did not answer.
        """
        documents = [
            topic
            for topic in await self._api.list(TOPIC)
            if cluster_key(topic) == (namespace, name)
        ]
        if not documents:
            return GONE
        document = await self._api.get(CLUSTER, namespace, name)
        if document is None or "deletionTimestamp" in document["metadata"]:
            let_go = partial(without_cluster, self._api, finalizer=FINALIZER, types=[PLACED])
            await for_each(documents, let_go)
            return None
        going = await namespaces_that_go(self._api, documents, self._clock())
        cluster = usable_cluster(document)
        if isinstance(cluster, Condition):
            blocked = partial(self._blocked, because=cluster, going=going)
            return None if all(await for_each(documents, blocked)) else BLOCKED_S
        found = await self._brokers.find(cluster)
        namespaces = await namespace_labels(self._api, cluster, documents)
        names = _owners(documents)
        admin = self._brokers.admin(cluster)
        loads = _Loads() if found is None else _Loads.of(found)
        work = _Work(self._api, cluster, admin, found, namespaces, names, loads, going)
        outcomes = await for_each(documents, work.topic)
        return STEADY_S if all(outcomes) else BUSY_S

    async def _blocked(
        self, document: Document, *, because: Condition, going: Collection[str]
    ) -> bool:
        """Say why nothing is done for a Topic; return whether it waits for a change."""
        if "deletionTimestamp" not in document["metadata"]:
            await say_why_not(self._api, document, because, types=[PLACED])
            return True
        if not has_finalizer(document, FINALIZER):
            return True
        return await _cannot_delete(self._api, document, because.message, going)


@dataclass(frozen=True, slots=True)
class _Loads:
    """Counts of replicas and preferred leaderships of each broker, updated as plans are made."""

    replicas: Counter[BrokerId] = field(default_factory=Counter)
    leaders: Counter[BrokerId] = field(default_factory=Counter)

    @classmethod
    def of(cls, found: Found) -> "_Loads":
        """Return those of a cluster."""
        loads = cls()
        for topic in found.topics.values():
            for partition in topic.partitions:
                loads.add(partition.target_replicas)
        return loads

    def add(self, replicas: Sequence[BrokerId]) -> None:
        """Count a partition."""
        self.replicas.update(replicas)
        self.leaders[replicas[0]] += 1

    def remove(self, replicas: Sequence[BrokerId]) -> None:
        """Remove a partition from the counts."""
        self.replicas.subtract(replicas)
        self.leaders[replicas[0]] -= 1


@dataclass(frozen=True, slots=True)
class _Work:
    """The state of one look, and the work on each Topic."""

    api: Api
    cluster: Cluster
    admin: Admin
    found: Found | None
    namespaces: Mapping[str, Mapping[str, str]]
    owners: Mapping[str, str]
    loads: _Loads
    going: Collection[str]

    async def topic(self, document: Document) -> bool:
        """Work on one Topic; return whether it is settled."""
        try:
            topic = topic_of(document)
            name = str(parse_topic_name(topic_name(topic)))
        except (msgspec.ValidationError, MillraceError) as error:
            if has_finalizer(document, FINALIZER) and "deletionTimestamp" in document["metadata"]:
                return await _cannot_delete(self.api, document, str(error), self.going)
            await self._tell(document, not_ready(Reason.INVALID, str(error)))
            return True
        is_ours = self.owners[topic_name(topic)] == topic.uid and allows(
            self.cluster, topic.namespace, self.namespaces.get(topic.namespace, {})
        )
        if "deletionTimestamp" in document["metadata"]:
            return await self._delete(document, topic, name, is_ours=is_ours)
        if not is_ours:
            await self._tell(document, self._why_not(document, topic))
            return True
        if self.found is None:
            if not is_true(document, "Ready"):
                await say_why_not(self.api, document, NO_BROKER_ANSWERS, types=[PLACED])
            return False
        document = await hold(self.api, document, FINALIZER)
        outcome, described = await self._work(topic, self.found.topics.get(name), name)
        conditions = [outcome.condition]
        is_settled = outcome.is_settled
        if described is not None and outcome.condition.is_true:
            placed = await self._placed(document, described, outcome.condition)
            conditions.append(placed)
            is_settled = is_settled and placed.is_true is True
        if described is not None and described.media is TopicMedia.TIERED:
            conditions.append(await self._tiered(document, described))
            is_settled = is_settled and conditions[-1].is_true is not None
        await self._tell(document, *conditions, described=described)
        return is_settled

    async def _work(
        self, topic: Topic, described: TopicDescription | None, name: str
    ) -> tuple[_Outcome, TopicDescription | None]:
        if described is None and self._missing:
            # Created now, it would have too few replicas, or be on few brokers.
            message = (
                "the topic is made once every broker has joined the cluster; missing: "
                f"{some(self._missing)}"
            )
            return _Outcome(not_ready(Reason.BROKERS_MISSING, message), False), None
        try:
            steps = actions(
                topic,
                None if described is None else found_topic(described),
                self._media,
                self.cluster,
            )
            waits = [await self._perform(step, name) for step in steps]
            left: list[Create | Alter | MoveReplicas] = []
            if steps:
                described = (await self.admin.describe_topics([name]))[name]
                left = actions(topic, found_topic(described), self._media, self.cluster)
        except CannotBeError as error:
            return _Outcome(not_ready(error.reason, str(error))), described
        except InvalidConfigError as error:
            return _Outcome(not_ready(Reason.INVALID_CONFIG, str(error))), described
        except MillraceError as error:
            is_passing = isinstance(error, RetriableError)
            reason = Reason.NOT_NOW if is_passing else _REASONS.get(type(error), Reason.REFUSED)
            return _Outcome(not_ready(reason, str(error)), not is_passing), described
        assert described is not None
        return self._outcome(described, left, "".join(waits)), described

    def _outcome(
        self,
        described: TopicDescription,
        left: Sequence[Create | Alter | MoveReplicas],
        waits: str,
    ) -> _Outcome:
        if any(not isinstance(step, MoveReplicas) for step in left):
            # The broker that was asked has not heard of it yet.
            message = "the change is made, and brokers have yet to show it"
            return _Outcome(Condition("Ready", None, Reason.WAITING, message), False)
        moving = sum(partition.is_reassigning for partition in described.partitions)
        wrong = misplaced(
            [partition.target_replicas for partition in described.partitions],
            described.media,
            self._media,
        )
        if moving or wrong or left:
            message = f"replicas of {count(moving, 'partition')} are being moved"
            if wrong:
                message += f"; those of {wrong} are still to be moved to {described.media}"
            if waits:
                message += f"; {waits}"
            return _Outcome(Condition("Ready", True, Reason.MOVING, message), False)
        return _Outcome(Condition("Ready", True, Reason.READY, "the topic is as its resource says"))

    async def _placed(
        self, document: Document, described: TopicDescription, ready: Condition
    ) -> Condition:
        """Return whether every replica is on a broker and a disk where it should be."""
        if ready.reason is Reason.MOVING:
            return Condition(PLACED, False, Reason.MOVING, ready.message)
        if described.media is not TopicMedia.ANY and not is_true(document, PLACED):
            # Brokers move replicas between their own disks, which no description of topics shows.
            try:
                logs = await self.admin.describe_logs(described.name)
            except MillraceError as error:
                return Condition(PLACED, None, Reason.NO_BROKER_ANSWERS, str(error))
            there = [log.media for log in logs if log.media is not None]
            wrong = sum(not described.media.is_home_on(media) for media in there)
            if wrong:
                told = count(wrong, "replica is", "replicas are")
                message = f"{told} still to be moved to another disk of the same broker"
                return Condition(PLACED, False, Reason.MOVING, message)
            if unknown := self._unknown(described, logs):
                return Condition(PLACED, None, Reason.NO_BROKER_ANSWERS, unknown)
        return Condition(PLACED, True, Reason.AS_WANTED, "every replica is where it should be")

    def _unknown(self, described: TopicDescription, logs: Sequence[LogDescription]) -> str:
        """Return what is not known of a topic's disks, as brokers are away; empty: nothing."""
        assert self.found is not None
        told = {(log.partition, log.broker_id) for log in logs}
        missing = silent([partition.target_replicas for partition in described.partitions], told)
        if not missing:
            return ""
        names = [self.found.names.get(broker, f"broker {broker}") for broker in missing]
        return (
            f"no word from {some(names)} about the disks of "
            f"{count(sum(missing.values()), 'replica')}: they are away, or the replicas are offline"
        )

    async def _tiered(self, document: Document, described: TopicDescription) -> Condition:
        try:
            logs = await self.admin.describe_logs(described.name)
        except MillraceError as error:
            return Condition("Tiered", None, Reason.NO_BROKER_ANSWERS, str(error))
        if unaware := sum(log.tier is None for log in logs):
            replicas = count(unaware, "replica")
            message = f"the brokers of {replicas} have yet to hear that the topic is tiered"
            return Condition("Tiered", None, Reason.WAITING, message)
        refused = [
            RefusedMove(log.partition, log.broker_id, log.tier.problem)
            for log in logs
            if log.tier is not None and log.tier.problem
        ]
        unknown = self._unknown(described, logs)
        if unknown and not refused and not is_true(document, "Tiered"):
            return Condition("Tiered", None, Reason.NO_BROKER_ANSWERS, unknown)
        return tiered(refused)  # What was known counts until brokers say more.

    @property
    def _media(self) -> Mapping[int, tuple[Media, ...]]:
        """Media of the volumes of each broker that may hold replicas."""
        assert self.found is not None
        brokers = self.found.cluster.brokers
        return {broker.broker_id: broker.media for broker in brokers if not broker.is_drained}

    @property
    def _missing(self) -> list[str]:
        """The brokers that the Cluster asks for, and that never joined it.

        One that is away now has joined. A broker of a pool that is removed is not asked for.
        """
        assert self.found is not None
        wanted = {
            f"{pool_object_name(self.cluster.name, pool.name)}-{number}"
            for pool in self.cluster.spec.pools
            for number in range(pool.replicas)
        }
        return sorted(wanted - {broker.name for broker in self.found.cluster.brokers})

    async def _perform(self, step: Create | Alter | MoveReplicas, name: str) -> str:
        """Carry out a step; return what waits; empty: nothing."""
        match step:
            case Create():
                await self.admin.create_topic(
                    name, step.partitions, step.replication_factor, step.config
                )
            case Alter():
                await self.admin.alter_topic(
                    name,
                    set_config=step.set_config,
                    unset_config=step.unset_config,
                    partitions=step.partitions,
                )
            case MoveReplicas():
                return await self._move_replicas(name, step)
        events.TOPIC_CHANGED.log(_audit, topic=name, step=repr(step))
        return ""

    async def _move_replicas(self, name: str, step: MoveReplicas) -> str:
        """Begin the moves; return which of them wait.

        The plan is for the brokers that the cluster has, as a short problem is no reason to copy
        everything elsewhere (P77): only drained ones give up their replicas. What is to be copied
        to a broker that is away waits for it.
        """
        assert self.found is not None
        before = {
            (name, partition.partition): partition.target_replicas
            for partition in self.found.topics[name].partitions
            if step.partitions is None or partition.partition in step.partitions
        }
        for replicas in before.values():
            self.loads.remove(replicas)
        brokers = [broker for broker in self.found.cluster.brokers if not broker.is_drained]
        plan: dict[tuple[str, int], tuple[BrokerId, ...]] = {}
        try:
            plan = planned(
                before,
                [Candidate(broker.broker_id, broker.rack, broker.media) for broker in brokers],
                replication_factor=step.replication_factor,
                media=dict.fromkeys(before, step.media),
                other_replicas=self.loads.replicas,
                other_leaders=self.loads.leaders,
            )
        except InvalidReplicaAssignmentError:
            if not self._missing:
                raise
            return f"they are moved once every broker has joined; missing: {some(self._missing)}"
        finally:
            for replicas in {**before, **plan}.values():
                self.loads.add(replicas)
        away = {
            broker.broker_id: broker.name
            for broker in brokers
            if broker.is_fenced or broker.is_draining
        }
        awaited = {key: away.keys() & ({*plan[key]} - {*before[key]}) for key in plan}
        now = {key: replicas for key, replicas in plan.items() if not awaited[key]}
        if now:
            for refused in (await self.admin.reassign_partitions(now)).values():
                if refused is not None:
                    raise refused
            events.TOPIC_CHANGED.log(_audit, topic=name, step=repr(step))
        if len(now) == len(plan):
            return ""
        names = sorted({away[broker] for key in plan for broker in awaited[key]})
        return f"those of {len(plan) - len(now)} wait for {some(names)} to be back"

    async def _delete(self, document: Document, topic: Topic, name: str, *, is_ours: bool) -> bool:
        if not has_finalizer(document, FINALIZER):
            return True
        if is_ours and topic.spec.deletion_policy is Deletion.DELETE:
            why = await self._delete_topic(topic, name)
            if why:
                return await _cannot_delete(self.api, document, why, self.going)
        await release(self.api, document, FINALIZER)
        return True

    async def _delete_topic(self, topic: Topic, name: str) -> str:
        """Delete a topic of the cluster; return why that cannot be; empty: it is gone."""
        if protects(topic.spec.config):
            return _PROTECTED.message
        if self.found is None:
            return "none of the brokers answers"
        described = self.found.topics.get(name)
        if described is None:
            return ""
        try:
            if found_topic(described).overrides.get(PROTECTION_SETTING) == "true":
                # The resource has ceased to ask for it.
                await self.admin.alter_topic(name, unset_config=[PROTECTION_SETTING])
            await self.admin.delete_topic(name)
        except MillraceError as error:
            return str(error)
        events.TOPIC_DELETED.log(_audit, topic=name)
        return ""

    def _why_not(self, document: Document, topic: Topic) -> Condition:
        if self.owners[topic_name(topic)] == topic.uid:
            return not_allowed(self.cluster, document)
        return not_ready(
            Reason.NAME_CLASH,
            f"an older Topic of namespace {topic.namespace} has the name {topic_name(topic)} in "
            "this cluster: make another Topic with another spec.topicName, or delete the older "
            "one, with deletionPolicy Retain",
        )

    async def _tell(
        self,
        document: Document,
        *conditions: Condition,
        described: TopicDescription | None = None,
    ) -> None:
        content: dict[str, Any] = {}
        if not any(condition.type == PLACED for condition in conditions):
            conditions = (*conditions, *not_known([PLACED], conditions[0]))
        if described is not None:
            content = {
                "topicName": described.name,
                "topicId": described.topic_id.hex(),
                "partitions": len(described.partitions),
                "replicas": described.replication_factor,
                "moving": sum(partition.is_reassigning for partition in described.partitions)
                or None,
            }
        await write_status(self.api, document, conditions, content)


async def _cannot_delete(api: Api, document: Document, why: str, going: Collection[str]) -> bool:
    """Decide about a deleted Topic whose topic cannot be deleted; return whether it is settled.

    The resource alone says that, also one of a form that this release does not know: one that is to
    be retained goes, and a protected one stays. Any other one waits, and says for what, until its
    namespace has waited for long enough.
    """
    if document["spec"].get("deletionPolicy") == Deletion.RETAIN:
        await release(api, document, FINALIZER)
        return True
    if protects(document["spec"].get("config") or {}):
        await say_why_not(api, document, _PROTECTED, types=[PLACED])
        return True  # Its next change is looked at.
    if document["metadata"]["namespace"] in going:
        events.TOPIC_KEPT.log(_audit, topic=_full_name(document), reason=why)
        await release(api, document, FINALIZER)
        return True
    message = (
        f"the topic cannot be deleted now: {why}. It is tried again. Not to wait for it, set "
        "spec.deletionPolicy to Retain: then the topic stays"
    )
    because = not_ready(Reason.CANNOT_DELETE, message)
    await say_why_not(api, document, because, types=[PLACED])
    return False


def found_topic(described: TopicDescription) -> FoundTopic:
    """Return a topic for the plan."""
    return FoundTopic(
        topic_id=described.topic_id.hex(),
        partitions=len(described.partitions),
        replication_factor=described.replication_factor,
        overrides={
            name: setting.value
            for name, setting in described.config.items()
            if setting.source == "topic"
        },
        replicas=tuple(partition.target_replicas for partition in described.partitions),
        moving=sum(partition.is_reassigning for partition in described.partitions),
        media=described.media,
    )


def _owners(documents: Iterable[Document]) -> dict[str, str]:
    """Return the Topic, by uid, that owns each topic: the oldest one that names it."""
    owners: dict[str, str] = {}
    for document in sorted(documents, key=age):
        owners.setdefault(_full_name(document), document["metadata"]["uid"])
    return owners


def _full_name(document: Document) -> str:
    """Return the name of a resource's topic in the cluster."""
    metadata = document["metadata"]
    return f"{metadata['namespace']}/{document['spec'].get('topicName') or metadata['name']}"
