"""Writing records without an event loop."""

import asyncio
from collections.abc import Sequence
from typing import Unpack

from millrace.client._producer.producer import Producer, unacknowledged
from millrace.client._producer.record_sink import RecordSink
from millrace.client._producer.settings import ProducerSettings
from millrace.client._producer.transactions import AnyConsumer
from millrace.client._sync.client import SyncClient, blocking, direct, load
from millrace.client._sync.transaction import SyncTransaction
from millrace.runtime import host


class SyncProducer(RecordSink, SyncClient[Producer]):
    """Writes records, from any number of threads.

        with SyncProducer("localhost:7092") as producer:
            for line in lines:
                producer.send("orders", line)
            producer.flush()  # Raises if a record was not delivered.

    `send()` waits only when `buffer_memory` is full, at most `max_block_ms`. The settings are those
    of `Producer`.

    When a program ends without `close()`, the records are delivered for up to 10 s, and a warning
    counts those that are not. A `logging.Handler` may send through a producer, and close it.
    """

    def __init__(
        self, bootstrap: str | Sequence[str], **settings: Unpack[ProducerSettings]
    ) -> None:
        load(settings)
        SyncClient.__init__(self, lambda: Producer(bootstrap, **settings))
        producer = self._client
        super().__init__(producer._pipeline, *producer._serializers, producer._tracing)

    def transaction(self, consumer: AnyConsumer | None = None) -> SyncTransaction:
        """Return a transaction, for a `with` block, at whose end it commits.

            with SyncProducer("localhost:7092", transactional_id="billing") as producer:
                with producer.transaction() as t:
                    t.send("orders", b"first")

        See `Producer.transaction`.
        """
        return SyncTransaction(self, self._thread, self._client.transaction(consumer))

    init_transactions = blocking(Producer.init_transactions)
    begin_transaction = blocking(Producer.begin_transaction)
    send_offsets_to_transaction = blocking(Producer.send_offsets_to_transaction)
    commit_transaction = blocking(Producer.commit_transaction)
    abort_transaction = blocking(Producer.abort_transaction)
    outcome = blocking(Producer.outcome)
    join_transaction = blocking(Producer.join_transaction)
    leave_transaction = blocking(Producer.leave_transaction)

    @property
    def _on_loop(self) -> Producer:
        return self._client

    flush = blocking(Producer.flush)
    partitions_for = blocking(Producer.partitions_for)
    awaited_brokers = direct(Producer.awaited_brokers, on_loop=True)
    producer_id_problem = direct(Producer.producer_id_problem, on_loop=True)

    def close(self) -> None:
        """Deliver the sent records and release everything; closing twice is harmless.

        No more records can be sent from now on, also while it waits for the earlier ones. A
        transaction that is open is aborted. Takes `close_timeout_ms` at the most, and little longer
        if the clients' thread is blocked.

        Raises:
            MillraceError: the first failure of the records it waited for, or since the last flush,
                that no handle has reported.
            AbortedError: a transaction was open that had records.
            ClosedError: the time was over; tells how many records were not acknowledged.
        """
        pipeline = self._pipeline
        self._thread.close(
            self._client.close(),
            pipeline.config.close_timeout_ms,
            lambda: f"; {unacknowledged(pipeline)}",
        )

    def _abandon(self) -> None:
        """Deliver nothing more, neither now nor at the end of the process, and wait for nothing."""
        pipeline = self._pipeline
        pipeline.is_closed = True  # At once: the clients' thread may be blocked.
        ends_at = host.monotonic_s() + pipeline.config.close_timeout_ms / 1000
        closing = pipeline.close("it was abandoned", ends_at)
        asyncio.run_coroutine_threadsafe(closing, self._thread.loop)
