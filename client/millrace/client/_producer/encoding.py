"""Encodes sealed batches, in their order: on a thread when they are compressed.

The codecs let go of the interpreter: another core compresses meanwhile.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from millrace.core.client.producer.batch import ProducerBatch, encode
from millrace.core.client.producer.sender import Sender
from millrace.core.errors import InvalidConfigError, MillraceError
from millrace.core.records.compression import Codec, Compressor


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
        self._thread: ThreadPoolExecutor | None = None
        self._under_way: deque[tuple[ProducerBatch, asyncio.Future[Any]]] = deque()

    def start(self) -> None:
        """Start the thread, if one is needed."""
        if self._compressor.codec is not Codec.NONE:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="millrace-compress")

    def end(self) -> None:
        """End the thread when it has encoded what it has."""
        if self._thread is not None:
            self._thread.shutdown()

    def encode(self, batches: Iterable[ProducerBatch]) -> None:
        """Encode batches, and hand them to the sender."""
        for batch in batches:
            if self._thread is None:
                self._encoded(batch, partial(encode, batch, self._compressor))
            else:
                future = self._encoded_in_thread(batch)
                self._under_way.append((batch, future))
                future.add_done_callback(self._on_encoded)

    def _encoded_in_thread(self, batch: ProducerBatch) -> "asyncio.Future[Any]":
        try:
            return self._loop.run_in_executor(self._thread, encode, batch, self._compressor)
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
                self._encoded(batch, future.result)
        self._wake()

    def _encoded(self, batch: ProducerBatch, prepared: Callable[[], Any]) -> None:
        try:
            batch.prepared = prepared()
        except MillraceError as error:
            self._sender.on_unencodable(batch, error)
            return
        except Exception as error:  # Arrow's own errors about a user's columns.
            self._sender.on_unencodable(
                batch, InvalidConfigError(f"the records cannot be encoded: {error!r}")
            )
            return
        self._sender.on_batches((batch,))
