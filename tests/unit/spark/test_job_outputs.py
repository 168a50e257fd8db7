"""What judges the jobs' outputs sees what is wrong with one."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
from tests.spark_jobs.expected import difference
from tests.spark_jobs.kills import plan_of, victims_of
from tests.spark_jobs.written import Written

ROWS = pa.table({"carrier": ["UA", "AA", "AA"], "delay": [1, None, None]})


def test_the_order_of_rows_does_not_matter_and_their_number_does() -> None:
    assert difference(ROWS.take([2, 0, 1]), ROWS) == ""
    assert difference(ROWS.select(["delay", "carrier"]), ROWS) == ""
    lost = difference(ROWS.slice(1), ROWS)
    assert "1 are missing, such as ('UA', 1); 0 are too many" in lost
    doubled = difference(ROWS.take([0, 1, 2, 2]), ROWS)
    assert "0 are missing, such as None; 1 are too many, such as ('AA', None)" in doubled
    assert difference(ROWS.select(["carrier"]), ROWS) == "columns ['carrier'], not " + str(
        ROWS.column_names
    )


def write_log(written: Written, name: str, files: list[str]) -> None:
    folder = written.output / "_spark_metadata"
    folder.mkdir(parents=True, exist_ok=True)
    entries = (json.dumps({"path": f"file:///x/{file}", "action": "add"}) for file in files)
    (folder / name).write_text("\n".join(["v1", *entries]))


def test_only_files_that_spark_lists_count(tmp_path: Path) -> None:
    written = Written(tmp_path)
    assert (written.planned(), written.listed(), written.committed()) == (-1, -1, -1)
    names = [f"part-{number}.parquet" for number in range(4)]
    write_log(written, "8", names[:1])
    write_log(written, "9.compact", names[:2])
    write_log(written, "10", names[2:3])
    for name in names:
        pyarrow.parquet.write_table(ROWS, written.output / name)
    assert written.listed() == 10
    assert [path.name for path in written.listed_files()] == names[:3]
    assert (written.marks(), written.leftovers()) == (set(names), 1)
    assert written.table().num_rows == 9


def test_drivers_and_brokers_are_killed_in_turn_and_a_driver_last() -> None:
    assert [kill.who for kill in plan_of(4, seed=1)] == ["broker", "driver", "broker", "driver"]
    assert [kill.who for kill in plan_of(3, seed=1)] == ["driver", "broker", "driver"]
    four = ["coordinator", "broker", "driver", "executor", "coordinator", "broker", "driver"]
    assert [kill.who for kill in plan_of(7, 1, victims_of("shuffled"))] == four
    assert plan_of(8, seed=1) == plan_of(8, seed=1) != plan_of(8, seed=2)
