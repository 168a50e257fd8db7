from contextlib import suppress

import pytest

from millrace.cli.transfer.producing import open_producer
from millrace.client import SyncProducer
from millrace.core.errors import ClosedError


def test_a_command_that_writes_waits_longer_for_a_small_quota_than_a_program_does() -> None:
    with open_producer("localhost:1") as producer, SyncProducer("localhost:1") as other:
        ours, usual = producer._pipeline.config, other._pipeline.config
        assert ours.delivery_timeout_ms >= 10 * usual.delivery_timeout_ms
        assert ours.max_block_ms >= 10 * usual.max_block_ms


def test_after_ctrl_c_nothing_is_delivered_at_the_end_of_the_process() -> None:
    with suppress(KeyboardInterrupt), open_producer("localhost:1") as producer:
        handle = producer.send("greetings", b"hello")
        raise KeyboardInterrupt
    assert producer._pipeline.is_closed, "the end of the process would deliver its records"
    with pytest.raises(ClosedError, match="abandoned"):
        handle.result(10)
