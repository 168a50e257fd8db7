"""Encodes sealed batches: on threads when they are compressed.

The codecs let go of the interpreter, so other cores compress meanwhile. Batches reach the sender in
the order in which they were sealed, whichever is encoded first: so those of a partition keep their
order.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from millrace.core.client.producer.batch import ProducerBatch, encode
from millrace.core.client.producer.sender import Sender
from millrace.core.errors import InvalidConfigError, MillraceError
from millrace.core.records.compression import Codec, Compressor

_THREADS_MAX: Final = 2
"""Threads that compress: one alone is the limit of a producer with a codec. What else is done for a
batch holds the interpreter, so that a third would add little."""


class Encoding:
    """Batches on their way to the sender."""

    def __init__(
        self,
        compressor: Compressor,
        sender: Sender,
        loop: asyncio.AbstractEventLoop,
        wake: Callable[[], None],
    ) -> None:
        self._compressor = compressor
        self._sender = sender
        self._loop = loop
        self._wake = wake
        self._threads: ThreadPoolExecutor | None = None
        self._under_way: deque[tuple[ProducerBatch, asyncio.Future[Any]]] = deque()

    def start(self) -> None:
        """Start what runs the threads, if some are needed."""
        if self._compressor.codec is not Codec.NONE:
            self._threads = ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix="millrace-compress")

    def end(self) -> None:
        """End the threads when they have encoded what they have."""
        if self._threads is not None:
            self._threads.shutdown()

    def encode(self, batches: Iterable[ProducerBatch]) -> None:
        """Encode batches, and hand them to the sender."""
        for batch in batches:
            if self._threads is None:
                self._encoded(batch, None)
            else:
                future = self._encoded_in_thread(batch)
                self._under_way.append((batch, future))
                future.add_done_callback(self._on_encoded)

    def _encoded_in_thread(self, batch: ProducerBatch) -> "asyncio.Future[Any]":
        try:
            return self._loop.run_in_executor(self._threads, encode, batch, self._compressor)
        except RuntimeError:  # The process ends: its executors take no more work.
            future: asyncio.Future[Any] = self._loop.create_future()
        try:
            future.set_result(encode(batch, self._compressor))
        except Exception as error:
            future.set_exception(error)
        return future

    def _on_encoded(self, _: "asyncio.Future[Any]") -> None:
        while self._under_way and self._under_way[0][1].done():
            batch, future = self._under_way.popleft()
            if not future.cancelled():
                self._encoded(batch, future)
        self._wake()

    def _encoded(self, batch: ProducerBatch, future: "asyncio.Future[Any] | None") -> None:
        """Hand on a batch; None: it is still to be encoded, here."""
        try:
            if future is None:
                batch.prepared = encode(batch, self._compressor)
            else:
                batch.prepared = future.result()
        except MillraceError as error:
            self._sender.on_unencodable(batch, error)
            return
        except Exception as error:  # Arrow's own errors about a user's columns.
            self._sender.on_unencodable(
                batch, InvalidConfigError(f"the records cannot be encoded: {error!r}")
            )
            return
        self._sender.on_batches((batch,))
