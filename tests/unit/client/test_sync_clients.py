"""The synchronous clients have the methods of the asynchronous ones."""

import inspect

import pytest

from millrace.client import Admin, Consumer, Producer, SyncAdmin, SyncConsumer, SyncProducer

PAIRS = [(Admin, SyncAdmin), (Consumer, SyncConsumer), (Producer, SyncProducer)]
ON_A_LOOP_ALONE = {"wait_for_room"}
"""A synchronous producer waits in `send()` itself."""
CALLBACKS = {"subscribe"}
"""Callbacks of a synchronous consumer are plain functions."""
BLOCKS = {"transaction"}
"""What they return is for `with`, and not for `async with`."""


def methods(client: type) -> dict[str, object]:
    found = inspect.getmembers(client, inspect.isfunction)
    return {name: method for name, method in found if not name.startswith("_")}


METHODS = [
    (client, name)
    for original, client in PAIRS
    for name in sorted(methods(original).keys() - ON_A_LOOP_ALONE)
]


@pytest.mark.parametrize(("original", "client"), PAIRS)
def test_a_synchronous_client_has_every_method_of_the_other_and_no_more(
    original: type, client: type
) -> None:
    assert methods(client).keys() == methods(original).keys() - ON_A_LOOP_ALONE


@pytest.mark.parametrize(("original", "client"), PAIRS)
def test_its_methods_take_the_same_arguments_and_return_the_same(
    original: type, client: type
) -> None:
    for name in methods(client).keys() - CALLBACKS - BLOCKS:
        expected = inspect.signature(getattr(original, name))
        assert inspect.signature(getattr(client, name)) == expected, name


@pytest.mark.parametrize(("client", "name"), METHODS)
def test_its_methods_are_documented_without_await(client: type, name: str) -> None:
    method = getattr(client, name)
    assert not inspect.iscoroutinefunction(method)
    assert method.__qualname__ in {f"{client.__name__}.{name}", f"RecordSink.{name}"}
    text = inspect.getdoc(method)
    assert text
    assert "await " not in text
    assert "async " not in text


def test_the_text_is_that_of_the_original() -> None:
    text = inspect.getdoc(SyncAdmin.drain_broker) or ""
    assert "\n    admin.drain_broker(2)\n" in text
    assert "BrokerIdNotRegisteredError: there is no such broker." in text
