"""A Spark program in its own process, and a check of what Spark needs."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

STOP_SECONDS_MAX = 60.0
JOBS = Path(__file__).resolve().parents[1] / "spark-on-k8s" / "jobs"
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that runs only briefly: a better compiler costs more than it saves."""
JAVA_VERSION_MIN = 17
_KILL_SECONDS_MAX = 20.0
_KILL_POLL_SECONDS = 0.002
_LOG_LINES_SHOWN = 60
_EXECUTOR = b"CoarseGrainedExecutorBackend"
_SETTINGS = {
    "SPARK_CONF_DIR": str(JOBS / "conf"),  # For one machine.
    "PYSPARK_PYTHON": sys.executable,
}


def missing() -> str:
    """Return what Spark lacks here, and how to get it; empty if it has all."""
    if importlib.util.find_spec("pyspark") is None:
        return "PySpark is not installed: run `make demo`"
    home = os.environ.get("JAVA_HOME")  # Spark, too, prefers it to the path.
    version = java_version_of(str(Path(home, "bin", "java")) if home else "java")
    if version >= JAVA_VERSION_MIN:
        return ""
    found = f"Java {version}" if version else "none"
    if home:
        return (
            f"Spark needs Java {JAVA_VERSION_MIN} or later, found at JAVA_HOME={home}: {found}. "
            "Correct it, or unset it"
        )
    return (
        f"Spark needs Java {JAVA_VERSION_MIN} or later, found {found}. On Debian and Ubuntu: "
        "sudo apt-get install default-jre-headless"
    )


def java_version_of(java: str) -> int:
    """Return the version of a `java` program; 0: it is no Java."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', said.stderr)  # Java 8 said 1.8.
    return int(found[1]) if found else 0


class SparkProgram:
    """A Spark program as a process: Python, Spark's JVM and its workers, in a session of their own.

    Args:
        program: the file.
        arguments: of its command line.
        log: the file to which its output is appended; the program runs in its folder.
    """

    def __init__(self, program: Path, *arguments: str, log: Path) -> None:
        self._log = log
        self._arguments = [sys.executable, str(program), *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        """Spark's own files, which remain after a kill. Sockets need a short path."""

    def start(self) -> "SparkProgram":
        """Start it, for the first time or again."""
        self._scratch = tempfile.TemporaryDirectory(prefix="spark-", ignore_cleanup_errors=True)
        java_options = f'{JAVA_OPTIONS} "-Djava.io.tmpdir={self._scratch.name}"'
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._log.parent,
                env=os.environ | _SETTINGS | {"JAVA_TOOL_OPTIONS": java_options},
                start_new_session=True,
            )
        return self

    def exit_code(self) -> int | None:
        """Return its exit code; None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def wait(self, seconds: float) -> int:
        """Wait until it ends by itself; return its exit code.

        Raises:
            RuntimeError: it did not end in time; it was killed.
        """
        assert self._process is not None
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(
                f"the Spark program runs for {seconds:.0f} s; its log ends with\n{self.log_end()}"
            ) from error
        finally:
            self.kill()

    def stop(self) -> int:
        """End it by SIGTERM; return its exit code.

        Raises:
            RuntimeError: it did not end in time; it was killed.
        """
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self.wait(STOP_SECONDS_MAX)

    def end(self) -> None:
        """End it by SIGTERM.

        Raises:
            RuntimeError: it did not end cleanly; the message holds the end of its log.
        """
        if code := self.stop():
            raise RuntimeError(
                f"the Spark program ended with {code} instead of 0; its log ends with\n"
                f"{self.log_end()}"
            )

    def kill(self) -> None:
        """Kill all its processes at once, as when its machine is lost.

        Raises:
            RuntimeError: a process of it does not end.
        """
        if self._process is None:
            return
        deadline = time.monotonic() + _KILL_SECONDS_MAX
        while pids := of_session(self._process.pid):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
            if time.monotonic() > deadline:
                raise RuntimeError(f"these processes of Spark do not end: {pids}")
            time.sleep(_KILL_POLL_SECONDS)
        self._process.wait()
        assert self._scratch is not None
        self._scratch.cleanup()

    def sleep(self) -> None:
        """Stop all its processes, as when its machine is suspended."""
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Let its processes go on that were stopped."""
        self._signal(signal.SIGCONT)

    def _signal(self, how: signal.Signals) -> None:
        assert self._process is not None
        for pid in of_session(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, how)

    def kill_executor(self) -> None:
        """Kill an executor with its Python workers; Spark starts another one.

        Raises:
            RuntimeError: none runs that is no thread of the driver.
        """
        assert self._process is not None
        parents = {pid: _parent(pid) for pid in of_session(self._process.pid)}
        executors = [pid for pid in parents if _EXECUTOR in _command(pid)]
        if not executors:
            raise RuntimeError("no executor of Spark runs: nothing is left to kill")
        family = executors[:1]
        for pid in family:
            family += [child for child, parent in parents.items() if parent == pid]
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def log_end(self) -> str:
        """Return the last lines of its output."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_LINES_SHOWN:])


def _command(pid: int) -> bytes:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _parent(pid: int) -> int:
    with suppress(FileNotFoundError, ProcessLookupError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def of_session(session: int) -> list[int]:
    """Return the processes of a session; PySpark's workers have groups of their own."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            # The name stands in parentheses and may hold any character.
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] not in "ZX":
                found.append(int(path.parent.name))
    return found
