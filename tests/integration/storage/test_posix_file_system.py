"""Real files: bounded descriptors, cached reads, locks, and what a full file system does."""

import errno
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from millrace.broker.storage.file_system import is_full
from millrace.broker.storage.log_directory.ballast import Ballast
from millrace.broker.storage.posix_file_system import PosixFileSystem


def descriptors(directory: Path) -> int:
    """Count this process's descriptors of files in `directory`: other tests leave other ones."""
    count = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # The listing's own.
            count += os.readlink(f"/proc/self/fd/{number}").startswith(f"{directory}/")
    return count


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    files = PosixFileSystem()
    file = files.open(f"{tmp_path}/a", create=True, writable=True)
    assert file.append([b"one", bytearray(b"two"), memoryview(b"three")]) == 11
    assert file.pread(100, 3) == b"twothree"
    buffer = bytearray(8)
    assert file.pread_into_cached(memoryview(buffer), 3) in (8, -1)
    file.truncate(3)
    file.fdatasync()
    assert file.size() == files.size(f"{tmp_path}/a") == 3
    assert file.append([b"!"]) == 1
    assert file.pread(100, 0) == b"one!"
    file.close()
    assert files.open_files == 0


def test_an_append_that_waits_for_nothing_is_at_the_end_or_not_done(tmp_path: Path) -> None:
    """XFS does it, when it need not write the time of the change; ext4 and tmpfs never do."""
    files = PosixFileSystem()
    file = files.open(f"{tmp_path}/a", create=True, writable=True)
    assert file.append_cached([b"not open"]) == -1
    contents = b"begin"
    file.append([contents])
    can = files.can_append_cached(f"{tmp_path}/probe")
    assert files.list(str(tmp_path)) == ["a"]
    for _ in range(20):
        done = file.append_cached([b"one", memoryview(b"two")])
        assert done == -1 or can
        contents += b"onetwo"[: max(done, 0)]
    assert file.pread(1000, 0) == contents
    assert not files.can_append_cached(f"{tmp_path}/missing/probe")
    file.close()


def test_a_cached_read_ends_where_the_file_ends(tmp_path: Path) -> None:
    file = PosixFileSystem().open(f"{tmp_path}/a", create=True, writable=True)
    file.append([b"x" * 5000])
    assert file.pread(1, 0) == b"x"  # Opens the file, and brings its page into memory.
    buffer = memoryview(bytearray(9000))
    assert file.pread_into_cached(buffer, 4000) in (1000, -1)
    assert file.pread_into_cached(buffer, 5000) in (0, -1)
    file.close()


def test_a_file_that_is_not_open_is_not_read_from_memory(tmp_path: Path) -> None:
    files = PosixFileSystem()
    (tmp_path / "a").write_bytes(b"x")
    assert files.open(f"{tmp_path}/a").pread_into_cached(memoryview(bytearray(1)), 0) == -1


def test_thousands_of_files_need_few_descriptors(tmp_path: Path) -> None:
    files = PosixFileSystem(open_files_max=10)
    opened = [files.open(f"{tmp_path}/{n}", create=True, writable=True) for n in range(2000)]
    for number, file in enumerate(opened):
        file.append([str(number).encode()])
        assert files.open_files <= 10
    assert 0 < descriptors(tmp_path) <= 10
    for number, file in reversed(list(enumerate(opened))):
        assert file.pread(10, 0) == str(number).encode()
        file.fdatasync()
    for file in opened:
        file.close()
    assert descriptors(tmp_path) == 0


def test_descriptors_stay_bounded_while_threads_share_files(tmp_path: Path) -> None:
    files = PosixFileSystem(open_files_max=3)
    opened = [files.open(f"{tmp_path}/{n}", create=True, writable=True) for n in range(20)]
    for number, file in enumerate(opened):
        file.append([bytes([number]) * 1000])
    wrong: list[int] = []

    def read(start: int) -> None:
        for turn in range(2000):
            number = (start + turn * 7) % len(opened)
            if opened[number].pread(10, 500) != bytes([number]) * 10:
                wrong.append(number)

    threads = [threading.Thread(target=read, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert files.open_files <= 3 + len(threads)
    for file in opened:
        file.close()
    assert files.open_files == 0


def test_a_lock_is_exclusive_until_released_or_the_process_ends(tmp_path: Path) -> None:
    files = PosixFileSystem()
    lock = files.lock(f"{tmp_path}/lock")
    with pytest.raises(BlockingIOError):
        files.lock(f"{tmp_path}/lock")
    lock.release()
    files.lock(f"{tmp_path}/lock").release()


def test_rewriting_a_part_of_a_file_leaves_it_as_it_was(tmp_path: Path) -> None:
    files = PosixFileSystem()
    file = files.open(f"{tmp_path}/a", create=True, writable=True)
    contents = os.urandom(3_000_000)
    file.append([contents])
    file.fdatasync()
    file.rewrite(2_500_000, 1000)
    assert file.is_dirty
    assert file.size() == 3_000_000
    assert (tmp_path / "a").read_bytes() == contents
    file.fdatasync()
    file.append([b"!"])
    assert file.pread(10, 3_000_000) == b"!"
    file.close()
    assert descriptors(tmp_path) == 0


def test_a_directory_is_made_in_one_that_is_there_alone(tmp_path: Path) -> None:
    files, log_directory = PosixFileSystem(), tmp_path / "disk"
    with pytest.raises(FileNotFoundError):
        files.make_directory(f"{log_directory}/partition")
    assert not log_directory.exists()
    for _ in range(2):
        files.make_directory(str(log_directory))
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        files.make_directory(f"{tmp_path}/file")


def test_ballast_takes_its_space_at_once(tmp_path: Path) -> None:
    files = PosixFileSystem()
    files.allocate(f"{tmp_path}/ballast", 1 << 20)
    status = os.stat(tmp_path / "ballast")
    assert status.st_size == 1 << 20
    assert status.st_blocks * 512 >= 1 << 20
    assert 0 < files.free_space(str(tmp_path)) <= files.total_space(str(tmp_path))


def test_a_sparse_copy_of_the_ballast_takes_its_space(tmp_path: Path) -> None:
    path = tmp_path / "ballast"
    path.touch()
    os.truncate(path, 8 << 20)
    assert path.stat().st_blocks * 512 < 1 << 20
    files = PosixFileSystem()
    assert Ballast(files, str(tmp_path), 8 << 20).take()
    assert path.stat().st_blocks * 512 >= 8 << 20
    assert Ballast(files, str(tmp_path), 1 << 20).take()
    assert path.stat().st_size == 1 << 20
    assert path.stat().st_blocks * 512 < 2 << 20
    assert Ballast(files, str(tmp_path), 0).take()
    assert not path.exists()


def test_a_deleted_file_says_so(tmp_path: Path) -> None:
    files = PosixFileSystem()
    file = files.open(f"{tmp_path}/a", create=True, writable=True)
    file.append([b"x"])
    file.close()
    files.unlink(f"{tmp_path}/a")
    with pytest.raises(FileNotFoundError):
        file.pread(1, 0)


def test_an_error_of_an_open_file_names_it(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as refused:
        PosixFileSystem().open(f"{tmp_path}").pread(1, 0)
    assert refused.value.filename == f"{tmp_path}"


def test_a_retired_file_is_never_read_under_its_old_name(tmp_path: Path) -> None:
    files = PosixFileSystem()
    path = f"{tmp_path}/a"
    file = files.open(path, create=True, writable=True)
    file.append([b"old"])
    file.retire()
    files.open(f"{tmp_path}/b", create=True, writable=True).append([b"new"])
    files.rename(f"{tmp_path}/b", path)
    with pytest.raises(FileNotFoundError):
        file.pread(3, 0)
    assert file.pread_into_cached(memoryview(bytearray(3)), 0) == -1
    assert files.open(path).pread(3, 0) == b"new"


def test_only_what_may_pass_counts_as_full() -> None:
    full = {code for code in errno.errorcode if is_full(OSError(code, ""))}
    assert full == {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


LIMITED = """
import resource, signal, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
from millrace.broker.storage.file_system import is_full
from millrace.broker.storage.log_directory.ballast import Ballast
from millrace.broker.storage.posix_file_system import PosixFileSystem
file = PosixFileSystem().open(sys.argv[1], create=True, writable=True)
assert file.append([b"x" * 900]) == 900
assert file.append([b"y" * 900]) == 100, "what fits is written"
try:
    file.append([b"z"])
except OSError as error:
    assert is_full(error)
    print("full")
"""


def test_a_write_beyond_the_limit_is_short_and_then_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, f"{tmp_path}/a"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("full\n", "")
