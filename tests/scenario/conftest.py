"""`pytest tests/scenario --rewrite` writes down what the machines say now; read the difference."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--rewrite", action="store_true", help="write the transcripts anew")
