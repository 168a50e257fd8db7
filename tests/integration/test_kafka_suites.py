"""Tests that nobody here wrote, of Kafka's clients and tools: the short set (`tests/suites`)."""

from pathlib import Path

import pytest
from tests.suites.catalogue import SUITES
from tests.suites.known import judged, known, left_out, short
from tests.suites.outcome import Outcome
from tests.suites.suite import SuiteMissingError
from tests.suites.targets import millrace


@pytest.mark.parametrize("name", [name for name in SUITES if short(name)])
def test_what_passes_against_kafka_passes_here(name: str, tmp_path: Path) -> None:
    suite, tests = SUITES[name], short(name)
    try:
        suite.build()
    except SuiteMissingError as error:
        pytest.skip(str(error))
    with millrace(tmp_path, creates=suite.creates_topics) as target:
        found = list(suite.run(target, tests))
    results = judged(found, known(name), left_out(name), tests)
    assert not {result.test: result.said for result in results if result.outcome is Outcome.FAILED}
    assert results
