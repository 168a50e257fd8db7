"""The stubs are committed, so that `pip install` of a checkout needs no protocol compiler."""

import subprocess
import sys
from pathlib import Path

from tests.arch.repository import GENERATED_SUFFIXES, ROOT

PROTO = ROOT / "proto"


def generated_files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.name.endswith(GENERATED_SUFFIXES)
    }


def test_the_stubs_are_what_make_proto_generates(tmp_path: Path) -> None:
    sources = sorted(str(path.relative_to(PROTO)) for path in PROTO.rglob("*.proto"))
    assert sources
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I", ".", *outputs, *sources],
        cwd=PROTO,
        check=True,
    )
    expected, present = generated_files(tmp_path), generated_files(PROTO)
    assert sorted(present) == sorted(expected)
    stale = [name for name in expected if present[name] != expected[name]]
    assert stale == [], "run `make proto` and commit what it writes"
