"""Finds the broker of a partition's requests, and requests a connection to it.

The problem: leaderships move, brokers die or are cut off, and every answer about them may be older
than what is known. The idea is that of Kafka's `Metadata`. Each leader is known with its leader
epoch (KIP-320). Look-ups and refusals (KIP-951) tell of leaders, and older news never replaces
newer. Producer and consumer use this machine: they ask it whether a request can be sent, and it
requests what is missing.

Events, beside `add` and `remove` of partitions that are used:

| event                            | what happened                                                |
|----------------------------------|--------------------------------------------------------------|
| `reach`, `known_leader`          | there is something to send to the partition                  |
| `on_hint`                        | a broker refused a request, and may have named the leader    |
| `on_refused`                     | a request failed: the partition pauses                       |
| `on_read_replica`                | the leader has named a follower to read from                 |
| `on_replica_refused`             | that follower refused a request                              |
| `look_up`                        | something that may be the end of a leadership                |
| `on_topics`, `on_leaders`        | a look-up found topics and leaders                           |
| `on_refreshed`                   | a look-up is over, whatever it found                         |
| `on_connected`                   | a connection to a broker is open                             |
| `on_disconnected`                | it broke, or could not be opened                             |
| `on_answered`                    | a broker answered a request                                  |

Effects, returned by `poll`: `Connect` and `RefreshMetadata`. `next_wake` names the moment at which
`poll` has something to do although nothing happened.

Invariants:
- The leader epoch of a known leader never goes back.
- At most one look-up is under way. The pause before the next one is a tenth of the time in which
  leaders were missing and nothing happened. News of a leader, and what may be the end of a
  leadership, begin that time again.
- At most one attempt to connect to a broker is under way. Each failure doubles the pause before the
  next attempt, until the broker answers. A broker that is elected is there: its pause ends.
- While a leader cannot be reached its successor is looked up, however long the pauses between the
  attempts to connect are.
- Each refusal doubles the partition's pause until a request succeeds. It ends when another leader
  is elected.
- A topic is gone when another one has its name, or when two look-ups in a row do not find it: a
  broker that has not heard of a new topic yet does not find it either.
- Topics in use are looked up from time to time: they may have more partitions.

Source: KIP-320, KIP-392, KIP-580, KIP-951; Kafka's Metadata and ClusterConnectionStates.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from millrace.core.client.routing.route import Route
from millrace.core.errors import MillraceError, OffsetNotAvailableError, RefreshMetadataError
from millrace.core.ids import (
    NO_BROKER,
    NO_LEADER_EPOCH,
    BrokerId,
    Leader,
    MonotonicMs,
    TopicId,
    TopicPartition,
)
from millrace.core.pauses import doubled_pause, pause_after

NO_LEADER: Final = Leader(NO_BROKER, NO_LEADER_EPOCH)
_LONG_AGO: Final = MonotonicMs(0)
_PAUSE_FRACTION: Final = 10
_NOT_AVAILABLE_MAX: Final = 3
"""Refusals in a row by a follower that does not know yet that the position is committed."""


@dataclass(slots=True)
class Connect:
    """Effect: open a connection to the broker; `on_connected` or `on_disconnected` follows."""

    broker_id: BrokerId


@dataclass(slots=True)
class RefreshMetadata:
    """Effect: look up leaders; `on_topics`, `on_leaders` and `on_refreshed` follow."""

    topics: list[str]


Effect = Connect | RefreshMetadata


class _ConnectionState(Enum):
    DISCONNECTED = 1
    CONNECTING = 2
    CONNECTED = 3


@dataclass(slots=True)
class _Connection:
    state: _ConnectionState = _ConnectionState.DISCONNECTED
    has_failed: bool = False
    """An attempt failed, or a connection broke."""
    failures: int = 0
    """Attempts that failed and connections that broke since the broker answered or was elected."""
    connect_at: MonotonicMs = _LONG_AGO
    """No attempt before."""


class Router:
    """The machine for all partitions of one client.

    Args:
        retry_backoff_ms: pause before something that failed is tried again.
        retry_backoff_ms_max: upper bound of the growing pauses.
        metadata_max_age_ms: after which topics in use are looked up again, and the leader is asked
            again where to read.
        now: when the machine begins.
    """

    def __init__(
        self,
        retry_backoff_ms: int,
        retry_backoff_ms_max: int,
        metadata_max_age_ms: int,
        now: MonotonicMs,
    ) -> None:
        self.retry_backoff_ms = retry_backoff_ms
        self._retry_backoff_ms_max = retry_backoff_ms_max
        self._metadata_max_age_ms = metadata_max_age_ms
        self._leaders: dict[TopicPartition, Leader] = {}
        """The leaders of all partitions that were heard of, used or not."""
        self._routes: dict[TopicPartition, Route] = {}
        self._of_topic: dict[str, dict[TopicPartition, Route]] = {}
        """The same by the name of their topic, also of an earlier one of that name."""
        self._connections: dict[BrokerId, _Connection] = {}
        self._wanted: dict[BrokerId, _Connection] = {}
        """Those to open as soon as their pause is over."""
        self._missing: dict[str, None] = {}
        """Topics to look up, in the order in which they were missed."""
        self._expires_at = MonotonicMs(now + metadata_max_age_ms)
        """When all topics in use are looked up."""
        self._is_refreshing = False
        self._refreshed_at: MonotonicMs | None = None
        self._no_news_since: MonotonicMs | None = None
        """Time of the first look-up that left leaders missing, without an event since."""
        self._not_found: set[str] = set()
        """Topics with routes that the last look-up did not find."""

    # Partitions.

    def add(self, topic: str, topic_partition: TopicPartition) -> Route:
        """Return the route of a partition that is used from now on."""
        route = self._routes[topic_partition] = Route(topic, topic_partition)
        self._of_topic.setdefault(topic, {})[topic_partition] = route
        return route

    def remove(self, route: Route) -> None:
        """Forget a partition that is used no longer; its leader stays known."""
        del self._routes[route.topic_partition]
        routes = self._of_topic[route.topic]
        del routes[route.topic_partition]
        if not routes:
            del self._of_topic[route.topic]
            self._not_found.discard(route.topic)
            self._missing.pop(route.topic, None)

    def leader(self, topic_partition: TopicPartition) -> Leader | None:
        """Return the leader of a partition, which may be no broker; None: it is not known."""
        return self._leaders.get(topic_partition)

    def known_leader(self, route: Route) -> Leader | None:
        """Return the broker that leads a partition. None: no broker does; it is looked up."""
        leader = self._leaders.get(route.topic_partition)
        if leader is None or leader.broker_id < 0:
            self._missing[route.topic] = None
            return None
        return leader

    def reach(self, route: Route) -> Leader | None:
        """Return the partition's leader if a request can be sent to it, or to the read replica.

        None: it cannot, and a look-up of the leader or a connection is requested.
        """
        leader = self._leaders.get(route.topic_partition)
        if leader is None or leader.broker_id < 0:
            self._missing[route.topic] = None
            return None
        broker_id = leader.broker_id if route.read_replica < 0 else route.read_replica
        connection = self._connections.get(broker_id)
        if connection is not None and connection.state is _ConnectionState.CONNECTED:
            return leader
        self._connect(broker_id, route)
        return None

    def _connect(self, broker_id: BrokerId, route: Route) -> None:
        connection = self._connection(broker_id)
        if connection.state is _ConnectionState.DISCONNECTED:
            self._wanted[broker_id] = connection
        if connection.has_failed:  # Perhaps another broker leads by now.
            self._missing[route.topic] = None

    # Outcomes of requests.

    def look_up(self, topic: str) -> None:
        """Look up a topic: something happened that may be the end of a leadership."""
        self._missing[topic] = None
        self._no_news_since = None

    def on_refused(self, route: Route, now: MonotonicMs) -> None:
        """A request failed: send no other before a pause."""
        route.failures += 1
        pause_ms = doubled_pause(route.failures, self.retry_backoff_ms, self._retry_backoff_ms_max)
        route.retry_at = MonotonicMs(now + pause_ms)

    def on_hint(self, route: Route, error: MillraceError) -> bool:
        """Take the leader that a refusal names (KIP-951); return whether it is another one."""
        hint = error.leader if isinstance(error, RefreshMetadataError) else None
        if hint is None or hint.leader.broker_id < 0:
            return False
        return self._take(route.topic_partition, hint.leader)

    def on_read_replica(self, route: Route, replica: BrokerId, now: MonotonicMs) -> None:
        """The leader sends the reader on to a follower (KIP-392)."""
        route.read_from(replica, MonotonicMs(now + self._metadata_max_age_ms))

    # Results of look-ups.

    def on_replica_refused(self, route: Route, error: MillraceError, now: MonotonicMs) -> None:
        """Let the leader decide after a refusal of the replica that is read (P12)."""
        if isinstance(error, OffsetNotAvailableError):
            route.failures += 1
            if route.failures <= _NOT_AVAILABLE_MAX:  # It will know in a moment.
                route.retry_at = MonotonicMs(now + self.retry_backoff_ms)
                return
        if self.on_hint(route, error):
            route.ask_leader()
        else:
            route.return_to_leader()

    def on_leaders(self, leaders: Mapping[TopicPartition, Leader]) -> list[TopicPartition]:
        """Take leaders as they are known now; return which partitions have another one.

        An epoch has one leader: another one is a leader of a later epoch.
        """
        known = self._leaders
        return [
            topic_partition
            for topic_partition, leader in leaders.items()
            if known.get(topic_partition) != leader and self._take(topic_partition, leader)
        ]

    def _take(self, topic_partition: TopicPartition, leader: Leader) -> bool:
        """Take a leader of a later epoch than the known one; return whether it is one."""
        known = self._leaders.get(topic_partition)
        if known is not None and leader.leader_epoch <= known.leader_epoch:
            return False
        self._leaders[topic_partition] = leader
        self._on_elected(leader.broker_id)
        route = self._routes.get(topic_partition)
        if route is not None:
            route.end_pause()
            self._no_news_since = None
        return True

    def _on_elected(self, broker_id: BrokerId) -> None:
        """A broker was just elected: forget its failed connections."""
        connection = self._connections.get(broker_id)
        if connection is not None:
            connection.failures = 0
            connection.connect_at = _LONG_AGO

    def on_topics(self, topic_ids: Mapping[str, TopicId | None]) -> list[Route]:
        """Take which topics have these names now, and return the routes of topics that are gone.

        Args:
            topic_ids: by name; None: no topic has the name.
        """
        gone: list[Route] = []
        for topic, topic_id in topic_ids.items():
            routes = self._of_topic.get(topic, {})
            is_first_time = topic not in self._not_found
            if topic_id is None and routes:
                self._not_found.add(topic)
            else:
                self._not_found.discard(topic)
            again = "" if topic_id is None else " and made again"
            for route in routes.values():
                if route.topic_partition.topic_id == topic_id:
                    route.deletion = ""
                elif topic_id is None and is_first_time:
                    self.look_up(topic)
                else:
                    route.deletion = f"the topic {topic!r} was deleted{again}"
                    gone.append(route)
        if gone:
            self._forget_leaders({route.topic_partition.topic_id for route in gone})
        return gone

    def _forget_leaders(self, topic_ids: set[TopicId]) -> None:
        self._leaders = {
            place: leader
            for place, leader in self._leaders.items()
            if place.topic_id not in topic_ids
        }

    def on_refreshed(self, now: MonotonicMs) -> None:
        """The look-up is over, whether it found anything or not."""
        self._is_refreshing = False
        self._refreshed_at = now
        if self._no_news_since is None:
            self._no_news_since = now

    # Connections.

    def on_connected(self, broker_id: BrokerId) -> None:
        """A connection to the broker is open."""
        self._connection(broker_id).state = _ConnectionState.CONNECTED

    def on_disconnected(self, broker_id: BrokerId, now: MonotonicMs) -> None:
        """The connection broke, or could not be opened."""
        connection = self._connection(broker_id)
        connection.state = _ConnectionState.DISCONNECTED
        connection.has_failed = True
        connection.failures += 1
        pause_ms = doubled_pause(
            connection.failures, self.retry_backoff_ms, self._retry_backoff_ms_max
        )
        connection.connect_at = MonotonicMs(now + pause_ms)

    def on_answered(self, broker_id: BrokerId) -> None:
        """The broker answered a request: its earlier failures no longer count."""
        connection = self._connections.get(broker_id)
        if connection is not None:
            connection.failures = 0

    def _connection(self, broker_id: BrokerId) -> _Connection:
        connection = self._connections.get(broker_id)
        if connection is None:
            connection = self._connections[broker_id] = _Connection()
        return connection

    # The step that follows every event, and every moment that `next_wake` named.

    def poll(self, now: MonotonicMs) -> list[Effect]:
        """Return what is to be done now."""
        if self._expires_at <= now:
            self._expires_at = MonotonicMs(now + self._metadata_max_age_ms)
            self._missing |= dict.fromkeys(self._of_topic)
        effects: list[Effect] = self._due_connections(now) if self._wanted else []
        if self._is_refreshing:
            return effects
        if not self._missing:
            self._no_news_since = None
        elif now >= self._refresh_at():
            self._is_refreshing = True
            effects.append(RefreshMetadata(list(self._missing)))
            self._missing.clear()
        return effects

    def _due_connections(self, now: MonotonicMs) -> list[Effect]:
        due = [
            broker_id
            for broker_id, connection in self._wanted.items()
            if connection.connect_at <= now
        ]
        for broker_id in due:
            self._wanted.pop(broker_id).state = _ConnectionState.CONNECTING
        return [Connect(broker_id) for broker_id in due]

    def next_wake(self, now: MonotonicMs) -> MonotonicMs | None:
        """Return when `poll` has something to do though nothing happened; None: never."""
        if not self._wanted and not self._missing:
            return self._expires_at if self._routes else None
        moments = [connection.connect_at for connection in self._wanted.values()]
        moments.append(self._expires_at)
        if self._missing and not self._is_refreshing:
            moments.append(self._refresh_at())
        return max(min(moments), MonotonicMs(now + 1))

    def _refresh_at(self) -> MonotonicMs:
        """Return when leaders may be looked up again."""
        if self._refreshed_at is None:
            return _LONG_AGO
        since = self._no_news_since
        failing_ms = 0 if since is None else self._refreshed_at - since
        pause_ms = pause_after(
            failing_ms,
            self.retry_backoff_ms,
            self._retry_backoff_ms_max,
            fraction=_PAUSE_FRACTION,
        )
        return MonotonicMs(self._refreshed_at + pause_ms)
