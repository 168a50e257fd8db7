"""One transaction without an event loop."""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from millrace.client._producer.record_sink import RecordSink
from millrace.client._producer.transaction_block import Transaction, TransactionRecords
from millrace.client._producer.transactions import AnyConsumer
from millrace.client._sync.loop_thread import LoopThread
from millrace.core.topics import PartitionName


class SyncTransaction(TransactionRecords):
    """One transaction of a `SyncProducer`, which commits at the end of its block.

        with producer.transaction(consumer) as t:
            t.send("orders", b"first")
            t.commit_positions(consumer)

    After an exception it aborts, and the exception goes on. `producer.transaction()` makes it.
    """

    def __init__(self, producer: RecordSink, thread: LoopThread, block: Transaction) -> None:
        super().__init__(producer)
        self._thread = thread
        self._block = block

    def commit_positions(
        self, consumer: AnyConsumer, positions: Mapping[PartitionName, int] | None = None
    ) -> None:
        """Commit how far a consumer's group has read, as part of the transaction.

        See `Producer.send_offsets_to_transaction`.
        """
        self._thread.call(self._block.commit_positions(consumer, positions))

    def abort(self) -> None:
        """Abort the transaction now; the block may go on without it."""
        self._is_over = True
        self._thread.call(self._block.abort())

    def __enter__(self) -> Self:
        self._thread.call(self._block.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        was_over, self._is_over = self._is_over, True
        if isinstance(error, GeneratorExit) and not was_over:
            # A generator was left within the block. Here, unlike there, that can be waited for.
            self._thread.call(self._block.abort_after(error))
        else:
            self._thread.call(self._block.__aexit__(kind, error, trace))
