"""A real API server, with an etcd that flushes, for clusters that keep their metadata in it."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.processes import LoadFailedError
from tests.api_server import binaries
from tests.api_server.running import RunningApiServer


@contextmanager
def running_api_server(directory: Path) -> Iterator[Mapping[str, str]]:
    """Start one with its data below `directory`, and stop it at the end of the block.

    The first call builds it into the user's cache, which takes minutes.

    Yields:
        Settings for the brokers' environment.

    Raises:
        LoadFailedError: it cannot be built, or did not start.
    """
    directory.mkdir(parents=True)
    try:
        binaries.PROGRAMS.build()
        server = RunningApiServer(directory, flushes=True).start()
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        raise LoadFailedError(f"there is no API server: {error}") from error
    try:
        kubeconfig = directory / "kubeconfig"
        kubeconfig.write_text(server.kubeconfig())
        yield {
            "MILLRACE_BROKER__COORDINATION__KIND": "kubernetes",
            "MILLRACE_BROKER__COORDINATION__KUBERNETES__KUBECONFIG": str(kubeconfig),
        }
    finally:
        server.stop()
