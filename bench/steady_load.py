"""A steady load in its own process, for tests that do something to the brokers meanwhile."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import acknowledgements
from bench.acknowledgements import Records
from bench.loads.spec import Load, Moved, command_line
from bench.processes import LoadFailedError, last_json, start, until

FLUSH_TIMEOUT_S = 150


@dataclass(frozen=True, kw_only=True)
class SteadyLoad:
    """A load that runs from `begin()` to `end()`, which returns its records."""

    begin: Callable[[], None]
    end: Callable[[], Records]


@contextmanager
def steady_load(
    directory: Path, address: str, module: str, *, topic: str, partitions: int, rate: float
) -> Iterator[SteadyLoad]:
    """Prepare a load with the client's defaults; it ends with the block at the latest.

    Args:
        module: `steady_millrace` or `steady_confluent`.
        rate: records of 1 KB a second, over all partitions.

    Raises:
        LoadFailedError: at its end: it failed, or the outcome of a record is unknown.
    """
    output, log = directory / f"{module}.npy", directory / f"{module}.log"
    load = Load(
        address=address,
        topic=topic,
        partitions=partitions,
        seconds=0,
        rate=rate,
        settings={"output": str(output), "producer": {}},
    )
    processes = []

    def begin() -> None:
        processes.append(start(command_line(module, load), log))

    def end() -> Records:
        (process,) = processes
        process.terminate()
        until(process.poll, "the end of the load", FLUSH_TIMEOUT_S)
        printed = log.read_text(errors="replace")
        if process.returncode:
            raise LoadFailedError(f"{module} ended with {process.returncode}:\n{printed[-4000:]}")
        moved = Moved(**last_json(printed))
        if moved.detail["seen"] != moved.records:
            raise LoadFailedError(f"{moved.records} records sent, {moved.detail['seen']} outcomes")
        return acknowledgements.load(output)

    try:
        yield SteadyLoad(begin=begin, end=end)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
