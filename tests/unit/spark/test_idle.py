"""A client is kept for the next task, if that wants one of its kind."""

import subprocess
import sys

from millrace.spark.idle import IdleClient


class Client:
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_a_client_is_handed_out_again_to_one_task_at_a_time() -> None:
    idle = IdleClient(Client)
    first = idle.take("a")
    idle.keep("a", first)
    assert idle.take("a") is first
    assert idle.take("a") is not first
    assert not first.is_closed


def test_one_is_kept_and_the_others_are_closed() -> None:
    idle = IdleClient(Client)
    first, second = idle.take("a"), idle.take("a")
    idle.keep("a", first)
    idle.keep("a", second)
    assert (first.is_closed, second.is_closed) == (True, False)
    other = idle.take("b")
    assert other.kind == "b"
    idle.keep("b", other)
    assert second.is_closed
    idle.close()
    assert other.is_closed
    idle.close()


_FORKED = """
import os
from millrace.client import ClosedError
from millrace.spark.idle import IdleClient

class Client:
    def __init__(self, kind):
        self.process_id = os.getpid()

    def close(self):
        if self.process_id != os.getpid():
            raise ClosedError("a client does not survive fork()")

idle = IdleClient(Client)
inherited = idle.take("a")
idle.keep("a", inherited)
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
    assert idle.take("a") is inherited
else:
    own = idle.take("a")
    assert own is not inherited
    idle.keep("a", own)
    assert idle.take("a") is own
"""


def test_a_forked_process_has_a_client_of_its_own() -> None:
    subprocess.run([sys.executable, "-c", _FORKED], check=True)


_LOADED = """
import gc
import millrace.spark.sink
import millrace.spark.range_reader

loaded = gc.get_freeze_count()
assert loaded > 10_000, loaded
assert len(gc.get_objects()) < loaded / 10
"""


def test_a_worker_does_not_look_through_what_it_has_loaded() -> None:
    subprocess.run([sys.executable, "-c", _LOADED], check=True)
