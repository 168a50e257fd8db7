"""The demo's story on made-up flights, with real brokers, a real producer and a real crash."""

import zipfile
from pathlib import Path

import pytest
from demo.aircraft import check_aircraft
from demo.checks import Check, check_all
from demo.dataset import read_flights, read_weather
from demo.exactly_once import check_copy
from demo.flights import CALLS_IN_FLIGHT_MAX, ROWS_PER_CALL, Crash, report, run
from demo.group import GroupRun, Processed, check_group
from demo.up_process import ClusterProcess

from millrace.client import SyncAdmin

ROWS = 3 * CALLS_IN_FLIGHT_MAX * ROWS_PER_CALL  # So that many calls are in flight half-way.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = (
        f"{'UA' if i % 3 else 'AA'},{i % 1000},{f'N{i % 700}' if i % 9 else 'NA'},{i},"
        f"{i % 300 - 20 if i % 11 else 'NA'}\n"
        for i in range(ROWS)
    )
    with zipfile.ZipFile(tmp_path / "flights.csv.zip", "w") as archive:
        archive.writestr(
            "flights.csv", "carrier,flight,tailnum,distance,dep_delay\n" + "".join(rows)
        )
    (tmp_path / "weather.csv").write_text("origin,temp\nJFK,39.02\nEWR,NA\n")
    return tmp_path


@pytest.mark.timeout(300)  # Its own waits are longer than two minutes.
def test_nothing_is_lost_doubled_or_changed_when_a_leader_is_killed_on_the_way(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flights, weather = read_flights(folder), read_weather(folder)
    came = run(folder, flights, weather)
    told = capsys.readouterr().out
    assert "kill -9 of broker-" in told
    assert "in sync again" in told
    assert "the brokers ended with 0" in told
    checks = [
        *check_all(flights, came.flights),
        *check_all(weather, came.weather),
        *check_group(came.group),
        *check_aircraft(flights, came.aircraft),
        *check_copy(flights, came.delays, came.aborted_delays),
    ]
    assert [check for check in checks if not check.holds] == []
    assert "kill -9 of one, and one more" in told
    assert told.count("lag 0") == 2
    assert "which coordinates them, at " in told


def test_what_a_group_skips_or_mixes_up_is_told() -> None:
    batches = [Processed(1, 0, 0, 9), Processed(2, 0, 10, 19), Processed(3, 1, 0, 4)]
    whole = GroupRun({0: 20, 1: 5}, batches)
    assert [check.holds for check in check_group(whole)] == [True, True]
    repeated = GroupRun({0: 20, 1: 5}, [*batches, Processed(4, 0, 5, 19)])
    assert [check.holds for check in check_group(repeated)] == [True, True]
    assert "15 again" in next(check_group(repeated)).detail
    short = GroupRun({0: 21, 1: 5}, batches)
    assert [check.holds for check in check_group(short)] == [False, True]
    swapped = GroupRun({0: 20, 1: 5}, [Processed(2, 0, 10, 19), Processed(3, 0, 0, 9), batches[2]])
    assert [check.holds for check in check_group(swapped)] == [False, False]


def test_a_failed_check_is_told_and_fails_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    checks = [Check("the sky is blue", True, "seen"), Check("pigs fly", False, "0 of 7")]
    assert not report(checks)
    told = capsys.readouterr()
    assert "ok      the sky is blue: seen" in told.out
    assert "FAILED  pigs fly: 0 of 7" in told.out
    assert told.err == "error: 1 of the checks failed\n"
    assert report(checks[:1])


def test_a_crash_that_never_happened_fails_the_demo(tmp_path: Path) -> None:
    with SyncAdmin("127.0.0.1:1") as admin, pytest.raises(RuntimeError, match="no broker was"):
        Crash(ClusterProcess(tmp_path), admin).story()


def test_brokers_that_cannot_start_are_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("in the way")
    with pytest.raises(RuntimeError, match="did not start") as failure:
        ClusterProcess(tmp_path).start()
    assert str(tmp_path / "data") in str(failure.value)


def test_a_broker_that_does_not_run_cannot_be_killed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="broker-7 does not run"):
        ClusterProcess(tmp_path).kill_named("broker-7")
