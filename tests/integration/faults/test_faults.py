"""A short fixed set of real faults, of every kind; `make faults` does all of them, for any length.

By day one cluster meets a fault of each kind; at night each kind has a cluster of its own. What the
machine cannot inject is skipped with the reason.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ONE_OF_EACH = "F79,F02,F11,F24,F27,F19,F41,F67,F76,F84"
KINDS = {
    "processes": "F02,F01,F39,F08,F03",
    "links": "F11,F17,F14,F65",
    "disks": "F04,F22,F24,F36,F06",
    "damage": "F27,F28,F29,F30",
    "clocks and metadata": "F19,F21,F40,F55,F71",
    "what is put back": "F41,F45,F36b",
    "groups and quotas": "F66,F67,F68,F72b",
    "compaction": "F76,F77,F78",
    "transactions": "F83,F84,F85,F86,F87",
    "clients of Kafka": "F88,F89,F90,F91,F92",
}
SECONDS_MAX = 900
"""On a slow machine each of ten faults may take more than a minute until all has healed."""
LINES_SHOWN = 40


@pytest.mark.timeout(SECONDS_MAX + 30)
@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(ONE_OF_EACH, id="one of each kind"),
        *(
            pytest.param(settings, id=kind, marks=pytest.mark.nightly)
            for kind, settings in KINDS.items()
        ),
    ],
)
def test_under_real_faults_nothing_is_lost_doubled_or_reordered(
    faults: str, tmp_path: Path
) -> None:
    wanted = faults.split(",")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.faults"),
            *("--faults", faults, "--folder", str(tmp_path)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    said = "\n".join(done.stderr.splitlines()[-LINES_SHOWN:])
    assert done.stdout, said
    summary = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0, f"{summary['failures']} {summary['anomalies']}\n{said}"
    absent = summary["not_exercised"]
    missing = [
        fault_id
        for fault_id in wanted
        if fault_id not in absent and fault_id not in summary["faults"]
    ]
    assert not missing, f"no effect was seen of {missing}:\n{said}"
    assert summary["acknowledged"] > 0 or set(wanted) <= absent.keys()
    if left_out := {fault_id: absent[fault_id] for fault_id in wanted if fault_id in absent}:
        pytest.skip(f"this machine cannot inject {left_out}")
