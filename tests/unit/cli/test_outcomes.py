import pyarrow as pa

from millrace.cli.records.outcomes import Outcomes
from millrace.cli.records.sources import RecordColumns
from millrace.core.errors import Appended, MessageTooLargeError, RequestTimedOutError

LARGE = MessageTooLargeError("too large")


def block(first: int, count: int) -> RecordColumns:
    columns = RecordColumns(pa.array([b"v"] * count), unit="line", name="x.txt")
    columns.numbers = range(first, first + count)
    return columns


def test_what_is_written_has_a_count_and_no_problem() -> None:
    outcomes = Outcomes()
    outcomes.add(block(1, 3), {})
    assert (outcomes.written.records, outcomes.written.size_bytes) == (3, 3)
    assert outcomes.problem is None
    assert outcomes.summary() == "3 records written, the last from x.txt, line 3"


def test_the_first_record_that_is_refused_is_the_problem_with_its_place() -> None:
    outcomes = Outcomes()
    outcomes.add(block(1, 3), {1: LARGE, 2: LARGE})
    outcomes.add(block(4, 2), {1: LARGE})
    assert outcomes.problem is not None
    assert outcomes.problem.message == "x.txt, line 2: too large"
    assert LARGE.message == "too large"  # It is others' too.
    assert outcomes.summary() == "2 records written, the last from x.txt, line 4; 3 refused"


def test_what_may_be_written_or_nobody_waits_for_is_not_known() -> None:
    outcomes = Outcomes()
    outcomes.add(block(1, 2), {1: RequestTimedOutError("late", appended=Appended.MAYBE)})
    outcomes.add_unsettled(block(3, 2))
    assert outcomes.summary() == (
        "1 record written, the last from x.txt, line 1; of 3 it is not known"
    )


def test_an_input_goes_on_after_its_last_record_only_if_all_before_it_are_written() -> None:
    outcomes = Outcomes()
    assert outcomes.how_to_go_on(["x.txt"], ["x.txt"]) == ""
    outcomes.add(block(1, 3), {})
    assert outcomes.how_to_go_on(["x.txt"], ["x.txt"]) == (
        "--from-row 4 goes on after x.txt, line 3"
    )
    outcomes.add(block(4, 2), {0: LARGE})
    assert outcomes.how_to_go_on(["x.txt"], ["x.txt"]) == ""


def test_of_several_inputs_those_are_named_that_are_left() -> None:
    outcomes = Outcomes()
    outcomes.add(block(1, 3), {})
    last = "goes on after x.txt, line 3"
    files = ["a.txt", "x.txt", "my file.txt"]
    assert outcomes.how_to_go_on(files, files[1:]) == f"x.txt 'my file.txt' --from-row 4 {last}"
    assert outcomes.how_to_go_on(files, files[2:]) == f"'my file.txt' {last}"
    files = [f"{number}.txt" for number in range(9)]
    assert outcomes.how_to_go_on(files, files) == (
        f"0.txt 1.txt 2.txt 3.txt 4.txt (and the 4 files after it) {last}"
    )


def test_what_was_not_committed_is_not_written_and_the_next_run_goes_on_after_the_commit() -> None:
    outcomes = Outcomes()
    outcomes.add(block(1, 3), {})
    outcomes.commit()
    outcomes.add(block(4, 2), {})
    outcomes.add(block(6, 2), {1: LARGE})
    outcomes.abort()
    assert outcomes.summary() == (
        "3 records written, the last from x.txt, line 3; 4 not, as their transaction was aborted"
    )
    assert outcomes.problem is not None
    assert outcomes.how_to_go_on(["x.txt"], ["x.txt"]) == (
        "--from-row 4 goes on after x.txt, line 3"
    )


def test_of_a_commit_without_an_answer_it_is_not_known_what_is_written() -> None:
    outcomes = Outcomes()
    outcomes.add(block(1, 3), {})
    outcomes.doubt()
    assert outcomes.summary() == "0 records written; of 3 it is not known"
    assert outcomes.how_to_go_on(["x.txt"], ["x.txt"]) == ""
