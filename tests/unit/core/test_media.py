"""Which brokers and which log directories a topic's media asks for."""

import pytest

from millrace.core.media import Media, TopicMedia

SSD, HDD = Media.SSD, Media.HDD


@pytest.mark.parametrize(
    ("wanted", "there", "fits"),
    [
        (TopicMedia.ANY, (), True),
        (TopicMedia.SSD, (SSD, HDD), True),
        (TopicMedia.SSD, (HDD,), False),
        (TopicMedia.HDD, (), False),
        (TopicMedia.TIERED, (SSD, HDD), True),
        (TopicMedia.TIERED, (SSD,), False),
        (TopicMedia.TIERED, (HDD,), False),
    ],
)
def test_a_broker_has_what_a_topic_asks_for(
    wanted: TopicMedia, there: tuple[Media, ...], *, fits: bool
) -> None:
    assert wanted.is_among(there) is fits


@pytest.mark.parametrize(
    ("wanted", "homes"),
    [
        (TopicMedia.ANY, [SSD, HDD]),
        (TopicMedia.SSD, [SSD]),
        (TopicMedia.HDD, [HDD]),
        (TopicMedia.TIERED, [SSD]),
    ],
)
def test_a_replica_is_written_where_its_home_may_be(wanted: TopicMedia, homes: list[Media]) -> None:
    assert [kind for kind in Media if wanted.is_home_on(kind)] == homes
