"""The records of the comparisons: the same for every client, and what they are said to be."""

import zlib
from pathlib import Path

from bench.records import keys_for, read_records, write_event_records, write_random_records


def test_random_records_pass_through_a_text_reader_unchanged(tmp_path: Path) -> None:
    path = write_random_records(tmp_path / "records", 100)
    as_java_reads_them = path.read_bytes().decode("utf-8").split("\n")
    assert [text.encode("utf-8") for text in as_java_reads_them] == read_records(path)


def test_random_records_have_one_size_and_leave_a_codec_nothing_to_find(tmp_path: Path) -> None:
    records = read_records(write_random_records(tmp_path / "records", 1000))
    assert {len(record) for record in records} == {1000}
    assert len(set(records)) == len(records)
    data = b"".join(records[:1000])
    assert len(zlib.compress(data)) > 0.87 * len(data)  # Seven bits of each byte are random.


def test_event_records_have_one_size_and_compress_as_logs_do(tmp_path: Path) -> None:
    records = read_records(write_event_records(tmp_path / "records", 1000))
    assert {len(record) for record in records} == {1000}
    data = b"".join(records[:1000])
    assert len(zlib.compress(data)) < 0.5 * len(data)


def test_every_record_has_a_key_of_its_own(tmp_path: Path) -> None:
    records = read_records(write_random_records(tmp_path / "records", 1000))
    keys = keys_for(records)
    assert len(set(keys)) == len(records)
    assert {len(key) for key in keys} == {8}
