"""The pipeline's story on made-up flights: real brokers, a real Spark, and both are killed."""

import zipfile
from pathlib import Path

import pytest
from demo import delays, pipeline
from demo.aircraft import expected_places
from demo.dataset import read_flights, read_weather
from demo.departures import check_departures
from demo.spark_program import SparkProgram, missing
from demo.up_process import ClusterProcess
from tests.integration.running_broker import wait_until

ROWS = 6_000
AIRCRAFT = 700


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = (
        f"{'UA' if i % 3 else 'AA'},{i % 1000},{'JFK' if i % 2 else 'EWR'},{i % 24},"
        f"2013-01-{1 + i // 24 % 28:02}T{i % 24:02}:00:00Z,{'NA' if i % 50 == 0 else i % 90 - 10},"
        f"{f'N{i % AIRCRAFT}' if i % 9 else 'NA'},{('ATL', 'ORD', 'MIA')[i % 3]}\n"
        for i in range(ROWS)
    )
    with zipfile.ZipFile(tmp_path / "flights.csv.zip", "w") as archive:
        header = "carrier,flight,origin,hour,time_hour,dep_delay,tailnum,dest\n"
        archive.writestr("flights.csv", header + "".join(rows))
    hours = (
        f"{origin},2013-01-{1 + i // 24:02}T{i % 24:02}:00:00Z,{0.01 if i % 7 == 0 else 0.0},5\n"
        for origin in ("JFK", "EWR")
        for i in range(14 * 24)
    )
    (tmp_path / "weather.csv").write_text("origin,time_hour,precip,wind_speed\n" + "".join(hours))
    return tmp_path


@pytest.mark.timeout(600)  # Spark starts twice.
@pytest.mark.nightly
def test_what_spark_writes_is_exact_although_a_broker_and_the_program_are_killed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if lacks := missing():
        pytest.skip(lacks)
    flights, weather = read_flights(folder), read_weather(folder)
    found = pipeline.run(folder, flights, weather)
    assert "of the Spark program" in capsys.readouterr().out
    expected = delays.expected(flights.table, weather.table)
    assert sum(row[0] for row in expected.values()) == ROWS
    assert any(row[3] for row in expected.values())
    assert found.in_topic == found.in_parquet == expected
    assert found.places == expected_places(flights)
    assert sum(aircraft for aircraft, _ in found.places.values()) == AIRCRAFT
    checks = list(check_departures(flights, found.departures))
    assert [check for check in checks if not check.holds] == []
    delays.draw(found.in_topic, folder / "picture.png")
    assert (folder / "picture.png").stat().st_size > 10_000


class Cluster(ClusterProcess):
    """Of no brokers."""

    def __init__(self, code: int) -> None:
        self._code = code

    def stop(self) -> int:
        return self._code


@pytest.mark.parametrize(
    ("of_program", "of_brokers", "told"),
    [
        (0, 0, ""),
        (3, 0, "the Spark program ended with 3 instead of 0; its log ends with\nready"),
        (0, 4, "the brokers ended with 4 instead of 0"),
    ],
)
def test_an_end_that_is_not_clean_is_told(
    of_program: int, of_brokers: int, told: str, tmp_path: Path
) -> None:
    source = tmp_path / "program.py"
    source.write_text(
        "import signal, sys\n"
        f"signal.signal(signal.SIGTERM, lambda *_: sys.exit({of_program}))\n"
        "print('ready', flush=True)\nsignal.pause()\n"
    )
    program = SparkProgram(source, log=tmp_path / "log").start()
    try:
        wait_until(lambda: "ready" in program.log_end(), "it waits for its end")
        if not told:
            end(program, of_brokers)
        else:
            with pytest.raises(RuntimeError, match=told):
                end(program, of_brokers)
    finally:
        program.kill()


def end(program: SparkProgram, of_brokers: int) -> None:
    program.end()
    pipeline.stop(Cluster(of_brokers))
