"""A response that is encoded an entry at a time has the bytes of the whole."""

from typing import Any

import pytest
from kafka.protocol.admin import DescribeConfigsResponse

from millrace.broker.kafka.wire.codec import ListEncoder

KIND = DescribeConfigsResponse.DescribeConfigsResult


def result(number: int) -> Any:
    config = KIND.DescribeConfigsResourceResult(
        name="retention.ms", value=str(number), documentation="x" * number, synonyms=[]
    )
    return KIND(
        error_code=0,
        error_message=None,
        resource_type=2,
        resource_name=f"t{number}",
        configs=[config] * (number % 3),
    )


@pytest.mark.parametrize("version", range(1, 5))
@pytest.mark.parametrize("count", [0, 1, 126, 127, 128, 300])
def test_its_bytes_are_those_of_the_whole(version: int, count: int) -> None:
    answer = ListEncoder(DescribeConfigsResponse(), "results", version)
    entries = [result(number) for number in range(count)]
    for entry in entries:
        answer.add(entry)
    whole = bytes(DescribeConfigsResponse(results=entries).encode(version=version))
    assert b"".join(answer.parts()) == whole
    assert len(whole) - 2 <= answer.size <= len(whole)
