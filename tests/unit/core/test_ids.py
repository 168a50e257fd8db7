import pytest

from millrace.core.ids import (
    PARTITION_MAX,
    TOPIC_ID_BYTES,
    TopicId,
    TopicPartition,
    parse_topic_partition,
)

TOPIC_ID = TopicId(bytes(range(0xA0, 0xA0 + TOPIC_ID_BYTES)))


@pytest.mark.parametrize("partition", [0, 1, 10, 12_345, PARTITION_MAX])
def test_a_directory_name_stands_for_the_partition_that_it_was_made_from(partition: int) -> None:
    topic_partition = TopicPartition(TOPIC_ID, partition)
    assert parse_topic_partition(str(topic_partition)) == topic_partition


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-",
        "lost+found",
        TOPIC_ID.hex(),
        f"{TOPIC_ID.hex()}-",
        f"{TOPIC_ID.hex()}-01",
        f"{TOPIC_ID.hex()}--1",
        f"{TOPIC_ID.hex()}-+1",
        f"{TOPIC_ID.hex()}-1 ",
        f"{TOPIC_ID.hex()}-1\n",
        f"{TOPIC_ID.hex()}-1.deleted",
        f"{TOPIC_ID.hex()}-{PARTITION_MAX + 1}",
        f"{TOPIC_ID.hex()}-{'9' * 5000}",
        f"{TOPIC_ID.hex()}-\N{ARABIC-INDIC DIGIT ONE}",
        f"{TOPIC_ID.hex().upper()}-1",  # Would be a second directory of the same partition.
        f"{TOPIC_ID.hex()[:-2]}  -1",  # bytes.fromhex skips spaces.
        f"{TOPIC_ID.hex()[:-1]}g-1",
        f"{TOPIC_ID.hex()}00-1",
    ],
)
def test_any_other_name_is_no_partition(name: str) -> None:
    assert parse_topic_partition(name) is None
