"""What processes must not load: a broker no pandas, which pyarrow takes in by itself where there is
one; the operator no pyarrow, which it does not need and which is a third of its memory.
"""

import subprocess
import sys
from pathlib import Path

READ_A_BATCH = """
import sys
import millrace.broker.app
from millrace.core.ids import TopicId, TopicPartition, WallMs
from millrace.core.records import batch
from millrace.core.records.columns import Columns

partition = TopicPartition(TopicId(bytes(16)), 0)
prepared = batch.prepare(partition, Columns(1, WallMs(1), None))
data = prepared.finish() + bytes(prepared.body)
limits = batch.BatchLimits(batch_bytes_max=999, inflated_bytes_max=999)
header = batch.check(partition, data, limits)
assert batch.open_batch(partition, header, data, 999).num_rows == 1
assert "pandas" not in sys.modules, "pandas was imported"
"""


def test_a_broker_that_opens_batches_does_not_load_pandas(tmp_path: Path) -> None:
    (tmp_path / "pandas").mkdir()
    (tmp_path / "pandas" / "__init__.py").write_text('__version__ = "2.3.0"\n')
    search_path = [str(tmp_path), *sys.path]
    outcome = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {search_path}\n{READ_A_BATCH}"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (outcome.returncode, outcome.stderr) == (0, "")


def test_the_operator_does_without_arrow() -> None:
    code = "import sys, millrace.operator.app; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
