"""Which client ids there may be."""

import pytest

from millrace.core.callers import client_id_problem


@pytest.mark.parametrize("client_id", ["a", "team/billing@2:x", "~" * 255, "{%s}"])
def test_a_client_id_is_any_visible_ascii(client_id: str) -> None:
    assert client_id_problem(client_id) == ""


@pytest.mark.parametrize("client_id", ["", "a b", "a\n", "\x1b[2J", "é", "x" * 256, "\x7f"])
def test_what_is_no_client_id_is_shown_in_a_few_printable_characters(client_id: str) -> None:
    problem = client_id_problem(client_id)
    assert problem.startswith("client_id=")
    assert problem.isprintable()
    assert len(problem) < 150
