import os
from pathlib import Path

import pytest

from millrace.cli.files.whole_file import WholeFile


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o640)
    with WholeFile(str(path)) as file:
        file.stream.write(b"new")
        file.stream.flush()
        assert path.read_bytes() == b"old"
        file.finish()
        assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_not_finished_leaves_nothing(tmp_path: Path) -> None:
    with WholeFile(str(tmp_path / "file")) as file:
        file.stream.write(b"new")
    assert list(tmp_path.iterdir()) == []


def test_a_link_stays_and_the_file_that_it_names_is_replaced(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    link.symlink_to(path)
    with WholeFile(str(link)) as file:
        file.stream.write(b"new")
        file.finish()
    assert link.is_symlink()
    assert path.read_bytes() == b"new"


def test_a_device_is_written_at_once_and_stays() -> None:
    with WholeFile(os.devnull) as file:
        file.stream.write(b"gone")
        file.finish()
    assert Path(os.devnull).is_char_device()


def test_a_full_disk_does_not_hide_what_ended_the_writing() -> None:
    def write(file: WholeFile) -> None:
        file.stream.write(b"more than there is room for")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), WholeFile("/dev/full") as file:
        write(file)
