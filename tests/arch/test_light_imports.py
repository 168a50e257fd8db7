"""What processes must not load: a broker and a producer no pandas, which pyarrow takes in by itself
where there is one; the operator no pyarrow, which it does not need and which is a third of its
memory. Nor does it load the broker: the settings that it fills in and checks are in the core.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.arch.repository import ROOT

READ_A_BATCH = """
import sys
import millrace.broker.app
from millrace.core.ids import TopicId, TopicPartition, WallMs
from millrace.core.records import batch
from millrace.core.records.batch_limits import BatchLimits
from millrace.core.records.columns import Columns

partition = TopicPartition(TopicId(bytes(16)), 0)
prepared = batch.prepare(partition, Columns(1, WallMs(1), None))
data = prepared.finish() + bytes(prepared.body)
limits = BatchLimits(batch_bytes_max=999, inflated_bytes_max=999)
header = batch.check(partition, data, limits)
assert batch.open_batch(partition, header, data, 999).num_rows == 1

from millrace.core.replica.compaction.batches import BatchCleaner, CleaningRules
from millrace.core.replica.compaction.batches import KeyCollector, open_groups
from millrace.core.replica.compaction.key_hashes import KeyHasher
from millrace.core.replica.compaction.offset_map import OffsetMap
from millrace.core.records.header import stamp

prepared = batch.prepare(partition, Columns(3, WallMs(1), None, [b"a", b"b", b"a"]))
log = stamp(prepared.finish(), base_offset=0, leader_epoch=0) + bytes(prepared.body)
hasher, offset_map = KeyHasher(bytes(16)), OffsetMap(999, 3)
collector = KeyCollector(offset_map, hasher, 0)
(group,) = open_groups(partition, log, 999)
collector.take(group)
rules = CleaningRules(
    topic_partition=partition, start_offset=0, end_offset=3, now=WallMs(1), delete_retention_ms=1,
    tombstones_end=3,
    last_batches={}, batch_bytes_max=999,
)
cleaner = BatchCleaner(rules, offset_map, hasher)
(made,) = [*cleaner.take(group), *cleaner.finish()]
assert made.header.record_count == 2
assert "pandas" not in sys.modules, "pandas was imported"
"""

SEND_RECORDS = """
import random
import sys
from millrace.core.client.producer.batch import encode
from millrace.core.client.producer.distributor import Distributor, TopicLayout
from millrace.core.client.producer.intake import Intakes
from millrace.core.client.producer.partitioners import Keyed
from millrace.core.ids import MonotonicMs, TopicId, WallMs
from millrace.core.records.compression import Compressor

distributor = Distributor(1000, Keyed(), lambda place: 0, random.Random(1))
intakes = Intakes(10000, 100000)
named = [("name", b"value"), ("of none", None)]
for key, headers in ((None, None), (b"key", None), (b"key", named)):
    for number in range(100):
        value = None if number % 10 == 3 else b"value %d" % number
        intakes.add("orders", value, key, None, headers, None, MonotonicMs(0), WallMs(0))
    intakes.close("orders")
    distributor.distribute(intakes.closed.pop(), TopicLayout(TopicId(bytes(16)), 4))
distributor.seal_opened_until(MonotonicMs(0))
assert sum(encode(batch, Compressor()).record_count for batch in distributor.sealed) == 300
assert "pandas" not in sys.modules, "pandas was imported"
"""


@pytest.mark.parametrize("program", [READ_A_BATCH, SEND_RECORDS], ids=["broker", "producer"])
def test_a_broker_that_opens_batches_and_a_producer_of_records_do_not_load_pandas(
    program: str, tmp_path: Path
) -> None:
    (tmp_path / "pandas").mkdir()
    (tmp_path / "pandas" / "__init__.py").write_text('__version__ = "2.3.0"\n')
    search_path = [str(tmp_path), *sys.path]
    outcome = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {search_path}\n{program}"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (outcome.returncode, outcome.stderr) == (0, "")


def loads(module: str, unwanted: str) -> bool:
    code = f"import sys, {module}; sys.exit({unwanted!r} in sys.modules)"
    return subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode != 0


@pytest.mark.parametrize(
    "module", ["millrace.operator.app", "millrace.web.site", "millrace.client._sync.admin"]
)
def test_the_operator_the_web_page_and_administration_do_without_arrow(module: str) -> None:
    """The page loads it when it reads the first records."""
    assert not loads(module, "pyarrow")


@pytest.mark.parametrize("unwanted", ["millrace.client", "asyncio"])
def test_the_socket_of_the_web_page_costs_no_more_than_itself(unwanted: str) -> None:
    assert not loads("millrace.cli.local.web_page", unwanted)


@pytest.mark.parametrize("module", ["millrace.operator.app", "crds.generate"])
def test_the_settings_of_a_broker_are_read_without_a_broker(module: str) -> None:
    assert not loads(module, "millrace.broker")
