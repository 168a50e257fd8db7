"""The memory of messages that arrive: connections of several machines, most of them hostile.

Each sends messages in parts, as far as it is read. Handlers take complete messages whenever the
test says so. Whatever the order, the bound holds, and honest connections come to an end.
"""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from millrace.runtime.transport.receive_memory import (
    FREE_BYTES,
    STEP_BYTES,
    Holder,
    ReceiveMemory,
)

BOUND = 4 * STEP_BYTES
HOST_BOUND = 2 * STEP_BYTES
MESSAGE = 3 * STEP_BYTES
CONNECTIONS = 8


class Connection:
    """A connection that is read where it may be, as `FrameReader` does it."""

    def __init__(self, memory: ReceiveMemory, host: str) -> None:
        self.holder = Holder(memory, self.on_room)
        self.holder.belong_to(host)
        self.is_read = True
        self.arrived = 0  # Of the message that is not complete.
        self.complete = 0

    def on_room(self) -> None:
        if self.holder.room():
            self.is_read = True

    def receive(self, size: int) -> None:
        """The other side sends, and no more arrives than is read."""
        if not self.is_read:
            return
        size = min(size, self.holder.allowance(), MESSAGE - self.arrived)
        self.holder.charge(size)
        self.arrived += size
        if self.arrived == MESSAGE:
            self.holder.complete(MESSAGE)
            self.arrived, self.complete = 0, self.complete + MESSAGE
        if self.holder.used and not self.holder.room():
            self.is_read = False

    def take(self) -> None:
        """A handler takes the complete messages."""
        taken, self.complete = self.complete, 0
        self.holder.release(taken)
        if not self.holder.used and not self.is_read:
            self.holder.withdraw()
            self.is_read = True

    def close(self) -> None:
        self.holder.close()
        self.is_read = False


ACTIONS = st.tuples(
    st.sampled_from(["receive", "receive", "receive", "take", "close"]),
    st.integers(0, CONNECTIONS - 1),
    st.integers(1, 2 * STEP_BYTES),
)


@example([("receive", 0, 49153), *[("receive", 1, STEP_BYTES)] * 3], 1)
@settings(max_examples=300)
@given(st.lists(ACTIONS, max_size=60), st.integers(1, 3))
def test_the_bound_holds_and_no_connection_waits_for_ever(
    actions: list[tuple[str, int, int]], hosts: int
) -> None:
    memory = ReceiveMemory(BOUND, HOST_BOUND)
    connections = {
        number: Connection(memory, f"host {number % hosts}") for number in range(CONNECTIONS)
    }
    beyond = MESSAGE + CONNECTIONS * FREE_BYTES
    for name, number, size in actions:
        connection = connections.get(number)
        if connection is None:
            continue
        if name == "receive":
            connection.receive(size)
        elif name == "take":
            connection.take()
        else:
            connection.close()
            del connections[number]
        assert memory.used == sum(one.holder.used for one in connections.values())
        assert memory.used <= BOUND + beyond
    # From now on all are honest: each completes its message, and each message is taken.
    for _ in range(CONNECTIONS * 2):
        for connection in connections.values():
            while connection.is_read and (connection.arrived or connection.holder.used):
                connection.receive(STEP_BYTES)
                connection.take()
            connection.take()
    assert [one.holder.used for one in connections.values()] == [0] * len(connections)
    assert all(one.is_read for one in connections.values())
    for connection in connections.values():
        connection.close()
    assert memory.used == 0
    assert not memory.waiting
    assert memory.overdrawn is None
