"""Bytes that come late are no end of the input."""

import io
import os
from typing import BinaryIO, cast

import pytest

from millrace.cli.files.patient_input import PatientInput
from millrace.cli.records.sources import RecordMapping, read_records


class LateInput(PatientInput):
    """Its writer writes only when the reader waits."""

    def __init__(self, *pieces: bytes) -> None:
        readable, self._writable = os.pipe()
        os.set_blocking(readable, False)
        super().__init__(readable)
        self._pieces = list(pieces)

    def wait(self) -> None:
        if self._pieces:
            os.write(self._writable, self._pieces.pop(0))
        else:
            os.close(self._writable)
        super().wait()


@pytest.mark.parametrize("file_format", ["lines", "json", "csv"])
def test_a_pipe_that_does_not_block_is_read_to_its_end(file_format: str) -> None:
    late = LateInput(b'{"n":1}\n', b'{"n"', b":2}\n")
    stream = cast(BinaryIO, io.BufferedReader(late))
    mapping = RecordMapping(as_text=True)
    records = list(read_records(stream, "input", file_format, mapping))
    count = 1 if file_format == "csv" else 2  # The first line is a header there.
    assert sum(len(columns.values) for columns in records) == count
    os.close(late.fileno())


def test_all_of_it_can_be_read_at_once() -> None:
    late = LateInput(b"a", b"b")
    assert io.BufferedReader(late).read() == b"ab"
    os.close(late.fileno())


def test_a_file_after_it_has_a_place_and_a_pipe_has_none() -> None:
    with open(__file__, "rb") as file:
        stream = io.BufferedReader(PatientInput(file.fileno()))
        assert stream.seekable()
        assert stream.read(3) == b'"""'
        assert stream.tell() == 3
    late = LateInput()
    assert not late.seekable()
    late.wait()
    os.close(late.fileno())
