import pytest

from millrace.cli.console.output import table_lines

COLUMNS = ["PARTITION", "LEADER", "REPLICAS", "ELIGIBLE", "RECORDS", "LAG"]
ROWS: list[list[object]] = [
    [0, 1, "1, 2, 3", None, 1_234_567, "2: 0, 3: 1,048 (1.2 s)"],
    [1, None, "2, 3, 1", None, 5, None],
]


def test_a_table_has_a_line_for_each_row_where_it_fits() -> None:
    lines = table_lines(COLUMNS, ROWS, None)
    assert lines == [
        "PARTITION  LEADER  REPLICAS  ELIGIBLE    RECORDS  LAG",
        "        0       1  1, 2, 3          -  1,234,567  2: 0, 3: 1,048 (1.2 s)",
        "        1       -  2, 3, 1          -          5  -",
    ]
    assert table_lines(COLUMNS, ROWS, max(map(len, lines))) == lines


def test_a_table_that_is_too_wide_loses_the_columns_that_say_nothing() -> None:
    assert table_lines(COLUMNS, ROWS, 65)[0] == "PARTITION  LEADER  REPLICAS    RECORDS  LAG"


def test_the_last_column_of_a_table_that_is_too_wide_is_wrapped_between_words() -> None:
    assert table_lines(COLUMNS, ROWS, 52) == [
        "PARTITION  LEADER  REPLICAS    RECORDS  LAG",
        "        0       1  1, 2, 3   1,234,567  2: 0, 3:",
        "                                        1,048 (1.2",
        "                                        s)",
        "        1       -  2, 3, 1           5  -",
    ]


def test_a_row_that_fits_nowhere_becomes_a_line_for_each_cell() -> None:
    assert table_lines(COLUMNS, ROWS, 30) == [
        "PARTITION  0",
        "LEADER     1",
        "REPLICAS   1, 2, 3",
        "RECORDS    1,234,567",
        "LAG        2: 0, 3: 1,048 (1.2 s)",
        "",
        "PARTITION  1",
        "LEADER     -",
        "REPLICAS   2, 3, 1",
        "RECORDS    5",
        "LAG        -",
    ]


@pytest.mark.parametrize("width", [None, 5])
def test_a_table_without_rows_is_its_names(width: int | None) -> None:
    assert table_lines(["NAME", "SIZE"], [], width) == ["NAME  SIZE"] * (width is None)
