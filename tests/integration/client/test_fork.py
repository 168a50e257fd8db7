"""Clients in a process that forks; in programs of their own, as a fork needs a process."""

import os
import subprocess
import sys

import pytest
from tests.integration.running_broker import RunningBroker

_PREPARED = """
import gc, os, signal, sys, warnings
warnings.simplefilter("ignore")  # From 3.12 on a fork beside threads is warned of.
from millrace.client import ClosedError, MillraceError, SyncAdmin, SyncConsumer, SyncProducer

NOBODY = "127.0.0.1:1"

def forked(work):
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
        return
    signal.alarm(60)  # A child that waits for ever ends as well.
    try:
        work()
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)

def refused(work):
    try:
        work()
    except ClosedError as error:
        assert "fork" in error.message, error
    else:
        raise AssertionError("it was not refused")

"""

_PRODUCER = """
producer = SyncProducer(NOBODY, partitioner=lambda *_: 0)
handle = producer.send("orders", b"before")
batch = producer.send_batch("orders", [b"before"])
del producer._token[0]  # As if another thread were just sending.

def copy():
    refused(lambda: producer.send("orders", b"v"))
    refused(lambda: producer.send("orders", b"v", timestamp=5))
    refused(lambda: producer.send_batch("orders", [b"v"]))
    refused(producer.flush)
    refused(handle.result)
    refused(batch.result)
    refused(batch[0].result)

forked(copy)
producer._token.append(None)
assert not handle.done()
producer.send("orders", b"after")
"""

_CONSUMER = """
consumer = SyncConsumer(NOBODY)
consumer._core.fetching.lock.acquire()  # As if the loop's thread were just taking what came.
consumer._core._user.acquire()  # As if another thread were just polling.

def copy():
    refused(consumer.poll)
    refused(consumer.poll_batches)
    refused(lambda: next(iter(consumer)))
    refused(lambda: consumer.assign([("orders", 0)]))
    assert consumer.assignment() == []

forked(copy)
consumer._core.fetching.lock.release()
consumer._core._user.release()
assert not consumer.poll(0)
"""

_STARTED = """
import subprocess, threading
from concurrent.futures import ThreadPoolExecutor

address = sys.argv[1]
is_over = threading.Event()

def produce():
    with SyncProducer(address, linger_ms=0) as producer:
        while not is_over.is_set():
            producer.send("forks", b"v").result(60)

with SyncAdmin(address) as admin:
    admin.create_topic("forks")
with ThreadPoolExecutor() as pool:
    producers = [pool.submit(produce) for _ in range(2)]
    try:
        for _ in range(100):
            subprocess.run(["true"], check=True, preexec_fn=lambda: None)  # So it forks.
    finally:
        is_over.set()
    for producer in producers:
        producer.result()
"""

_NEW = """
SyncProducer(NOBODY)

def new():
    SyncProducer(NOBODY)

forked(new)  # Nobody has connected yet.
try:
    SyncAdmin(NOBODY, request_timeout_ms=2000).list_topics()
except MillraceError:
    pass

def too_late():
    gc.collect()  # What gRPC left in the parent would wait for its threads.
    for kind in (SyncProducer, SyncConsumer, SyncAdmin):
        refused(lambda: kind(NOBODY))

forked(too_late)
"""

_LOGGED = """
import atexit, logging, threading, time
from millrace.client._threads.logs import Log, _by_loop
from millrace.client._sync.loop_thread import LoopThread

async def log():
    Log("program").log(logging.WARNING, "logged by a thread that the child lacks")

LoopThread.shared().call(log())

def threads():
    return [lines._thread for lines in _by_loop.values()]

def end():
    assert threads() == [None], "its end would wait for a thread that it lacks"
    sys.stderr.flush()
    atexit._run_exitfuncs()

assert threads() != [None]
forked(end)

class Slow:  # The thread that logs holds its lock for long, as that of `sys.stderr`.
    def __init__(self):
        self.lock = threading.Lock()

    def write(self, text):
        with self.lock:
            time.sleep(0.01)

    def flush(self):
        with self.lock:
            pass

logging.getLogger().addHandler(logging.StreamHandler(Slow()))
for _ in range(20):
    LoopThread.shared().call(log())
    forked(end)
"""


@pytest.mark.parametrize(
    "story",
    [_PRODUCER, _CONSUMER, _NEW, _LOGGED],
    ids=["producer", "consumer", "new", "logged"],
)
def test_a_copy_that_a_fork_made_says_so(story: str) -> None:
    program = f"{_PREPARED}{story}\nos._exit(0)\n"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100, env=environment)


def test_programs_start_by_forks_while_clients_are_at_work(shared_broker: RunningBroker) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("GRPC_ENABLE_FORK_SUPPORT", None)  # The client sets it, and not this process.
    command = (sys.executable, "-c", _PREPARED + _STARTED, shared_broker.address)
    subprocess.run(command, check=True, timeout=100, env=environment)
