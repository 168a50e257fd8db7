"""A client is kept for the next task, if that wants one of its kind."""

import subprocess
import sys

import pytest

from millrace.spark.cluster.worker_clients import IdleClient


class Client:
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_a_client_is_lent_again_to_one_task_at_a_time() -> None:
    idle = IdleClient(Client)
    with idle.lent("a") as first:
        pass
    with idle.lent("a") as again:
        assert again is first
        with idle.lent("a") as another:
            assert another is not first
    assert not first.is_closed


def test_one_is_kept_and_the_others_are_closed() -> None:
    idle = IdleClient(Client)
    with idle.lent("a") as second, idle.lent("a") as first:
        pass
    assert (first.is_closed, second.is_closed) == (True, False)
    with idle.lent("b") as other:
        assert other.kind == "b"
    assert second.is_closed
    idle.close()
    assert other.is_closed
    idle.close()


def test_a_client_that_failed_in_mid_flight_is_not_kept() -> None:
    idle = IdleClient(Client)
    with pytest.raises(ValueError, match="of the task"), idle.lent("a") as failed:
        raise ValueError("of the task")
    assert failed.is_closed
    with idle.lent("a") as other:
        assert other is not failed


_FORKED = """
import os
from millrace.client import ClosedError
from millrace.spark.cluster.worker_clients import IdleClient

class Client:
    def __init__(self, kind):
        self.process_id = os.getpid()

    def close(self):
        if self.process_id != os.getpid():
            raise ClosedError("a client does not survive fork()")

idle = IdleClient(Client)
with idle.lent("a") as inherited:
    pass
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
    with idle.lent("a") as kept:
        assert kept is inherited
else:
    with idle.lent("a") as own:
        assert own is not inherited
    with idle.lent("a") as kept:
        assert kept is own
"""


def test_a_forked_process_has_a_client_of_its_own() -> None:
    subprocess.run([sys.executable, "-c", _FORKED], check=True)


_LOADED = """
import gc
import millrace.spark.sink.writer
import millrace.spark.source.range_reader

loaded = gc.get_freeze_count()
assert loaded > 10_000, loaded
assert len(gc.get_objects()) < loaded / 10
"""


def test_a_worker_does_not_look_through_what_it_has_loaded() -> None:
    pytest.importorskip("pyspark")
    subprocess.run([sys.executable, "-c", _LOADED], check=True)


_FIRST_TASK = """
import gc
from weakref import ref
from millrace.spark.cluster.worker_clients import IdleClient

class Client:
    def close(self):
        pass

class Garbage:
    def __init__(self):
        self.itself = self

idle = IdleClient(lambda kind: Client())
before = gc.get_freeze_count()
with idle.lent("a"):
    loaded_by_first = [[] for _ in range(20_000)]
    garbage = ref(Garbage())
assert garbage() is None
assert gc.get_freeze_count() - before >= 20_000
assert len(gc.get_objects()) < 10_000
before = gc.get_freeze_count()
with idle.lent("a"):
    of_second = [[] for _ in range(20_000)]
assert gc.get_freeze_count() <= before
"""


def test_nor_through_what_its_first_task_has_loaded() -> None:
    subprocess.run([sys.executable, "-c", _FIRST_TASK], check=True)
