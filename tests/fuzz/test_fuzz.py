"""The kept corpus on every run, and some seconds of fuzzing after it."""

import importlib.util
import os
from inspect import getmembers, iscoroutinefunction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz.answers import CALLS
from tests.fuzz.running import Fuzzed, fuzz, memory_line, read_statistics
from tests.fuzz.targets import TARGETS, load

from millrace.client import Admin

CORPUS = Path(__file__).parent / "corpus"
SECONDS = int(os.environ.get("FUZZ_SECONDS", "3"))


@pytest.mark.parametrize("target", TARGETS)
def test_the_kept_corpus_breaks_nothing(target: str) -> None:
    function = load(target)
    inputs = sorted((CORPUS / target).iterdir())
    assert inputs
    for path in inputs:
        function(path.read_bytes())


@pytest.mark.parametrize("target", TARGETS)
@given(data=st.data())
@settings(max_examples=100)
def test_bytes_at_random_break_nothing(target: str, data: st.DataObject) -> None:
    known = sorted((CORPUS / target).iterdir())
    seed = bytearray(data.draw(st.sampled_from(known)).read_bytes())
    at = data.draw(st.integers(0, len(seed)))
    seed[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=16))
    load(target)(bytes(seed))


@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="atheris has no wheel for this platform and Python",
)
@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("target", TARGETS)
def test_seconds_of_fuzzing_break_nothing(target: str) -> None:
    assert fuzz(target, SECONDS).executions


def test_the_answers_to_every_call_of_admin_are_fuzzed() -> None:
    calls = {name for name, call in getmembers(Admin, iscoroutinefunction) if name[0] != "_"}
    assert set(CALLS) == calls - {"close"}


def test_memory_that_grows_is_noticed_and_what_an_input_takes_for_a_moment_is_not() -> None:
    sizes_mb = {0: 71, 900: 90, 1024: 91, 2048: 130, 3900: 170}
    lines = [memory_line(count, size << 20) for count, size in sizes_mb.items()]
    lines.insert(3, "#2048\tpulse  cov: 32 ft: 32 corp: 8/29b lim: 2048 exec/s: 512 rss: 700Mb")
    lines += ["stat::number_of_executed_units: 4000", "stat::peak_rss_mb:              700"]
    assert read_statistics("\n".join(lines)) == Fuzzed(4000, 79)
