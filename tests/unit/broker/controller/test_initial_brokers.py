"""With how many brokers the cluster begins: from a file that may change."""

import asyncio
from pathlib import Path

import pytest

from millrace.broker.controller.initial_brokers import InitialBrokers


def test_a_smaller_number_reaches_a_running_broker_and_a_file_without_one_changes_nothing(
    tmp_path: Path,
) -> None:
    file = tmp_path / "initial-brokers"
    told: list[int] = []
    initial = InitialBrokers(str(file), 1, told.append)
    asyncio.run(initial.look())
    for text in ("3\n", "3", "2", "two", "0", "9" * 30, "\n", "3"):
        file.write_text(text)
        asyncio.run(initial.look())
    file.unlink()
    asyncio.run(initial.look())
    assert told == [3, 2, 3]


def test_a_file_that_cannot_be_read_is_told_once_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[int] = []
    initial = InitialBrokers(str(tmp_path), 1, told.append)  # It is a directory.
    asyncio.run(initial.look())
    asyncio.run(initial.look())
    assert told == []
    assert len(caplog.records) == 1
