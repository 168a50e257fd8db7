"""The module that each Spark driver imports, whatever it reads."""

import subprocess
import sys

import pytest

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
