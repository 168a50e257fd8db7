"""Imports go one way, and the core stays pure: the contracts of `.importlinter`."""

from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports
from tests.arch.repository import ROOT


def test_every_import_contract_is_kept() -> None:
    assert lint_imports(config_filename=str(ROOT / ".importlinter"), no_cache=True) == (
        EXIT_STATUS_SUCCESS
    ), "a contract is broken: see the report above"
