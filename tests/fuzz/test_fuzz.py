"""The kept corpus on every run, and some seconds of fuzzing after it."""

import importlib.util
import os
from inspect import getmembers, iscoroutinefunction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz.answers import CALLS
from tests.fuzz.running import Fuzzed, fuzz, read_statistics
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


def test_memory_that_grows_is_noticed() -> None:
    printed = (
        "#2\tINITED cov: 30 ft: 30 corp: 6/43b exec/s: 0 rss: 71Mb\n"
        "#1024\tpulse  cov: 31 ft: 31 corp: 7/19b lim: 2048 exec/s: 512 rss: 90Mb\n"
        "#2048\tNEW    cov: 32 ft: 32 corp: 8/29b lim: 2048 exec/s: 512 rss: 130Mb L: 8/8 MS: 3\n"
        "#4000\tDONE   cov: 32 ft: 32 corp: 8/29b lim: 2048 exec/s: 512 rss: 170Mb\n"
        "stat::peak_rss_mb: 170\n"
    )
    assert read_statistics(printed) == Fuzzed(4000, 80)
