"""Small files come back as they were written, or not at all."""

import pytest
from tests.fakes.disk import Disk, PowerCut

from millrace.broker.storage.sealed_file import DamagedFileError, read_sealed, write_sealed

PATH = "/file"


def test_a_payload_comes_back() -> None:
    disk = Disk()
    for payload in (b"", b"one\ntwo\n", bytes(range(256))):
        write_sealed(disk, PATH, "kind", payload)
        assert read_sealed(disk, PATH, "kind") == payload


def test_the_first_line_says_what_it_is() -> None:
    disk = Disk()
    write_sealed(disk, PATH, "kind", b"payload")
    assert disk.contents(PATH).startswith(b"millrace kind 1 7 ")


def test_a_file_of_another_kind_is_refused() -> None:
    disk = Disk()
    write_sealed(disk, PATH, "kind", b"payload")
    with pytest.raises(DamagedFileError):
        read_sealed(disk, PATH, "other")


def test_every_flipped_bit_and_every_cut_is_noticed() -> None:
    whole = Disk()
    write_sealed(whole, PATH, "kind", b"payload")
    contents = whole.contents(PATH)
    damaged = [contents[:size] for size in range(len(contents))] + [contents + b"x"]
    for byte in range(len(contents)):
        for bit in range(8):
            flipped = bytearray(contents)
            flipped[byte] ^= 1 << bit
            damaged.append(bytes(flipped))
    for each in damaged:
        whole.write(PATH, each)
        with pytest.raises(DamagedFileError):
            read_sealed(whole, PATH, "kind")


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_leaves_the_old_file_or_the_new_one(seed: int) -> None:
    for call in range(1, 7):
        disk = Disk(seed)
        write_sealed(disk, PATH, "kind", b"old")
        disk.cut_power_at = disk.calls + call
        expected = {b"old", b"new"}
        try:
            write_sealed(disk, PATH, "kind", b"new")
            expected = {b"new"}
        except PowerCut:
            pass
        disk.cut_power()
        assert read_sealed(disk, PATH, "kind") in expected
