"""Passes of faults that are kept belong to the code that was committed when they were made."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from bench.figures import faults
from bench.measure import Bench

Git = Callable[..., None]


@pytest.fixture
def git(tmp_path: Path) -> Git:
    """Run git in a new checkout that has a file of the broker's and one of the documents'."""

    def run(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    run("init", "--quiet")
    for folder in ("broker", "docs"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text("1")
    run("add", ".")
    run("commit", "--quiet", "--message", "first")
    return run


def test_code_that_is_committed_has_a_version(git: Git, tmp_path: Path) -> None:
    first = faults.committed_version(tmp_path)
    (tmp_path / "docs" / "file").write_text("2")
    assert first == faults.committed_version(tmp_path) != ""
    (tmp_path / "broker" / "file").write_text("2")
    assert faults.committed_version(tmp_path) == ""
    git("commit", "--quiet", "--all", "--message", "second")
    assert faults.committed_version(tmp_path) not in ("", first)


def test_a_folder_that_is_no_checkout_has_no_version(tmp_path: Path) -> None:
    assert faults.committed_version(tmp_path) == ""


def test_a_measurement_goes_on_after_the_passes_that_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[str] = []

    def play(_module: str, *options: str) -> dict[str, object]:
        if len(played) == 3:
            raise KeyboardInterrupt
        played.append(options[1])
        return {
            "good": options[1] != "2",
            "seen": 1,
            "faults": {"F01": {"seen": 1}},
            "acknowledged": 1,
            "not_seen": {},
            "not_exercised": {},
            "anomalies": {},
            "failures": [],
        }

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(faults, "summed_up", play)
    monkeypatch.setattr(faults, "committed_version", lambda: "abc")
    bench = Bench(rounds=2, seconds=1, directory=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        faults.measure(bench)
    assert played == ["1", "2", "3"]
    played.clear()
    outcome = faults.measure(bench)
    assert played == ["4"]
    assert outcome.values["faults seen in good passes"] == 3
    assert outcome.values["passes that were not good"] == 1
