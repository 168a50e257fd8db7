"""Partitions' states by their epochs: C24, in one pass.

A partition epoch is the version of a register: all observers show the same state for it. The store
shows each stored state once, in order; a step may skip epochs, as it may combine several changes.
Other observers may miss states, but never go back.

`details` of a `metadata` operation: `key`, `partition_epoch`, `leader_epoch`, `controller_epoch`,
`leader` (-1 is none), `isr` and `replicas` as lists of broker ids.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests.checkers.history import STORE, Op
from tests.checkers.report import Anomaly

NO_LEADER = -1


def anomalies(history: Iterable[Op]) -> Iterator[Anomaly]:
    """Yield changes that metadata must not make."""
    states: dict[tuple[int, int], Mapping[str, Any]] = {}  # By key and partition epoch.
    latest: dict[tuple[str, int], Mapping[str, Any]] = {}  # By observer and key.
    leaders: dict[tuple[int, int], int] = {}  # By key and leader epoch.
    for op in history:
        if op.f != "metadata":
            continue
        state = op.details
        key, version = state["key"], state["partition_epoch"]
        what = f"key {key}, partition epoch {version}, seen by {op.process}"
        known = states.setdefault((key, version), state)
        if known != state:
            yield Anomaly("metadata-fork", f"{what}: {known} and {state}", (op.index,))
            continue
        if known is state:
            yield from _judge_state(state, what, op)
            leader = leaders.setdefault((key, state["leader_epoch"]), state["leader"])
            if leader != state["leader"]:
                yield Anomaly(
                    "two-leaders",
                    f"{what}: {leader} and {state['leader']} in epoch {state['leader_epoch']}",
                    (op.index,),
                )
        before = latest.get((op.process, key))
        latest[op.process, key] = state
        if before is not None:
            yield from _judge_step(before, state, what, op)


def _judge_state(state: Mapping[str, Any], what: str, op: Op) -> Iterator[Anomaly]:
    isr, leader = state["isr"], state["leader"]
    if not set(isr) <= set(state["replicas"]) or leader not in (NO_LEADER, *isr):
        yield Anomaly(
            "isr-outside-replicas",
            f"{what}: leader {leader}, ISR {isr}, replicas {state['replicas']}",
            (op.index,),
        )


def _judge_step(
    before: Mapping[str, Any], state: Mapping[str, Any], what: str, op: Op
) -> Iterator[Anomaly]:
    old, new = before["partition_epoch"], state["partition_epoch"]
    if op.process == STORE and new <= old:
        yield Anomaly("metadata-repeat", f"{what}: after partition epoch {old}", (op.index,))
    elif (
        new < old
        or state["leader_epoch"] < before["leader_epoch"]
        or state["controller_epoch"] < before["controller_epoch"]
    ):
        yield Anomaly("metadata-regression", f"{what}: {state} after {before}", (op.index,))
