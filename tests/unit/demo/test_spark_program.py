"""What Spark lacks is told before it starts; what it leaves when it is killed is removed."""

import time
from pathlib import Path

import pytest
from demo.spark_program import SparkProgram, missing

pytest.importorskip("pyspark", reason="needs pyspark: sh requirements/install.sh spark")


def java(folder: Path, version: str) -> str:
    """Make a `java` that says its version as real ones do; return its folder."""
    folder.mkdir(parents=True)
    program = folder / "java"
    program.write_text(
        f"#!/bin/sh\necho 'Picked up JAVA_TOOL_OPTIONS: -Xint' >&2\necho '{version}' >&2\n"
    )
    program.chmod(0o755)
    return str(folder)


NEW, OLD = 'openjdk version "21.0.2" 2024-01-16', 'openjdk version "11.0.22" 2024-01-16'


@pytest.mark.parametrize(
    ("on_path", "told"),
    [
        (NEW, ""),
        ('openjdk version "17" 2021-09-14', ""),
        ('openjdk version "17-ea"', ""),
        (OLD, "needs Java 17 or later, found Java 11"),
        ('java version "1.8.0_402"', "found Java 8"),
        ("no java here", "found none"),
        (None, "found none"),
    ],
)
def test_a_java_on_the_path_has_to_be_new_enough(
    on_path: str | None, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", java(tmp_path / "bin", on_path) if on_path else str(tmp_path))
    assert told in missing()
    assert bool(missing()) == bool(told)
    assert ("apt-get install" in missing()) == bool(told)


def test_java_home_counts_before_the_path_as_it_does_for_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = java(tmp_path / "old" / "bin", OLD), java(tmp_path / "new" / "bin", NEW)
    monkeypatch.setenv("PATH", new)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    assert f"JAVA_HOME={tmp_path / 'old'}: Java 11" in missing()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    assert f"JAVA_HOME={tmp_path / 'gone'}: none" in missing()
    monkeypatch.setenv("JAVA_HOME", "")
    assert not missing()
    monkeypatch.setenv("PATH", old)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    assert not missing()


LITTERS = """
import os, pathlib, shlex, time
option = shlex.split(os.environ["JAVA_TOOL_OPTIONS"])[-1]
folder = pathlib.Path(option.removeprefix("-Djava.io.tmpdir="))
(folder / "blockmgr").mkdir()
print(folder, flush=True)
time.sleep(60)
"""


def test_what_a_killed_program_leaves_is_removed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(LITTERS)
    log = tmp_path / "program.log"
    program = SparkProgram(tmp_path / "program.py", log=log)
    seen = set()
    for _ in range(2):  # It can be started again.
        log.unlink(missing_ok=True)
        program.start()
        deadline = time.monotonic() + 30
        while not (log.exists() and log.read_text().endswith("\n")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        folder = Path(log.read_text().strip())
        assert (folder / "blockmgr").is_dir()
        program.kill()
        assert not folder.exists()
        seen.add(folder)
    assert len(seen) == 2
