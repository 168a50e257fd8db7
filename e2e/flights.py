"""Flights that a pod produces during a test."""

import threading
import time
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from e2e.installed import Namespace
from tests.spark_jobs.flights import FLIGHTS, Source

_TICK_S: Final = 0.1
_END_SECONDS_MAX: Final = 180.0


class FlightsStream:
    """A `millrace produce` in the client's pod, which gets one flight after another.

    Args:
        namespace: of the client's pod.
        source: of the flights, in order of time.
        per_second: their rate; 0: all at once.
        to: the namespace of the topic `flights`; empty: the client's own namespace.
    """

    def __init__(
        self, namespace: Namespace, source: Source, per_second: int = 0, *, to: str = ""
    ) -> None:
        self._table = source.flights.table
        keys = source.flights.keys.cast(pa.binary())
        values = source.flights.values.cast(pa.binary())
        self._lines: list[bytes] = pc.binary_join_element_wise(keys, values, b"\t").to_pylist()
        self._per_tick = int(per_second * _TICK_S) or len(self._lines)
        self._given = 0
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._process = namespace.start(
            *("exec", "--stdin", "client", "--", "millrace", "produce"),
            *(f"{to or namespace.name}/{FLIGHTS}", "--key-separator", "\t"),
        )
        self._thread = threading.Thread(target=self._give)
        self._thread.start()

    def end(self, *, early: bool = True) -> pa.Table:
        """Return the produced flights, once all of them are acknowledged.

        Args:
            early: stop now; otherwise first produce the rest of the source.

        Raises:
            RuntimeError: not all were acknowledged.
        """
        if early:
            self._over.set()
        self._thread.join()
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            code = self._process.wait(_END_SECONDS_MAX)
        finally:
            self._process.kill()
        if code or self._failure:
            raise RuntimeError(f"`millrace produce` ended with {code}: {self._failure}")
        return self._table.slice(0, self._given)

    def _give(self) -> None:
        assert self._process.stdin is not None
        try:
            while self._given < len(self._lines) and not self._over.is_set():
                lines = self._lines[self._given : self._given + self._per_tick]
                self._process.stdin.write(b"\n".join([*lines, b""]))
                self._process.stdin.flush()
                self._given += len(lines)
                time.sleep(_TICK_S)
        except BaseException as error:
            self._failure = error


def produce_all(namespace: Namespace, source: Source, *, to: str = "") -> pa.Table:
    """Produce all flights of a source; return them once they are acknowledged."""
    return FlightsStream(namespace, source, to=to).end(early=False)
