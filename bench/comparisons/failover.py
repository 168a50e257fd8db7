"""Leaders killed with -9 under a steady load: seconds until the next acknowledged write.

Every kill chooses a partition: in every third kill its leader is also the controller, in the others
it is not. A killed broker is started again, as by its supervisor. The next kill waits until all
replicas are in sync again and have had some load. The time of a kill ends with the acknowledgement
of the first record that was sent to the partition after it.

Both systems and both clients have default settings: three replicas, two of which must be in sync,
and `acks=all`. Millrace flushes before it acknowledges, by default.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench import acknowledgements
from bench.acknowledgements import Records, percentile, seconds_until_acknowledged
from bench.measure import Bench, Outcome, say
from bench.millrace_cluster import MillraceCluster, running_millrace_cluster
from bench.peers.kafka import Kafka, running_kafka
from bench.processes import LoadFailedError, until
from bench.steady_load import SteadyLoad, steady_load

KILLS_PER_ROUND = 6
KAFKA_KILLS = 6
CONTROLLER_EVERY = 3
"""In every third kill the leader is the controller."""
TOPIC = "under-load"
PARTITIONS = 12
RATE = 1000
"""Records of 1 KB a second, over all partitions."""
RECOVERY_TIMEOUT_S = 90


@dataclass(frozen=True, kw_only=True)
class Kill:
    """One leader that was killed."""

    at: float
    """Monotonic seconds."""
    partition: int
    """The partition whose writes are timed."""
    all_partitions: Sequence[int]
    """All partitions that it led."""
    was_controller: bool


class Victims(ABC):
    """One system under test."""

    @abstractmethod
    def leaders(self) -> dict[int, int]:
        """Return the leader of each partition."""

    @abstractmethod
    def controller(self) -> int:
        """Return the id of the controller."""

    @abstractmethod
    def kill(self, broker_id: int) -> float:
        """Kill a broker, make sure that it restarts, and return the time of the kill."""

    @abstractmethod
    def wait_until_in_sync(self) -> None:
        """Return once all replicas of all partitions are in sync."""

    def wait_for_others(self, broker_id: int) -> None:
        """Return once a broker leads nothing."""
        until(
            lambda: broker_id not in self.leaders().values() or None,
            "other leaders",
            RECOVERY_TIMEOUT_S,
        )


def measure(bench: Bench) -> dict[str, Outcome]:
    """Kill leaders, and return both figures."""
    with (
        running_millrace_cluster(bench.directory / "millrace") as millrace,
        _load(bench.directory, millrace.address, "steady_millrace") as load,
    ):
        millrace.create_topic(TOPIC, PARTITIONS, {})
        load.begin()
        kills = _kill(_Millrace(millrace), KILLS_PER_ROUND * bench.rounds, bench.seconds)
        ours = _summary(kills, load.end())
    with (
        running_kafka(bench.directory / "kafka", nodes=3, replication=3) as kafka,
        _load(bench.directory, kafka.address, "steady_confluent") as load,
    ):
        kafka.create_topic(TOPIC, PARTITIONS, {})
        load.begin()
        kills = _kill(_Kafka(kafka), min(KAFKA_KILLS, len(kills)), bench.seconds)
        theirs = _summary(kills, load.end())
    detail = {"kills": len(ours["each"]), "millrace": ours, "kafka": theirs}
    return {
        "failover": Outcome(
            values={"median in s": ours["p50"]},
            detail=detail,
        ),
        "failover_p99": Outcome(values={"p99 in s": ours["p99"]}, detail=detail),
    }


def _load(directory: Path, address: str, module: str) -> AbstractContextManager[SteadyLoad]:
    return steady_load(directory, address, module, topic=TOPIC, partitions=PARTITIONS, rate=RATE)


def _kill(victims: Victims, count: int, seconds: float) -> list[Kill]:
    kills: list[Kill] = []
    for number in range(1, count + 1):
        time.sleep(seconds)
        controller, leaders = victims.controller(), victims.leaders()
        wants_controller = number % CONTROLLER_EVERY == 0
        chosen = [
            partition
            for partition, leader in leaders.items()
            if (leader == controller) is wants_controller
        ]
        if not chosen:
            raise LoadFailedError(f"nobody fits among the leaders {leaders} of {controller}")
        partition = chosen[number % len(chosen)]
        victim = leaders[partition]
        led = [key for key, leader in leaders.items() if leader == victim]
        killed_at = victims.kill(victim)
        kills.append(
            Kill(
                at=killed_at,
                partition=partition,
                all_partitions=led,
                was_controller=wants_controller,
            )
        )
        victims.wait_until_in_sync()
        say(
            f"kill {number}/{count}, broker {victim}{', the controller' * wants_controller}:"
            f" in sync again after {time.monotonic() - killed_at:.1f} s"
        )
    return kills


def _summary(kills: Sequence[Kill], records: Records) -> dict[str, Any]:
    """Return what the kills cost, in seconds."""
    took = [seconds_until_acknowledged(records, kill.partition, kill.at) for kill in kills]
    slowest = [
        max(
            seconds_until_acknowledged(records, partition, kill.at)
            for partition in kill.all_partitions
        )
        for kill in kills
    ]
    of_controllers = [value for value, kill in zip(took, kills, strict=True) if kill.was_controller]
    of_others = [value for value, kill in zip(took, kills, strict=True) if not kill.was_controller]
    return {
        "p50": median(took),
        "p99": percentile(took, 0.99),
        "controllers_p50": median(of_controllers) if of_controllers else None,
        "others_p50": median(of_others) if of_others else None,
        "slowest_partition_p50": median(slowest),
        "slowest_partition_max": max(slowest),
        "each": took,
        "was_controller": [kill.was_controller for kill in kills],
        "records_not_acknowledged": int(
            (records["acknowledged_ns"] == acknowledgements.NEVER).sum()
        ),
    }


class _Millrace(Victims):
    def __init__(self, cluster: MillraceCluster) -> None:
        self._cluster = cluster

    def leaders(self) -> dict[int, int]:
        return self._cluster.leaders(TOPIC)

    def controller(self) -> int:
        return self._cluster.controller()

    def kill(self, broker_id: int) -> float:
        killed_at = self._cluster.kill(broker_id)
        self.wait_for_others(broker_id)
        return killed_at

    def wait_until_in_sync(self) -> None:
        self._cluster.wait_until_in_sync([TOPIC], RECOVERY_TIMEOUT_S)


class _Kafka(Victims):
    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka

    def leaders(self) -> dict[int, int]:
        return {
            number: partition.leader for number, partition in self._kafka.partitions(TOPIC).items()
        }

    def controller(self) -> int:
        return self._kafka.controller()

    def kill(self, broker_id: int) -> float:
        killed_at = self._kafka.nodes[broker_id].kill()
        self.wait_for_others(broker_id)
        self._kafka.nodes[broker_id].start_again()
        return killed_at

    def wait_until_in_sync(self) -> None:
        def settled() -> bool | None:
            found = self._kafka.partitions(TOPIC).values()
            return (
                all(len(partition.isrs) == len(partition.replicas) for partition in found) or None
            )

        until(settled, "all replicas in sync", RECOVERY_TIMEOUT_S)
