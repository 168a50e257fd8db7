"""The fetch stream to one broker: changes of the session out, responses in."""

from collections.abc import Callable
from typing import Final

from millrace.client._cluster import wire
from millrace.client._cluster.broker_streams import BrokerStream
from millrace.client._cluster.connection import Connection
from millrace.core.client.consumer.sessions import ChangeSession, FetchedPartition
from millrace.core.ids import BrokerId, LeaderEpoch, Offset, ProducerId
from millrace.core.records.markers import AbortedTransaction
from millrace.proto import codec
from millrace.proto.v1 import fetch_pb2
from millrace.runtime.transport.calls import ClientStream, Message

METHOD: Final = "/millrace.proto.v1.Fetch/Fetch"

OnFetched = Callable[[BrokerId, list[FetchedPartition]], None]
OnThrottled = Callable[[BrokerId, int], None]
OnBroken = Callable[[BrokerId, "FetchStream", str], None]


class FetchStream(BrokerStream):
    """One open session.

    Args:
        broker_id: the broker.
        connection: the greeted connection.
        stream: that is open.
        settings: of the session; they go with the first message.
        partition_bytes_max: bytes of one partition in one response.
        on_fetched: broker and news.
        on_throttled: the broker delays this client, by its quota: broker, ms.
        on_broken: the stream ended, other than by `close()`.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        connection: Connection,
        stream: ClientStream,
        *,
        settings: fetch_pb2.FetchSettings,
        partition_bytes_max: int,
        on_fetched: OnFetched,
        on_throttled: OnThrottled,
        on_broken: OnBroken,
    ) -> None:
        super().__init__(
            broker_id,
            connection,
            "fetch stream",
            stream,
            on_broken,
        )
        self._settings: fetch_pb2.FetchSettings | None = settings
        self._partition_bytes_max = partition_bytes_max
        self._on_fetched = on_fetched
        self._on_throttled = on_throttled

    def change(self, effect: ChangeSession) -> None:
        """Queue a change of the session."""
        message = fetch_pb2.FetchRequest(
            remove=effect.removed, credit_bytes=effect.credit_bytes, settings=self._settings
        )
        self._settings = None
        for added in effect.added:
            message.partitions.add(
                handle=added.handle,
                topic_id=added.topic_partition.topic_id,
                partition=added.topic_partition.partition,
                fetch_offset=added.fetch_offset,
                current_leader_epoch=added.current_leader_epoch,
                last_fetched_epoch=added.last_fetched_epoch,
                max_bytes=self._partition_bytes_max,
                from_leader=added.from_leader,
                end_offset=added.end_offset,
                verify_until=added.verify_until,
            )
        self._queue([message.SerializeToString()])

    def _on_received(self, message: Message) -> None:
        header, parts = codec.decode_fetch_response(message)
        if header.throttle_time_ms:
            self._on_throttled(self.broker_id, header.throttle_time_ms)
        news = [
            _news(fetched, batches)
            for fetched, batches in zip(header.partitions, parts, strict=True)
        ]
        self._on_fetched(self.broker_id, news)


def _news(fetched: fetch_pb2.FetchedPartition, batches: memoryview) -> FetchedPartition:
    news = FetchedPartition(
        fetched.handle,
        batches,
        Offset(fetched.high_watermark),
        Offset(fetched.last_stable_offset),
        Offset(fetched.log_start_offset),
        Offset(fetched.fetch_offset),
    )
    if (error := wire.error_of(fetched)) is not None:
        news.error = error
        news.is_retriable = error.retriable or fetched.error.retriable
    if fetched.HasField("diverging"):
        news.diverging_epoch = LeaderEpoch(fetched.diverging.leader_epoch)
        news.diverging_end_offset = Offset(fetched.diverging.end_offset)
    if fetched.HasField("preferred_read_replica"):
        news.preferred_read_replica = BrokerId(fetched.preferred_read_replica)
    if fetched.aborted_transactions:
        news.aborted = [
            AbortedTransaction(
                ProducerId(told.producer_id), Offset(told.first_offset), Offset(told.last_offset)
            )
            for told in fetched.aborted_transactions
        ]
    return news
