"""Writes the results of runs as a table, docs/kubernetes-faults.md, and as JSON beside it.

    python -m e2e.faults.page OUTPUT...

Each file is the standard output of `python -m e2e.faults`; the results are added up.
"""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from e2e.cluster.commands import run
from e2e.cluster.directories import ROOT

Summary = dict[str, Any]

PAGE: Final = ROOT / "docs" / "kubernetes-faults.md"
DATA: Final = ROOT / "docs" / "bench" / "e2e_faults.json"

_BEGIN, _END = "<!-- measured -->", "<!-- /measured -->"
_ADDED: Final = ("seen", "acknowledged", "failed", "lost", "doubled")


def merged(summaries: Sequence[Summary]) -> Summary:
    """Return the sum of several runs' results."""
    scenarios: dict[str, Summary] = {}
    for summary in summaries:
        for name, found in summary["scenarios"].items():
            scenarios[name] = _added(scenarios[name], found) if name in scenarios else found
    counts: dict[str, dict[str, int]] = {
        name: dict(sum((Counter(summary[name]) for summary in summaries), Counter()))
        for name in ("not_seen", "anomalies")
    }
    sums = {
        name: sum(summary[name] for summary in summaries)
        for name in ("rounds", "good", "seen", "acknowledged")
    }
    failures = [failure for summary in summaries for failure in summary["failures"]]
    return {**sums, "scenarios": dict(sorted(scenarios.items())), **counts, "failures": failures}


def _added(one: Summary, other: Summary) -> Summary:
    stalls = [summary["longest_stall_s"] for summary in (one, other)]
    return {
        "what": other["what"],
        "last_seen": other["last_seen"] or one["last_seen"],
        **{name: one[name] + other[name] for name in _ADDED},
        "longest_stall_s": None if None in stalls else max(stalls),
        "longest_s": max(one["longest_s"], other["longest_s"]),
    }


def table(summary: Summary) -> str:
    """Return the lines of the table, and of its sum."""
    lines = [
        "| scenario | injected fault | effect, as last seen | times seen | values acknowledged "
        "meanwhile | failed | lost | doubled | longest stall of a partition, s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, found in summary["scenarios"].items():
        stall = "" if found["longest_stall_s"] is None else found["longest_stall_s"]
        cells = [
            *(name, found["what"], found["last_seen"].replace("|", "/"), found["seen"]),
            *(found["acknowledged"], found["failed"], found["lost"], found["doubled"], stall),
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    anomalies = summary["anomalies"] or "none"
    lines += [
        "",
        f"{summary['seen']} faults in {summary['rounds']} rounds, {summary['good']} of them good; "
        f"{summary['acknowledged']} values acknowledged; anomalies: {anomalies}.",
    ]
    return "\n".join(lines)


def main() -> None:
    """Write the page's table and the JSON."""
    outputs = [Path(path).read_text().splitlines()[-1] for path in sys.argv[1:]]
    summary = merged([json.loads(output) for output in outputs])
    commit = run("git", "-C", ROOT, "rev-parse", "--short", "HEAD").strip()
    measured = f"Measured on {datetime.now(UTC):%Y-%m-%d}, two cores, commit {commit}."
    DATA.write_text(json.dumps(summary | {"commit": commit}, indent=1) + "\n")
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    after = rest.partition(_END)[2]
    PAGE.write_text(f"{before}{_BEGIN}\n\n{measured}\n\n{table(summary)}\n\n{_END}{after}")


if __name__ == "__main__":
    main()
