"""The format: what is imported to know it, and which options are refused before anything else."""

import inspect
import subprocess
import sys
from typing import Any

import pytest

from millrace.spark.errors import InvalidOptionError

LOADED = """
import sys
import pyspark_millrace
print(*sorted({name.partition(".")[0] for name in sys.modules}))
print(*(name for name in sys.modules if name.startswith("millrace.client")))
"""


def test_to_know_the_format_takes_neither_the_client_nor_grpc() -> None:
    pytest.importorskip("pyspark.sql", reason="needs pyspark: sh requirements/install.sh spark")
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, check=True)
    roots, of_client = done.stdout.decode().splitlines()
    assert "pyspark" in roots.split()
    assert "grpc" not in roots.split()
    assert not of_client


LEAST = {"bootstrap.servers": "localhost:7092", "subscribe": "clicks"}


@pytest.fixture
def source_module() -> Any:
    return pytest.importorskip(
        "millrace.spark.data_source", reason="needs pyspark: sh requirements/install.sh spark"
    )


def test_load_refuses_options_with_which_nothing_can_be_read(source_module: Any) -> None:
    with pytest.raises(InvalidOptionError) as raised:
        source_module.MillraceDataSource({**LEAST, "subscibe": "x"}).schema()
    assert raised.value.message == "subscibe: there is no such setting; did you mean 'subscribe'?"


def test_each_kind_of_query_is_told_only_what_is_wrong_with_it(source_module: Any) -> None:
    source = source_module.MillraceDataSource({**LEAST, "startingoffsets": "latest"})
    schema = source.schema()  # It is not known yet which kind it is.
    with pytest.raises(InvalidOptionError) as raised:
        source.reader(schema)
    assert raised.value.message.startswith("startingOffsets: a batch that begins at the latest")
    assert "stream" not in raised.value.message
    with pytest.raises(InvalidOptionError, match="needs groupId") as raised:
        source.streamReader(schema).initialOffset()
    assert "batch" not in raised.value.message


def test_load_leaves_options_of_a_stream_and_of_a_sink(source_module: Any) -> None:
    options_of_batch = source_module._options_of_batch
    assert options_of_batch({**LEAST, "startingoffsets": "latest", "groupid": "etl"}) is None
    assert options_of_batch({"bootstrap.servers": "localhost:7092", "topic": "clicks"}) is None
    assert options_of_batch(LEAST).subscription.names == ("clicks",)


def test_a_stream_that_cannot_be_says_why_whatever_it_is_asked_first(source_module: Any) -> None:
    source = source_module.MillraceDataSource({**LEAST, "endingoffsets": "latest"})
    reader = source.streamReader(source_module.source_schema(with_headers=False))
    assert len(inspect.signature(reader.latestOffset).parameters) == 2  # Spark looks at them.
    for ask in (
        reader.initialOffset,
        reader.getDefaultReadLimit,
        reader.prepareForTriggerAvailableNow,
        lambda: reader.latestOffset({}, None),
        lambda: reader.partitions({}, {}),
        lambda: reader.read(None),
    ):
        with pytest.raises(InvalidOptionError, match="endingOffsets has no meaning in a stream"):
            ask()
    reader.stop()


def test_a_table_with_options_is_refused_as_no_query_would_get_them(source_module: Any) -> None:
    table = {"provider": "millrace", "owner": "anna"}
    assert source_module.MillraceDataSource(table).schema().names[:2] == ["key", "value"]
    table["option.subscribe"] = "clicks"
    with pytest.raises(InvalidOptionError, match="keeps the OPTIONS of a table"):
        source_module.MillraceDataSource(table).schema()
