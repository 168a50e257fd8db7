"""Brokers' hosts: network namespaces on one bridge, and faults of the network.

A process that does nothing else holds each namespace, so no namespace outlives the run. The
addresses are `10.77.0.1` and on; this process, the clients' host, is at `10.77.0.254`. A routing
rule by source drops packets where they arrive. It needs neither netfilter nor a kernel module, and
can drop one direction alone.
"""

import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

CLIENTS: Final = "10.77.0.254"
_LOCAL_RULE: Final = "100"
_DROP_RULE: Final = "10"
_READY_SECONDS_MAX: Final = 10.0


def run(*command: str) -> str:
    """Run a tool; return what it prints.

    Raises:
        RuntimeError: it failed.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


class Host:
    """One host: its address, and the prefix of commands that run there.

    Attributes:
        enter: the prefix; empty without namespaces, and then the network cannot be broken.
    """

    def __init__(self, address: str, enter: Sequence[str] = ()) -> None:
        self.address = address
        self.enter = list(enter)
        self._dropped: set[str] = set()
        self._holder: subprocess.Popen[bytes] | None = None

    def run(self, *command: str) -> str:
        """Run a tool on this host."""
        return run(*self.enter, *command)

    def drop_from(self, source: str) -> None:
        """Drop every packet from a source."""
        if source not in self._dropped:
            self.run("ip", "rule", "add", "pref", _DROP_RULE, "from", source, "blackhole")
            self._dropped.add(source)

    def throttle(self, kilobits: int, *, burst_kilobytes: int = 4, queue_ms: int = 200) -> None:
        """Limit the rate of outgoing packets; drop packets that would wait too long."""
        self.run(
            *("tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", f"{kilobits}kbit"),
            *("burst", f"{burst_kilobytes}kb", "latency", f"{queue_ms}ms"),
        )

    def throttled_packets(self) -> tuple[int, int]:
        """Return how many packets the limit delayed, and how many it dropped."""
        words = self.run("tc", "-s", "qdisc", "show", "dev", "eth0").replace(",", " ").split()
        dropped, over = words.index("(dropped"), words.index("overlimits")
        return int(words[over + 1]), int(words[dropped + 1])

    def reset_connections(self) -> int:
        """Reset every established TCP connection of this host; return how many there were."""
        before = self._connections()
        with suppress(RuntimeError):  # It fails for connections that have just ended.
            self.run("ss", "-K", "-t", "state", "established", "dst", "10.77.0.0/24")
        return len(before - self._connections())

    def _connections(self) -> set[str]:
        lines = self.run(
            "ss", "-H", "-t", "-n", "state", "established", "dst", "10.77.0.0/24"
        ).splitlines()
        return {" ".join(line.split()[-2:]) for line in lines}

    def heal(self) -> None:
        """Remove all rules and limits."""
        for source in sorted(self._dropped):
            self.run("ip", "rule", "del", "pref", _DROP_RULE, "from", source)
        self._dropped.clear()
        if self.enter:
            with suppress(RuntimeError):  # There may be none.
                self.run("tc", "qdisc", "del", "dev", "eth0", "root")

    def close(self) -> None:
        """Release the namespace."""
        if self._holder is not None:
            self._holder.kill()
            self._holder.wait()


class NamespacedHost(Host):
    """A host in a namespace of its own, with one interface on the bridge."""

    def __init__(self, number: int) -> None:
        holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        try:
            super().__init__(
                f"10.77.0.{number + 1}", ["nsenter", f"--net=/proc/{holder.pid}/ns/net", "--"]
            )
            self._holder = holder
            _wait_for_namespace(holder.pid)
            link = f"host{number}"
            run(
                *("ip", "link", "add", link, "type", "veth"),
                *("peer", "name", "eth0", "netns", str(holder.pid)),
            )
            run("ip", "link", "set", link, "master", "bridge0", "up")
            self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
            self.run("ip", "link", "set", "eth0", "up")
            self.run("ip", "link", "set", "lo", "up")
            _make_room_for_rules(self)
        except BaseException:
            holder.kill()
            holder.wait()
            raise


class BridgeHost(Host):
    """This process's host, with the bridge; the process must have its own network namespace."""

    def __init__(self) -> None:
        super().__init__(CLIENTS)
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "bridge0", "type", "bridge")
        run("ip", "address", "add", f"{CLIENTS}/24", "dev", "bridge0")
        run("ip", "link", "set", "bridge0", "up")
        _make_room_for_rules(self)

    def close(self) -> None:
        """Remove the bridge, for the next cluster of this process."""
        run("ip", "rule", "add", "pref", "0", "table", "local")
        run("ip", "rule", "del", "pref", _LOCAL_RULE)
        run("ip", "link", "del", "bridge0")


def _make_room_for_rules(host: Host) -> None:
    """Move the rule that delivers after the rules that drop."""
    host.run("ip", "rule", "add", "pref", _LOCAL_RULE, "table", "local")
    host.run("ip", "rule", "del", "pref", "0")


def _wait_for_namespace(pid: int) -> None:
    ours = run("readlink", "/proc/self/ns/net")
    deadline = time.monotonic() + _READY_SECONDS_MAX
    while run("readlink", f"/proc/{pid}/ns/net") == ours:
        if time.monotonic() > deadline:
            raise RuntimeError("no network namespace was made")
        time.sleep(0.01)
