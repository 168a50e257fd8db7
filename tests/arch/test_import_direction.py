"""Imports go one way, and the core stays pure: the contracts of `.importlinter`."""

import subprocess
import sys
from pathlib import Path

from tests.arch.repository import ROOT


def test_every_import_contract_is_kept() -> None:
    # In a process of its own: it configures logging, and switches the loggers off that are there.
    linter = Path(sys.executable).with_name("lint-imports")
    command = [str(linter), "--config", str(ROOT / ".importlinter"), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
