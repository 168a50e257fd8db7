"""Amounts as Kubernetes writes them."""

import pytest

from millrace.operator.model.quantities import amount


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (7, 7),
        ("7", 7),
        ("1Ki", 1024),
        ("1k", 1000),
        ("1.5Gi", 3 << 29),
        ("2E", 2 * 10**18),
        ("2e3", 2000),
        ("2E3", 2000),
        ("1500m", 1.5),
    ],
)
def test_an_amount_is_the_number_that_kubernetes_takes_it_for(text: str, number: float) -> None:
    assert amount(text) == number
