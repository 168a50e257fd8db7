import pytest

from millrace.core.errors import InvalidConfigError
from millrace.core.metadata.topic_config import (
    SETTINGS,
    Durability,
    TopicConfig,
    canonical_overrides,
    parse_overrides,
)


def test_the_defaults_are_kafkas_but_for_durability_and_min_isr() -> None:
    defaults = {name: setting.default for name, setting in SETTINGS.items()}
    assert defaults == {
        "durability": "fsync",
        "media": "any",
        "retention.ms": 604_800_000,
        "retention.bytes": -1,
        "retention.records": -1,
        "local.retention.ms": 86_400_000,
        "local.retention.bytes": -1,
        "cleanup.policy": "delete",
        "min.cleanable.dirty.ratio": 0.5,
        "min.compaction.lag.ms": 0,
        "max.compaction.lag.ms": 2**63 - 1,
        "delete.retention.ms": 86_400_000,
        "deletion.protection": False,
        "segment.bytes": 1_073_741_824,
        "segment.ms": 604_800_000,
        "index.interval.bytes": 4096,
        "max.message.bytes": 1_048_588,
        "min.insync.replicas": -1,
        "unclean.leader.election.enable": False,
        "message.timestamp.type": "CreateTime",
        "message.timestamp.before.max.ms": 2**63 - 1,
        "message.timestamp.after.max.ms": 3_600_000,
    }


def test_settings_are_set_by_kafkas_names() -> None:
    config = parse_overrides({"retention.ms": "7d", "durability": "replicated"})
    assert config == TopicConfig(retention_ms=604_800_000, durability=Durability.REPLICATED)


def test_what_is_stored_is_canonical() -> None:
    overrides = {"segment.bytes": "64MiB", "retention.ms": "1.5h"}
    assert canonical_overrides(overrides) == {
        "retention.ms": "5400000",
        "segment.bytes": "67108864",
    }


def test_segments_that_would_end_all_the_time_are_refused_and_stored_ones_can_be_read() -> None:
    assert canonical_overrides({"segment.ms": "1s"}) == {"segment.ms": "1000"}
    with pytest.raises(InvalidConfigError, match=r"segment\.ms: 999 ms is too short"):
        canonical_overrides({"segment.ms": "999"})
    assert parse_overrides({"segment.ms": "1"}).segment_ms == 1


def test_lags_of_compaction_fit_each_other_and_the_ends_of_segments() -> None:
    assert canonical_overrides({"max.compaction.lag.ms": "1s"}) == {"max.compaction.lag.ms": "1000"}
    with pytest.raises(InvalidConfigError, match=r"max\.compaction\.lag\.ms: 999 ms is too short"):
        canonical_overrides({"max.compaction.lag.ms": "999"})
    with pytest.raises(InvalidConfigError, match=r"must not be more than max\.compaction\.lag\.ms"):
        canonical_overrides({"min.compaction.lag.ms": "2h", "max.compaction.lag.ms": "1h"})


def test_a_cleanup_policy_has_one_form_whatever_the_order() -> None:
    for text in ("compact,delete", "delete,compact", "Delete, Compact"):
        assert canonical_overrides({"cleanup.policy": text}) == {"cleanup.policy": "compact,delete"}
    for wrong in ("", "compact,compact", "compress", "delete,delete,compact"):
        with pytest.raises(InvalidConfigError, match="must be delete, compact or compact,delete"):
            canonical_overrides({"cleanup.policy": wrong})


def test_the_attribute_s_name_is_answered_with_kafkas() -> None:
    with pytest.raises(InvalidConfigError, match=r"did you mean 'retention\.ms'"):
        parse_overrides({"retention_ms": "1"})


def test_every_setting_of_a_topic_counts_at_once() -> None:
    assert not any(setting.description.needs_restart for setting in SETTINGS.values())


@pytest.mark.parametrize(
    ("setting", "replicas", "effective"),
    [(1, 3, 1), (2, 3, 2), (3, 1, 1), (-1, 1, 1), (-1, 2, 1), (-1, 3, 2), (-1, 5, 4)],
)
def test_no_more_replicas_are_asked_for_than_there_are(
    setting: int, replicas: int, effective: int
) -> None:
    config = TopicConfig(min_insync_replicas=setting)
    assert config.effective_min_insync_replicas(replicas) == effective
