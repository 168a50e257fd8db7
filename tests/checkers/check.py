"""Runs all checkers over one history; the same for simulated runs and for real processes."""

from collections import Counter
from collections.abc import Mapping, Sequence

from tests.checkers import (
    contents,
    groups,
    metadata,
    order,
    realtime,
    replicas,
    resources,
    transactions,
)
from tests.checkers.history import INVOKE, OK, Op
from tests.checkers.report import ALLOWED, Expectations, Report

AVAILABILITY_NS = 30 * 10**9


def check(
    history: Sequence[Op],
    *,
    modes: Sequence[str] = ("assign",),
    expectations: Expectations | None = None,
    availability_ns: int = AVAILABILITY_NS,
    realtime_lag_ns: int | None = None,
    commit_ns: int | None = None,
    allowances: Mapping[str, int] | None = None,
    log_starts: Mapping[int, int] | None = None,
) -> Report:
    """Judge a history.

    Args:
        history: in order of time.
        modes: of `ALLOWED`; an anomaly is allowed if any mode allows it.
        expectations: what must have happened.
        availability_ns: the longest a write may wait while a window is open.
        realtime_lag_ns: how old the log that a poll sees may be while a window is open; None: only
            measure it.
        commit_ns: the longest a transaction may take while a window is open, in which each must be
            committed for which that is asked; None: only measure it.
        allowances: how much of each resource a process may gain.
        log_starts: offsets below which retention deleted records, by key.
    """
    expectations = expectations or Expectations()
    report = Report(frozenset().union(*(ALLOWED[mode] for mode in modes)))
    seen = contents.Contents(history)
    report.add(contents.anomalies(seen, log_starts))
    report.add(order.anomalies(history))
    report.add(groups.anomalies(history))
    report.add(transactions.anomalies(history))
    report.add(realtime.send_anomalies(history))
    report.add(realtime.end_offset_anomalies(history))
    availability = realtime.Availability(history, availability_ns)
    report.add(availability.anomalies)
    lag = realtime.RealtimeLag(history, realtime_lag_ns)
    report.add(lag.anomalies)
    commits = realtime.Commits(history, commit_ns)
    report.add(commits.anomalies)
    report.add(replicas.anomalies(history))
    report.add(metadata.anomalies(history))
    report.add(resources.anomalies(history, allowances or {}))
    report.measures["longest_wait_s"] = availability.longest_ns / 1e9
    report.measures["longest_lag_s"] = lag.longest_ns / 1e9
    if commits.longest_ns:
        report.measures["longest_transaction_s"] = commits.longest_ns / 1e9
        report.measures["timed_transactions"] = commits.count
    report.measures["acknowledged"] = sum(
        write.outcome == OK for writes in seen.writes.values() for write in writes.values()
    )
    report.measures["records_known"] = sum(map(len, seen.known.values.values()))
    _hold_against(expectations, history, seen, report)
    return report


def _hold_against(
    expectations: Expectations, history: Sequence[Op], seen: contents.Contents, report: Report
) -> None:
    """Note what happened, and which expectations were not met."""
    completed: Counter[str] = Counter()
    went_well: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    leader_changes: Counter[str] = Counter()  # By observer: each may miss some.
    isr_changes: Counter[str] = Counter()
    states: dict[tuple[str, int], tuple[object, object]] = {}
    for op in history:
        if op.f == "fault":
            faults[op.details[0]] += 1
        elif op.f == "metadata":
            seen_by = (op.process, op.details["key"])
            state = (op.details["leader"], op.details["isr"])
            old = states.get(seen_by, state)
            states[seen_by] = state
            leader_changes[op.process] += old[0] != state[0]
            isr_changes[op.process] += old[1] != state[1]
        elif op.type != INVOKE:
            completed[op.f] += 1
            went_well[op.f] += op.type == OK
    leaders = report.measures["leader_changes"] = max(leader_changes.values(), default=0)
    isrs = report.measures["isr_changes"] = max(isr_changes.values(), default=0)
    report.measures["faults"] = faults.total()
    for f, share in expectations.ok_shares.items():
        if went_well[f] == 0 or went_well[f] < share * completed[f]:
            report.missing.append(
                f"{share:.0%} of {f} go well, but {went_well[f]} of {completed[f]} did"
            )
    for fault_id, count in expectations.faults.items():
        if faults[fault_id] < count:
            report.missing.append(f"{fault_id} fires {count} times, but it did {faults[fault_id]}")
    if leaders < expectations.leader_changes:
        report.missing.append(
            f"{expectations.leader_changes} leader changes, but there were {leaders}"
        )
    if isrs < expectations.isr_changes:
        report.missing.append(f"{expectations.isr_changes} ISR changes, but there were {isrs}")
    if expectations.final_polls:
        acknowledged = {
            key
            for key, writes in seen.writes.items()
            if any(write.outcome == OK for write in writes.values())
        }
        for key in sorted(acknowledged - seen.final.keys()):
            report.missing.append(f"key {key} is read to its end last, but it was not")
