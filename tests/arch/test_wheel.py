"""What is built is what is here: every module of every part, its stubs and its type marks."""

import subprocess
import sys
import zipfile
from pathlib import Path

from tests.arch.repository import IMPORT_ROOTS, ROOT, UNSHIPPED, files


def test_the_wheel_holds_every_file_of_every_part_and_tells_what_it_is(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = map(zipfile.ZipFile, tmp_path.glob("*.whl"))
    shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert shipped == {
        path.relative_to(path.parts[0]).as_posix()
        for path in files()
        if path.parts[0] in IMPORT_ROOTS and path.parts[:2] not in UNSHIPPED
    }
    (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    assert (ROOT / "README.md").read_text(encoding="utf-8") in wheel.read(metadata).decode()
