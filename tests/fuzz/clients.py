"""What clients read that others wrote: kubeconfigs, checkpoints, people's files."""

import io
import json
import os
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final
from unittest import mock

from millrace.cli import profiles
from millrace.cli.console.failures import Failure
from millrace.cli.groups.group_reset import read_positions
from millrace.cli.moves import assignment_file
from millrace.cli.records.sources import RecordMapping, read_records
from millrace.core.errors import InvalidConfigError
from millrace.runtime.kubernetes.access import from_kubeconfig
from millrace.spark.cluster.offsets import Offsets
from millrace.spark.errors import CheckpointError

_FOLDER: Final = Path(tempfile.mkdtemp(prefix="millrace-fuzz-"))
_TEXT_MAX: Final = 20_000


def fuzz_kubeconfig(data: bytes) -> None:
    """A kubeconfig: access to an API server, or refused. No program that it names is run."""
    path = _FOLDER / "kubeconfig"
    path.write_bytes(data)
    failed = subprocess.TimeoutExpired("a program", 1)
    with mock.patch.object(subprocess, "run", side_effect=failed):
        try:
            access = from_kubeconfig(path)
        except InvalidConfigError as error:
            _check_length(error.message)
            return
        assert all(type(text) is str for text in (access.server, access.namespace))
        assert type(access.tls_server_name) in (str, type(None))
        with suppress(OSError, UnicodeDecodeError):
            assert type(access.token()) in (str, type(None))


def fuzz_spark_checkpoint(data: bytes) -> None:
    """Offsets that a checkpoint has kept: refused, or those that are written so."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(value, dict):
        return  # Spark itself has offsets as objects.
    try:
        found = Offsets.from_dict(value)
    except CheckpointError as error:
        _check_length(str(error))
        return
    again = Offsets.from_dict(found.to_dict())
    assert again.to_dict() == found.to_dict()
    assert again.positions == found.positions
    assert all(0 <= position.offset < 1 << 63 for position in found.positions.values())


_MAPPINGS: Final = (
    RecordMapping(),
    RecordMapping(key="a", value="b", timestamp="c", headers="d", null_value="-"),
    RecordMapping(key="key", value="value", timestamp="timestamp", headers="headers"),
    RecordMapping(key_separator=b"\t", null_value="null", as_text=True),
)
_FORMATS: Final = ("lines", "json", "csv")


def fuzz_cli_files(data: bytes) -> None:
    """Files that people give to commands, by the first byte: profiles, plans, positions, records.

    Read, or one message that says what is wrong.
    """
    number, contents = data[0] if data else 0, data[1:]
    try:
        if number == 0:
            _read_profiles(contents)
        elif number == 1:
            plan = assignment_file.parse(contents, "plan.json")
            again = assignment_file.text(assignment_file.document(plan, plan))
            assert assignment_file.parse(again.encode(), "plan.json") == plan
        elif number == 2:
            read_positions(contents, "positions.json")
        else:
            mapping = _MAPPINGS[number // len(_FORMATS) % len(_MAPPINGS)]
            _read_records(contents, _FORMATS[number % len(_FORMATS)], mapping)
    except Failure as failure:
        _check_length(failure.message)


def _read_profiles(contents: bytes) -> None:
    (_FOLDER / "millrace").mkdir(exist_ok=True)
    (_FOLDER / "millrace" / "config.toml").write_bytes(contents)
    with mock.patch.dict(os.environ, {"XDG_CONFIG_HOME": str(_FOLDER)}):
        found = profiles.load()
        found.store()
        assert profiles.load() == found


def _read_records(contents: bytes, file_format: str, mapping: RecordMapping) -> None:
    last = 0
    for columns in read_records(io.BytesIO(contents), "file", file_format, mapping):
        assert len(columns.values) == len(columns.numbers) > 0
        assert columns.numbers[0] > last
        last = columns.numbers[-1]


def _check_length(text: str) -> None:
    assert len(text) <= _TEXT_MAX, "an answer that is much larger than its question"
