"""Machines made of namespaces: each has its own network, processes, mounts, host name and `/var`.

One process holds a machine. Killing it is a power cut: all its processes, mounts and networks
disappear at once, without a message to any peer. The files that it wrote stay in its folder, for
the next boot.
"""

import contextlib
import os
import shutil
import signal
from pathlib import Path

from e2e.cluster.commands import CommandError, detached, read_pid, run, wait_until

# Containers are entered at the root of the machine's mounts. If this program runs in a chroot, that
# root is outside of the chroot; so the chroot becomes the root.
_PIVOT = """
exec 3</
exec nsenter --mount=/proc/self/ns/mnt sh -euc '
cd /proc/self/fd/3
pivot_root . .
umount --no-canonicalize --lazy .
exec chroot . sh -euc "$@"
' pivot "$@"
"""

# `/run` is empty at each boot. `/var` is the system's, below the files that the machine wrote. The
# machine's folder stays visible, even inside `/var`; and the file systems of containers need a real
# disk below their overlays.
_BOOT = """
folder=$1
hostname "$2"
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/lock /run/machine
mount --bind "$folder" /run/machine
mount -t overlay overlay -o "lowerdir=/var,upperdir=$folder/var,workdir=$folder/var.work" /var
mkdir -p "$folder"
mount --move /run/machine "$folder"
for held in "$folder"/disk/*; do
    mkdir -p "/var/lib/${held##*/}"
    mount --bind "$held" "/var/lib/${held##*/}"
done
mount --make-rshared /  # Mounts of containers are to be seen by others here.
exec "$folder/init"
"""


class Machine:
    """One machine, booted or without power.

    Args:
        cluster: distinguishes its network namespace from those of other clusters.
        name: its host name.
        folder: for its files; created if needed.
        disk: folders of its `/var/lib` that are on the disk itself.
    """

    def __init__(self, cluster: str, name: str, folder: Path, disk: tuple[str, ...] = ()) -> None:
        self.name = name
        self.folder = folder
        self.namespace = f"{cluster}-{name}"
        self._disk = disk
        self._pid_file = folder / "machine.pid"

    @property
    def pid(self) -> int | None:
        """The process that holds it, if it runs."""
        holder = read_pid(self._pid_file)
        with contextlib.suppress(OSError, ValueError):
            pid = int(Path(f"/proc/{holder}/task/{holder}/children").read_text())
            if Path(f"/proc/{pid}/cmdline").read_text() == f"{self.folder / 'init'}\0":
                return pid
        return None

    @property
    def root(self) -> Path:
        """Its files, as seen from outside; it must be on."""
        return Path(f"/proc/{self.pid}/root")

    def boot(self, init: Path) -> None:
        """Start it, unless it runs; its network must exist.

        Args:
            init: the program of its first process.
        """
        if self.pid is not None:
            return
        for name in ("var", "var.work", "log", *(f"disk/{name}" for name in self._disk)):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        (self.folder / "run").mkdir()
        shutil.copy2(init, self.folder / "init")
        log = self.folder / "log" / "boot.log"
        command = [
            *("nsenter", f"--net=/run/netns/{self.namespace}"),
            *("unshare", "--pid", "--fork", "--kill-child", "--mount", "--uts", "--mount-proc"),
            *(("sh", "-euc", _PIVOT, "pivot") if _is_chroot() else ("sh", "-euc")),
            *(_BOOT, "boot", str(self.folder), self.name),
        ]
        run(*detached(self._pid_file, log, command))
        wait_until(lambda: self.pid is not None, f"{self.name} boots; see {log}", 10.0)

    def power_off(self) -> None:
        """End all its processes at once; return when they have ended."""
        holder, pid = read_pid(self._pid_file), self.pid
        if pid is None:
            return
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{holder}").exists(), f"{self.name} is off")
        self._pid_file.unlink()

    def run(self, *command: str | Path, input: str | None = None, seconds_max: float = 60.0) -> str:
        """Run a program there; return what it wrote.

        Raises:
            CommandError: it failed, took too long, or the machine is off.
        """
        return run(*self.entering(), *command, input=input, seconds_max=seconds_max)

    def entering(self) -> tuple[str, ...]:
        """Return the command prefix that runs a command there.

        Raises:
            CommandError: the machine is off.
        """
        pid = self.pid
        if pid is None:
            raise CommandError(f"{self.name} is off")
        namespaces = ("--mount", "--pid", "--net", "--uts")
        return ("nsenter", f"--target={pid}", "--root", *namespaces)  # This may be a chroot.

    def start(self, name: str, *command: str | Path) -> None:
        """Start a background program there, unless it runs."""
        if not self.is_running(name):
            pid_file = self.folder / "run" / f"{name}.pid"
            pid_file.unlink(missing_ok=True)
            self.run(*detached(pid_file, self.folder / "log" / f"{name}.log", command))
            wait_until(lambda: read_pid(pid_file) is not None, f"{name} starts on {self.name}")

    def is_running(self, name: str) -> bool:
        """Whether a background program runs there."""
        pid = read_pid(self.folder / "run" / f"{name}.pid")
        if pid is None or self.pid is None:
            return False
        with contextlib.suppress(CommandError):
            self.run("kill", "-0", str(pid))
            return True
        return False

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a background program there.

        Raises:
            CommandError: it does not run.
        """
        pid = read_pid(self.folder / "run" / f"{name}.pid")
        self.run("kill", f"-{number.name.removeprefix('SIG')}", str(pid))


def _is_chroot() -> bool:
    which = ("stat", "--format=%d:%i", "/")
    return run(*which) != run("nsenter", "--mount=/proc/self/ns/mnt", *which)
