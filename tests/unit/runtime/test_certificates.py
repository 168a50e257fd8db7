"""How long certificates count."""

import pytest

from millrace.core.errors import InvalidConfigError
from millrace.runtime.certificates import Names, issue, lifetime_of, new_authority, read

DAY = 86_400
BACKDATED = 300
"""Seconds: they begin before they are made, as clocks differ."""


@pytest.mark.parametrize(("days", "days_of_authority", "first"), [(1, 30, 1), (30, 2, 2)])
def test_the_lifetime_of_a_chain_is_that_of_the_certificate_that_ends_first(
    days: int, days_of_authority: int, first: int
) -> None:
    authority = new_authority("authority", days=days_of_authority)
    made = issue(authority, Names(common="broker", hosts=("localhost",)), days=days)
    lifetime = lifetime_of(made.certificate + authority.certificate)
    assert lifetime.seconds == first * DAY + BACKDATED
    shown = made if first == days else authority
    assert lifetime.ends == read(shown.certificate).ends
    assert lifetime.begins == read(shown.certificate).begins - BACKDATED


def test_a_file_without_certificates_has_no_lifetime() -> None:
    with pytest.raises(InvalidConfigError, match="no certificates in PEM form"):
        lifetime_of(b"nonsense")
