"""Transactional ids and their namespaces (T15)."""

import pytest

from millrace.core.coordinator.transactions.transaction import full_id
from millrace.core.errors import InvalidTransactionalIdError


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("copy", "default/copy"),
        ("default/copy", "default/copy"),
        ("sales/copy", "sales/copy"),
        ("sales/a/b", "sales/a/b"),
        ("ü" * 127, "default/" + "ü" * 127),
        ("x" * 255, "default/" + "x" * 255),
        ("sales/" + "x" * 255, "sales/" + "x" * 255),
    ],
)
def test_an_id_is_in_a_namespace(text: str, full: str) -> None:
    assert full_id(text) == full
    assert full_id(full) == full


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "/",
        "/copy",
        "sales/",
        "Sales/copy",
        "-/x",
        "a\nb",
        "x" * 256,
        "ü" * 128,
        "x" * 1_000_000,
        "sales/" + "y" * 1_000_000,
        "\ud800",
    ],
)
def test_a_bad_id_is_refused_in_few_words(text: str) -> None:
    with pytest.raises(InvalidTransactionalIdError) as refused:
        full_id(text)
    assert len(refused.value.message) < 2000
