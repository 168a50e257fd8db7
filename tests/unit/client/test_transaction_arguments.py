"""What callers give to transactions: a mistake is told in words that say what to give."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from millrace.client import Consumer, SyncConsumer
from millrace.client._admin.transactions import TransactionDescription, TransactionEndingName
from millrace.client._consumer.exactly_once import process_exactly_once
from millrace.client._producer.transactions import reading_of
from millrace.core.errors import InvalidRequestError


class Producing:
    """As a producer, as far as its arguments are looked at."""

    _on_loop = None


def transform(records: object) -> list[Any]:
    return []


def call(consumer: type[Any], *given: Any) -> None:
    """Call `process_exactly_once` of a class of consumers."""
    called = consumer.process_exactly_once(None, *given)
    if consumer is Consumer:
        asyncio.run(called)


@pytest.mark.parametrize("consumer", [Consumer, SyncConsumer])
@pytest.mark.parametrize(
    "given", [(Producing(), transform), (None, Producing()), (transform, "orders")]
)
def test_what_is_no_function_and_producer_is_refused_with_words(
    consumer: type[Any], given: tuple[Any, Any]
) -> None:
    with pytest.raises(InvalidRequestError, match=r"a function .* and then the producer"):
        call(consumer, *given)


@pytest.mark.parametrize(
    ("bytes_max", "polled"), [(64 << 20, 16 << 20), (16 << 20, 16 << 20), (1 << 20, 1 << 20)]
)
def test_a_transaction_of_many_bytes_is_read_in_parts(bytes_max: int, polled: int) -> None:
    class Reading:
        async def poll_batches(self, timeout_ms: int, max_bytes: int) -> list[Any]:
            assert max_bytes == polled
            raise KeyError("seen")

    reader: Any = Reading()
    with pytest.raises(KeyError):
        asyncio.run(
            process_exactly_once(
                reader, transform, cast("Any", None), interval_ms=100, bytes_max=bytes_max, group=""
            )
        )


def test_what_is_no_consumer_is_refused_with_words() -> None:
    with pytest.raises(InvalidRequestError, match="str is no consumer"):
        reading_of("orders")  # type: ignore[arg-type]


@pytest.fixture(name="described")
def _described() -> Callable[[TransactionEndingName | None, bool], TransactionDescription]:
    def describe(ending: TransactionEndingName | None, is_shared: bool) -> TransactionDescription:
        return TransactionDescription(
            transactional_id="a",
            state="complete_abort",
            producer_id=1,
            producer_epoch=2,
            timeout_ms=60_000,
            open_ms=0,
            parts=(),
            ending=ending,
            ended_committed=None if ending is None else ending == "producer",
            ended_producer_id=1,
            ended_producer_epoch=1,
            is_shared=is_shared,
        )

    return describe


@pytest.mark.parametrize(
    ("ending", "is_shared", "words"),
    [
        (None, False, None),
        ("producer", False, "committed by its producer"),
        ("timeout", False, "aborted by its time-out"),
        ("operator", True, "aborted by a person"),
        ("producer", True, "committed by its application"),
        ("fenced", True, "aborted by another run that began with the id"),
    ],
)
def test_how_a_transaction_ended_is_said_in_one_place(
    described: Callable[[TransactionEndingName | None, bool], TransactionDescription],
    ending: TransactionEndingName | None,
    is_shared: bool,
    words: str | None,
) -> None:
    assert described(ending, is_shared).last_end == words
