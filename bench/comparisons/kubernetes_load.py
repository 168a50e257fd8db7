"""What clients in a pod see while brokers restart or die, or while the API server is unreachable.

The writer of each partition sends a few records with `acks=all`, waits for all, and continues after
a short pause (`e2e/load`). A write lasts from its first send to its last acknowledgement.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from bench.real_kubernetes import fresh_namespace
from e2e.cluster.providers import Cluster
from e2e.guard.accounts import GUARDED, Account, allow
from e2e.installed import Namespace
from e2e.load.pod import LoadPod
from e2e.load.program import Settings
from tests.checkers.history import INVOKE, OK, Op

TOPIC = "orders"
PARTITIONS = 12
_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One write of one partition, by the clock of the load.

    Attributes:
        is_acknowledged: whether all of its records were.
    """

    key: int
    begun_ns: int
    ended_ns: int
    is_acknowledged: bool

    @property
    def seconds(self) -> float:
        """How long it waited."""
        return (self.ended_ns - self.begun_ns) / 1e9


@contextmanager
def cluster_under_load(
    kubernetes: Cluster, *, is_guarded: bool = False
) -> Iterator[tuple[Namespace, LoadPod]]:
    """Yield a namespace with a cluster of three, `logs`, under a running load.

    Args:
        kubernetes: where.
        is_guarded: whether the cluster has TLS and access control.
    """
    with fresh_namespace(kubernetes) as namespace:
        namespace.make_cluster("logs", **(GUARDED if is_guarded else {}))
        namespace.make_topic(TOPIC, "logs", partitions=PARTITIONS, replicas=3)
        account = Account(namespace.name, "load")
        if is_guarded:
            account.make(kubernetes.kubectl)
            allow(namespace, account, ["*"], ["topics", "groups", "transactions"])
        settings = Settings(
            bootstrap=f"logs-bootstrap.{namespace.name}.svc:7092",
            topics=(f"{namespace.name}/{TOPIC}",),
            partitions=PARTITIONS,
            pause_s=_PAUSE_S,
        )
        load = LoadPod(namespace, settings, account=account.name if is_guarded else "")
        load.start()
        yield namespace, load


def writes(history: Iterable[Op]) -> list[Write]:
    """Return the writes of a history, in the order in which they began."""
    begun: dict[str, Op] = {}
    ended: dict[str, tuple[int, int]] = {}
    found: list[Write] = []

    def end(process: str) -> None:
        first = begun.pop(process)
        at, acknowledged = ended.pop(process, (0, 0))
        if at:
            found.append(
                Write(
                    key=first.sends[0].key,
                    begun_ns=first.at_ns,
                    ended_ns=at,
                    is_acknowledged=acknowledged == len(first.sends),
                )
            )

    for op in history:
        if op.f != "send":
            continue
        if op.type == INVOKE:
            if op.process in begun:
                end(op.process)
            begun[op.process] = op
        else:
            _, count = ended.get(op.process, (0, 0))
            ended[op.process] = (op.at_ns, count + (len(op.sends) if op.type == OK else 0))
    for process in list(begun):
        end(process)
    return sorted(found, key=lambda write: write.begun_ns)


def longest_by_key(found: Iterable[Write]) -> Mapping[int, Write]:
    """Return the write that waited longest, of each key."""
    longest: dict[int, Write] = {}
    for write in found:
        if write.key not in longest or write.seconds > longest[write.key].seconds:
            longest[write.key] = write
    return longest
