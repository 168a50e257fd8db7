"""Records through the command line and a real broker."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest
from tests.integration.cli.command_line import CommandLine, without_waits

from millrace.cli.console.failures import ExitCode

FLIGHTS = b"carrier,delay,dest\nUA,11,IAH\nAA,NA,MIA\nUA,-3,ORD\n"


def test_lines_come_back_as_they_went_in(millrace: CommandLine, topic: str) -> None:
    result = millrace.run("produce", topic, stdin=b"hello\n\nw\xc3\xb6rld\n")
    assert result.exit_code == ExitCode.DONE
    assert result.stdout == ""
    assert without_waits(result.stderr) == f"3 records to {topic}\n"
    assert millrace.ok("consume", topic) == "hello\n\nwörld\n"


def test_a_topic_may_be_named_with_its_namespace(millrace: CommandLine, topic: str) -> None:
    millrace.ok("produce", f"default/{topic}", stdin="a\n")
    assert millrace.ok("consume", f"default/{topic}", topic) == "a\n"


def test_keys_are_split_off_and_put_back(millrace: CommandLine, topic: str) -> None:
    lines = "a:1\nb:\na:x:y\n"
    millrace.ok("produce", topic, "--key-separator", ":", stdin=lines)
    assert millrace.ok("consume", topic, "--key-separator", ":") == lines


def test_headers_of_the_command_line_are_on_every_record(
    millrace: CommandLine, topic: str, tmp_path: Path
) -> None:
    millrace.ok("produce", topic, "-H", "source=shell", "--header", "dry", stdin="a\nb\n")
    path = tmp_path / "copy.jsonl"
    millrace.ok("consume", topic, "--file", str(path))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    expected = [["source", "shell"], ["dry", None]]
    assert [row["headers"] for row in rows] == [expected, expected]
    columns = ("--value", "value", "--headers", "headers", "-H", "again=1")
    millrace.ok("produce", topic, str(path), *columns)
    last = millrace.ok("consume", topic, "--from", "-1", "-o", "json")
    assert json.loads(last)["headers"] == [*expected, ["again", "1"]]
    refused = millrace.run("produce", topic, "-H", "=1", stdin="a\n")
    assert refused.exit_code == ExitCode.USAGE


def test_an_array_of_json_is_a_record_for_each_element(millrace: CommandLine, topic: str) -> None:
    array = '[\n  {"id": 1},\n  {"id": 2}\n]\n'
    millrace.ok("produce", topic, "--format", "json", "--key", "id", stdin=array)
    assert millrace.ok("consume", topic, "--key-separator", ":") == '1:{"id":1}\n2:{"id":2}\n'
    broken = millrace.run("produce", topic, "--format", "json", stdin='[{"id": 3}, 4]')
    assert broken.exit_code == ExitCode.FAILED
    assert "standard input, element 2: not a JSON object" in broken.stderr


def test_csv_rows_come_back_as_json_with_their_keys(
    millrace: CommandLine, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "flights.csv"
    path.write_bytes(FLIGHTS)
    summary = millrace.ok(
        *("produce", topic, str(path), "--key", "carrier", "--null-value", "NA"),
        *("--compression", "zstd", "--output", "json"),
    )
    assert json.loads(summary)["records"] == 3
    rows = [json.loads(line) for line in millrace.ok("consume", topic, "-o", "json").splitlines()]
    assert [(row["offset"], row["key"], json.loads(row["value"])["delay"]) for row in rows] == [
        (0, "UA", 11),
        (1, "AA", None),
        (2, "UA", -3),
    ]


def test_bytes_that_are_no_text_pass_through_json(millrace: CommandLine, topic: str) -> None:
    millrace.ok("produce", topic, stdin=b"\xff\xfe\ntext\n")
    rows = millrace.ok("consume", topic, "-o", "json")
    columns = ("--key", "key", "--value", "value", "--timestamp", "timestamp")
    millrace.ok("produce", topic, "--format", "json", *columns, stdin=rows)
    assert millrace.run("consume", topic).stdout_bytes == b"\xff\xfe\ntext\n" * 2


def test_records_that_the_topic_soon_deletes_are_warned_of_once(
    millrace: CommandLine, topic: str
) -> None:
    rows = "".join(f'{{"at": "2013-01-31T10:00:0{i}"}}\n' for i in range(3))
    words = ("produce", topic, "--format", "json", "--timestamp", "at")
    warned = millrace.run(*words, stdin=rows)
    assert warned.exit_code == ExitCode.DONE
    (warning, *_) = without_waits(warned.stderr).splitlines()
    assert warning.startswith(f"warning: {topic} keeps records for 7 d")
    assert "2013-01-31T10:00:00.000Z" in warning
    assert warned.stderr.count("warning:") == 1
    millrace.ok("topic", "alter", topic, "--set", "retention.ms=-1")
    assert "warning:" not in millrace.run(*words, stdin=rows).stderr


def test_a_file_of_records_is_a_copy_of_the_topic(
    millrace: CommandLine, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "copy.parquet"
    millrace.ok("produce", topic, "--key-separator", ":", "--null-value", "-", stdin="k:v\nk:-\n")
    millrace.ok("consume", topic, "--file", str(path))
    assert pyarrow.parquet.read_table(path).column("value").to_pylist() == [b"v", None]
    millrace.ok("produce", topic, str(path))
    assert millrace.ok("consume", topic, "--key-separator", ":", "--null-value", "-") == (
        "k:v\nk:-\nk:v\nk:-\n"
    )


@pytest.mark.parametrize("name", ["x.txt.gz", "x.jsonl.zst", "x.csv.bz2", "x.arrow.lz4"])
def test_a_file_that_is_compressed_by_its_name_is_written_and_read(
    millrace: CommandLine, topic: str, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    millrace.ok("produce", topic, stdin="first\nsecond\n")
    written = millrace.run("consume", topic, "--file", str(path))
    assert written.exit_code == ExitCode.DONE
    assert without_waits(written.stderr) == f"2 records to {path}\n"
    read = millrace.run("produce", topic, str(path))
    assert read.exit_code == ExitCode.DONE
    assert without_waits(read.stderr).startswith(f"2 records to {topic}")


def test_no_parquet_file_is_compressed_once_more(millrace: CommandLine, topic: str) -> None:
    result = millrace.run("consume", topic, "--file", "x.parquet.gz")
    assert result.exit_code == ExitCode.FAILED
    assert "compressed inside" in result.stderr


def test_reading_begins_and_ends_where_it_should(millrace: CommandLine, topic: str) -> None:
    millrace.ok("produce", topic, stdin="".join(f"{i}\n" for i in range(100)))
    assert millrace.ok("consume", topic, "--from", "97") == "97\n98\n99\n"
    assert millrace.ok("consume", topic, "--from", "-2") == "98\n99\n"
    assert millrace.ok("consume", topic, "--from", "10", "--max", "2") == "10\n11\n"
    assert millrace.ok("consume", topic, "--from", "1h", "--max", "1") == "0\n"
    assert millrace.ok("consume", topic, "--from", "end") == ""
    assert millrace.ok("consume", topic, "--from", "100") == ""


def test_reading_ends_before_an_offset_a_time_or_the_last_records(
    millrace: CommandLine, topic: str
) -> None:
    rows = "".join(json.dumps({"at": 1000 * i}) + "\n" for i in range(10))
    columns = ("--value", "at", "--timestamp", "at")
    millrace.ok("produce", topic, "--format", "json", *columns, stdin=rows)

    def read(*words: str) -> list[int]:
        return [int(line) // 1000 for line in millrace.ok("consume", topic, *words).splitlines()]

    assert read("--from", "3", "--to", "5") == [3, 4]
    assert read("--to", "-7") == [0, 1, 2]
    assert read("--to", "1970-01-01T00:00:02.5Z") == [0, 1, 2]
    assert read("--from", "8", "--to", "2013-01-01") == [8, 9]
    assert read("--to", "5000000") == list(range(10))
    nothing = millrace.run("consume", topic, "--from", "5", "--to", "5")
    assert (nothing.stdout, nothing.exit_code) == ("", ExitCode.DONE)
    assert "no such records there" in nothing.stderr


def test_following_ends_when_an_offset_is_reached(millrace: CommandLine, topic: str) -> None:
    with millrace.start("consume", topic, "--follow", "--to", "2") as follower:
        assert follower.stdout is not None
        millrace.ok("produce", topic, stdin="first\n")
        assert follower.stdout.readline() == b"first\n"
        millrace.ok("produce", topic, stdin="second\nthird\n")
        assert follower.stdout.read() == b"second\n"
        assert follower.wait(30) == ExitCode.DONE
    refused = millrace.run("consume", topic, "--follow", "--to", "2h")
    assert refused.exit_code == ExitCode.USAGE


def test_reading_shows_the_records_of_the_keys_asked_for(millrace: CommandLine, topic: str) -> None:
    lines = "".join(f"{'abc'[i % 3]}:{i}\n" for i in range(30)) + "-:null\n"
    separated = ("--key-separator", ":", "--null-value", "-")
    millrace.ok("produce", topic, *separated, stdin=lines)
    chosen = millrace.ok("consume", topic, "--key", "b", "--key", "c", "--from", "20")
    assert chosen.split() == ["20", "22", "23", "25", "26", "28", "29"]
    assert millrace.ok("consume", topic, "--key", "c", "--max", "2").split() == ["2", "5"]
    nothing = millrace.run("consume", topic, "--key", "d")
    assert "no such records there" in nothing.stderr


def test_records_are_printed_as_a_format_string_says(millrace: CommandLine, topic: str) -> None:
    millrace.ok("produce", topic, "--key-separator", ":", "-H", "h=1", stdin="k:v\nl:w\n")
    printed = millrace.ok("consume", topic, "--format", r"%t/%p@%o %k=%s (%S) %h\n")
    assert printed == f"{topic}/0@0 k=v (1) h=1\n{topic}/0@1 l=w (1) h=1\n"
    misread = millrace.run("consume", topic, "--format", "json")
    assert misread.exit_code == ExitCode.USAGE
    assert "did you mean --output json?" in misread.stderr
    both = millrace.run("consume", topic, "--format", "%s", "--output", "json")
    assert both.exit_code == ExitCode.USAGE


def test_an_offset_that_no_partition_has_is_refused_with_what_there_is(
    millrace: CommandLine, topic: str
) -> None:
    millrace.ok("produce", topic, stdin="a\n")
    result = millrace.run("consume", topic, "--from", "7")
    assert result.exit_code == ExitCode.NOT_FOUND
    assert f"{topic}-0 has [0, 1)" in result.stderr


def test_a_partition_that_is_not_there_is_refused(millrace: CommandLine, topic: str) -> None:
    result = millrace.run("consume", topic, "--partition", "3")
    assert result.exit_code == ExitCode.NOT_FOUND
    assert "no partition 3" in result.stderr


def test_offsets_say_where_partitions_begin_and_end_and_where_a_time_lies(
    millrace: CommandLine, topic: str
) -> None:
    rows = "".join(json.dumps({"at": 1000 * i}) + "\n" for i in range(5))
    millrace.ok("produce", topic, "--format", "json", "--timestamp", "at", stdin=rows)
    shown = millrace.ok("offsets", topic, "--at", "1970-01-01T00:00:02.5Z", "-o", "json")
    assert json.loads(shown) == [
        {"topic": topic, "partition": 0, "earliest": 0, "latest": 5, "records": 5, "at": 3}
    ]
    later = millrace.ok("offsets", topic, "--at", "2013-01-01", "-o", "json")
    assert json.loads(later)[0]["at"] is None


def test_following_shows_what_comes_later_and_ends_quietly_on_ctrl_c(
    millrace: CommandLine, topic: str
) -> None:
    with millrace.start("consume", topic, "--follow") as follower:
        assert follower.stdout is not None
        assert follower.stderr is not None
        for line in (b"first\n", b"second\n"):
            millrace.ok("produce", topic, stdin=line)
            assert follower.stdout.readline() == line
        follower.send_signal(signal.SIGINT)
        assert follower.wait(30) == ExitCode.INTERRUPTED
        assert without_waits(follower.stderr.read()).strip() == ""


def test_following_ends_when_nothing_came_for_too_long(millrace: CommandLine, topic: str) -> None:
    millrace.ok("produce", topic, stdin="first\n")
    followed = millrace.run("consume", topic, "--follow", "--timeout", "1")
    assert followed.stdout == "first\n"
    assert followed.exit_code == ExitCode.TIMED_OUT
    assert "nothing came for 1 s" in followed.stderr
    measured = millrace.run("perf", "consume", topic, "--records", "2", "--timeout", "1")
    assert measured.exit_code == ExitCode.TIMED_OUT
    assert "RECORDS" in measured.stdout.upper()


def test_a_reader_that_has_seen_enough_ends_the_command_quietly(
    millrace: CommandLine, topic: str
) -> None:
    millrace.ok("produce", topic, stdin=(b"x" * 99 + b"\n") * 50_000)
    with millrace.start("consume", topic) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        assert command.stdout.read(99) == b"x" * 99
        command.stdout.close()  # As `head` does.
        assert command.wait(30) == ExitCode.READER_LEFT
        assert without_waits(command.stderr.read()) == ""


def test_a_full_disk_under_the_output_is_told_without_a_trace(
    millrace: CommandLine, topic: str
) -> None:
    millrace.ok("produce", topic, stdin="a\n")
    with open("/dev/full", "wb") as full, millrace.start("consume", topic, stdout=full) as command:
        assert command.stderr is not None
        assert without_waits(command.stderr.read()).startswith(
            "error: standard output cannot be written: No space"
        )
        assert command.wait(30) == ExitCode.FAILED


def test_bad_input_is_refused_by_its_line_and_what_was_written_before_is_told(
    millrace: CommandLine, topic: str
) -> None:
    result = millrace.run("produce", topic, "--format", "json", stdin='{"a": 1}\nnonsense\n')
    assert result.exit_code == ExitCode.FAILED
    assert "standard input, line 2: not JSON" in result.stderr
    assert "1 record written, the last from standard input, line 1\n" in result.stderr
    assert "--from-row 2 goes on after standard input, line 1" in result.stderr


def test_a_record_that_is_refused_is_named_by_its_line_and_what_was_written_is_told(
    millrace: CommandLine, topic: str
) -> None:
    result = millrace.run("produce", topic, stdin=b"ok1\n" + b"x" * 3_000_000 + b"\nok2\n")
    assert result.exit_code == ExitCode.FAILED
    assert "error: standard input, line 2: " in result.stderr
    assert "(MESSAGE_TOO_LARGE)" in result.stderr
    written = millrace.ok("consume", topic).splitlines()
    counts = {  # The last line may have been on its way already.
        "ok1": "1 record written, the last from standard input, line 1; 1 refused\n",
        "ok2": "2 records written, the last from standard input, line 3; 1 refused\n",
    }
    assert without_waits(result.stderr).startswith(counts[written[-1]])


def test_a_standard_input_or_output_that_is_closed_leaves_no_trace(
    millrace: CommandLine, topic: str
) -> None:
    def run(words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            f"{sys.executable} -m millrace.cli {words}",
            shell=True,
            env=os.environ | {"MILLRACE_BOOTSTRAP": millrace.address},
            capture_output=True,
            text=True,
            check=False,
        )

    closed = run(f"produce {topic} <&-")
    assert closed.returncode == ExitCode.FAILED
    assert closed.stderr.startswith("error: standard input is closed\n")
    millrace.ok("produce", topic, stdin="a\n")
    for words in (f"consume {topic} >&-", "topic list >&-"):
        unread = run(words)
        assert (unread.returncode, unread.stderr) == (ExitCode.DONE, "")


@pytest.mark.parametrize(
    ("is_ended", "code", "told"),
    [
        (True, ExitCode.DONE, "1 record to {}"),
        (False, ExitCode.INTERRUPTED, "1 record written, the last from standard input, line 1"),
    ],
    ids=["ctrl-d", "ctrl-c"],
)
def test_what_is_typed_is_sent_by_lines_and_a_person_is_told_how_to_end(
    millrace: CommandLine, topic: str, is_ended: bool, code: ExitCode, told: str
) -> None:
    terminal, own = pty.openpty()
    with open(terminal, "wb", buffering=0) as keyboard:
        process = subprocess.Popen(
            [sys.executable, "-m", "millrace.cli", "produce", topic],
            stdin=own,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"MILLRACE_BOOTSTRAP": millrace.address},
            text=True,
        )
        os.close(own)
        with process:
            assert process.stderr is not None
            assert process.stderr.readline() == "a record a line; end with Ctrl-D\n"
            keyboard.write(b"hello\n")
            assert millrace.ok("consume", topic, "--follow", "--max", "1") == "hello\n"
            if is_ended:
                keyboard.write(b"\x04")
            else:
                process.send_signal(signal.SIGINT)
            assert without_waits(process.stderr.read()).startswith(told.format(topic) + "\n")
            assert process.wait(30) == code


@pytest.mark.parametrize("command", ["produce", "consume", "offsets"])
def test_a_misspelt_topic_is_answered_with_the_nearest(
    millrace: CommandLine, topic: str, command: str
) -> None:
    result = millrace.run(command, topic[:-1] + "x", stdin="a\n")
    assert result.exit_code == ExitCode.NOT_FOUND
    assert "UNKNOWN_TOPIC_OR_PARTITION" in result.stderr
    assert f"did you mean '{topic}'?" in result.stderr


def test_performance_is_measured_on_what_was_really_acknowledged(
    millrace: CommandLine, topic: str
) -> None:
    words = ("--records", "5000", "--size", "50", "-o", "json")
    written = json.loads(millrace.ok("perf", "produce", topic, *words, "--batch", "300"))
    single = json.loads(millrace.ok("perf", "produce", topic, *words, "--batch", "1"))
    for figures in (written, single):
        assert figures["records"] == 5000
        assert figures["bytes"] == 250_000
        assert 0 < figures["latency_ms"]["p50"] <= figures["latency_ms"]["max"]
    read = json.loads(millrace.ok("perf", "consume", topic, "-o", "json"))
    assert (read["records"], read["bytes"]) == (10_000, 500_000)
