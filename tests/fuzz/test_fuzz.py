"""The kept corpus on every run, and some seconds of fuzzing after it."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz.targets import TARGETS

FOLDER = Path(__file__).parent
CORPUS = FOLDER / "corpus"
SECONDS = int(os.environ.get("FUZZ_SECONDS", "10"))


@pytest.mark.parametrize("target", TARGETS)
def test_the_kept_corpus_breaks_nothing(target: str) -> None:
    inputs = sorted((CORPUS / target).iterdir())
    assert inputs
    for path in inputs:
        TARGETS[target](path.read_bytes())


@pytest.mark.parametrize("target", TARGETS)
@given(data=st.data())
@settings(max_examples=200)
def test_bytes_at_random_break_nothing(target: str, data: st.DataObject) -> None:
    known = sorted((CORPUS / target).iterdir())
    seed = bytearray(data.draw(st.sampled_from(known)).read_bytes())
    at = data.draw(st.integers(0, len(seed)))
    seed[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=16))
    TARGETS[target](bytes(seed))


@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="atheris has no wheel for this platform and Python",
)
@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("target", TARGETS)
def test_seconds_of_fuzzing_break_nothing(target: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", target, str(SECONDS)],
        cwd=FOLDER.parents[1],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-6000:]
    assert "stat::number_of_executed_units" in run.stderr
