"""Files by which the operator reaches the brokers of each cluster."""

import asyncio
import tempfile
from pathlib import Path

import pytest

from millrace.operator.reconcile.brokers import Brokers
from millrace.operator.reconcile.resources import cluster_of
from millrace.runtime.certificates import new_authority


def test_the_files_of_a_cluster_go_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They lie in memory: an operator sees many clusters come and go."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    authority = new_authority("test", days=1).certificate

    def files() -> set[str]:
        return {path.name for path in tmp_path.rglob("*") if path.is_file()}

    async def look() -> None:
        brokers = Brokers()
        for name in ("c", "d"):
            metadata = {"namespace": "n", "name": name, "uid": name, "generation": 1}
            pools = [{"name": "b", "volumes": [{"name": "data", "size": "1Gi"}]}]
            cluster = cluster_of({"metadata": metadata, "spec": {"pools": pools}})
            brokers.trust(cluster, authority)
            brokers.show(cluster, "token")
        assert len(files()) == 4
        await brokers.forget("n", "c")
        await brokers.forget("n", "never-there")
        assert files() == {"n.d.crt", "n.d.token"}
        await brokers.close()

    asyncio.run(look())
    assert files() == set()
