"""The table of clients and what they can do here has a test for each of its cells."""

import pytest
from tests.suites.features import Client, clients, matching, without_a_test


def test_each_cell_has_a_test_that_must_pass() -> None:
    assert list(without_a_test()) == []


def test_no_client_lacks_what_a_test_shows() -> None:
    assert not [client.name for client in clients() if set(client.lacks) & set(client.shown)]


@pytest.mark.parametrize(
    "name",
    [
        "kcat:no_such_test",
        "kafka-python:test_admin_integration.py::test_describe_metadata_quorum",  # It is left out.
        "librdkafka:0081_admin:do_test_UserScramCredentials*",
        "test_produce.py::test_no_such",
        "test_no_such.py::test_kafka_python_writes_with_each_kind_of_acknowledgement",
    ],
)
def test_what_need_not_pass_shows_nothing(name: str) -> None:
    assert matching(name) == []


def test_a_cell_counts_tests_and_says_which_are_ours() -> None:
    client = Client(
        name="kcat",
        version="1",
        suite="kcat",
        shown={
            "groups": ["kcat:group_*"],
            "produce": ["kcat:produce_consume", "kcat:produce*"],
            "plain": ["test_authentication.py::test_librdkafka_logs_in"],
        },
        lacks=["admin"],
    )
    cells = [client.cell(of) for of in ("groups", "produce", "plain", "admin", "oauth")]
    assert cells == ["3", "5", "1*", "–", ""]
