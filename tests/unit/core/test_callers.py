"""Which client ids there may be."""

from dataclasses import replace

import pytest

from millrace.core.callers import ANONYMOUS, Caller, client_id_problem


@pytest.mark.parametrize("client_id", ["a", "team/billing@2:x", "~" * 255, "{%s}"])
def test_a_client_id_is_any_visible_ascii(client_id: str) -> None:
    assert client_id_problem(client_id) == ""


@pytest.mark.parametrize("client_id", ["", "a b", "a\n", "\x1b[2J", "é", "x" * 256, "\x7f"])
def test_what_is_no_client_id_is_shown_in_a_few_printable_characters(client_id: str) -> None:
    problem = client_id_problem(client_id)
    assert problem.startswith("client_id=")
    assert problem.isprintable()
    assert len(problem) < 150


def test_who_proves_nothing_counts_by_its_host_whatever_it_calls_itself() -> None:
    nobody = Caller(
        principal=ANONYMOUS, client_id="a", address="[fe80::1]:4711", listener="", software=""
    )
    assert replace(nobody, client_id="b", address="[fe80::1]:4712").owner == nobody.owner
    assert replace(nobody, address="[fe80::2]:4711").owner != nobody.owner
    known = replace(nobody, principal="shop")
    assert replace(known, address="10.0.0.1:4711").owner == known.owner
    assert replace(known, principal="fe80::1").owner != nobody.owner
