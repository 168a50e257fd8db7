"""The one package `millrace` is spread over top-level folders; these are the traps of that layout.

A folder on `sys.path` that holds an `__init__.py` or a loose module can hide the other folders, or
the standard library: `operator/` would shadow `operator`.
"""

import importlib
import operator
import sysconfig
from pathlib import Path

import pytest
from tests.arch.repository import BESIDE, IMPORT_ROOTS, PACKAGES, ROOT, SCRIPTS, files

FOLDERS = {
    *IMPORT_ROOTS, ".ci", "bench", "charts", "crds", "dashboards", "demo", "docs", "e2e", "images",
    "requirements", "tests",
}  # fmt: skip
TEST_LAYERS = {
    "abuse", "api_server", "arch", "bad_resources", "checkers", "data", "fakes", "faults", "fuzz",
    "integration", "interop", "model", "releases", "scenario", "sim", "spark_jobs", "suites",
    "typing", "unit", "watching",
}  # fmt: skip


def test_operator_is_the_standard_library_s() -> None:
    assert Path(operator.__file__).parent == Path(sysconfig.get_path("stdlib"))


def test_every_top_level_folder_is_known() -> None:
    folders = {path.parts[0] for path in files() if len(path.parts) > 1}
    assert folders - FOLDERS == set()


def test_every_folder_of_tests_is_a_layer_or_holds_fakes_or_data() -> None:
    folders = {
        path.parts[1] for path in files() if path.parts[0] == "tests" and len(path.parts) > 2
    }
    assert folders - TEST_LAYERS == set()


@pytest.mark.parametrize("import_root", IMPORT_ROOTS)
def test_an_import_root_holds_the_namespace_alone(import_root: str) -> None:
    held = {path.name for path in (ROOT / import_root).iterdir() if path.name != "__pycache__"}
    assert held == {"millrace", *BESIDE.get(import_root, ())}


@pytest.mark.parametrize("import_root", IMPORT_ROOTS)
def test_the_namespace_holds_one_package_and_no_module(import_root: str) -> None:
    namespace = ROOT / import_root / "millrace"
    assert [path.name for path in namespace.iterdir() if path.name != "__pycache__"] == [
        PACKAGES[import_root]
    ]
    assert (namespace / PACKAGES[import_root] / "__init__.py").is_file()
    assert (namespace / PACKAGES[import_root] / "py.typed").is_file(), (
        "users' type checkers look for it"
    )


@pytest.mark.parametrize("import_root", IMPORT_ROOTS)
def test_every_part_is_imported_from_its_folder(import_root: str) -> None:
    package = PACKAGES[import_root]
    part = importlib.import_module(f"millrace.{package}")
    assert part.__file__ == str(ROOT / import_root / "millrace" / package / "__init__.py")


def test_every_folder_of_modules_is_a_package() -> None:
    folders = {
        path.parent
        for path in files()
        if path.parts[0] in IMPORT_ROOTS
        and path.parts[:2] != SCRIPTS
        and path.suffix == ".py"
        and path.name != "__init__.py"
    }
    assert [
        folder for folder in sorted(folders) if not (ROOT / folder / "__init__.py").is_file()
    ] == []


def test_no_init_file_below_tests() -> None:
    """One in `tests/unit/operator/` would replace the standard library's module."""
    assert sorted((ROOT / "tests").rglob("__init__.py")) == []


def test_the_image_is_built_from_every_part() -> None:
    ignored = (ROOT / "images" / "Dockerfile.dockerignore").read_text().split()
    assert {f"!{import_root}" for import_root in IMPORT_ROOTS} <= set(ignored)
