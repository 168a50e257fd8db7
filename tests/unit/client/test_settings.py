"""Settings of clients: declared once, and told to type checkers."""

import asyncio
from typing import Any

import pytest

from millrace.client import Admin, Consumer, Producer, SyncProducer
from millrace.client._consumer.dead_letters import DeadLettersConfig, DeadLettersSettings
from millrace.client._consumer.settings import ConsumerConfig, ConsumerSettings
from millrace.client._producer.settings import ProducerConfig, ProducerSettings
from millrace.client._settings import AdminConfig, AdminSettings
from millrace.core import settings
from millrace.core.errors import InvalidConfigError

CLIENTS: list[Any] = [Producer, Consumer, Admin]


@pytest.mark.parametrize(
    ("config", "typed"),
    [
        (ProducerConfig, ProducerSettings),
        (ConsumerConfig, ConsumerSettings),
        (AdminConfig, AdminSettings),
        (DeadLettersConfig, DeadLettersSettings),
    ],
)
def test_type_checkers_know_every_setting_and_no_other(config: type, typed: Any) -> None:
    assert set(typed.__annotations__) == set(settings.settings_of(config))
    assert not typed.__required_keys__


@pytest.mark.parametrize("config", [ProducerConfig, ConsumerConfig, AdminConfig, DeadLettersConfig])
def test_the_defaults_are_within_their_own_bounds(config: Any) -> None:
    settings.check(config())


async def refusal(client: Any, **given: object) -> str:
    with pytest.raises(InvalidConfigError) as raised:
        client("localhost:1", **given)
    return raised.value.message


@pytest.mark.parametrize(
    ("client", "name", "meant"),
    [
        (Producer, "linger", "linger_ms"),
        (Producer, "compression_type", "compression"),
        (Producer, "batch.size", "batch_size"),
        (Consumer, "client.rack", "client_rack"),
        (Admin, "request_timeout", "request_timeout_ms"),
    ],
)
def test_a_setting_that_does_not_exist_is_refused_with_the_nearest_one(
    client: Any, name: str, meant: str
) -> None:
    told = asyncio.run(refusal(client, **{name: 1}))
    assert told == f"{name}: there is no such setting; did you mean {meant!r}?"


def test_all_problems_are_told_at_once() -> None:
    told = asyncio.run(refusal(Producer, linger_ms=-1, acks=True, key_serializer="utf-8"))
    assert told.splitlines() == [
        "linger_ms = -1: must be 0 to 3600000 ms",
        'acks = True: must be "all", 1 or 0',
        "key_serializer = 'utf-8': must be a function",
    ]


def test_units_are_those_of_brokers() -> None:
    given = {"buffer_memory": "64MB", "batch_size": "1MiB", "linger_ms": "2s", "acks": "0"}
    config = settings.parse(ProducerConfig, given)
    assert (config.buffer_memory, config.batch_size) == (64_000_000, 1 << 20)
    assert (config.linger_ms, config.acks) == (2000, 0)


def test_the_docstring_of_a_client_tells_of_each_setting() -> None:
    for client, config in zip(CLIENTS, [ProducerConfig, ConsumerConfig, AdminConfig], strict=True):
        for name in settings.settings_of(config):
            assert f"\n    {name}: " in client.__doc__
        assert "{settings}" not in client.__doc__


def test_a_synchronous_client_takes_the_same_settings() -> None:
    with pytest.raises(InvalidConfigError, match="did you mean 'linger_ms'"):
        SyncProducer("localhost:1", lingerms=3)  # type: ignore[call-arg]
