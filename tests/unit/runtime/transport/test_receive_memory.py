"""The bound on what has arrived and was not taken: who may read on, and who waits."""

from millrace.runtime.transport.receive_memory import (
    FREE_BYTES,
    STEP_BYTES,
    Holder,
    ReceiveMemory,
)

FOUR_STEPS = 4 * STEP_BYTES


class Woken:
    """Connections that were told to ask again, in order."""

    def __init__(self, memory: ReceiveMemory) -> None:
        self.memory = memory
        self.names: list[str] = []
        self.reads = True

    def holder(self, name: str, host: str = "") -> Holder:
        def on_room() -> None:
            if holder.room():
                self.names.append(name)

        holder = Holder(self.memory, on_room)
        if host:
            holder.belong_to(host)
        return holder


def test_what_has_arrived_is_charged_and_a_connection_beyond_the_bound_waits() -> None:
    memory = ReceiveMemory(FOUR_STEPS)
    woken = Woken(memory)
    first, second, third = (woken.holder(name) for name in "abc")
    first.charge(4 * STEP_BYTES)
    assert first.room(), "it completes its message beyond the bound"
    second.charge(STEP_BYTES)
    assert second.room() == 0
    third.charge(1)
    assert third.room() == 0
    first.complete(4 * STEP_BYTES)
    assert woken.names == [], "its message was not taken"
    first.release(4 * STEP_BYTES)
    assert woken.names == ["b", "c"], "in the order in which they began to wait"
    assert memory.used == STEP_BYTES + 1


def test_when_all_wait_the_oldest_alone_completes_its_message_beyond_the_bound() -> None:
    memory = ReceiveMemory(FOUR_STEPS)
    woken = Woken(memory)
    oldest, second, third = (woken.holder(name) for name in "abc")
    for holder in (oldest, second):
        holder.charge(2 * STEP_BYTES)
    third.charge(10)
    assert oldest.room() == STEP_BYTES
    assert second.room() == third.room() == 0
    oldest.charge(STEP_BYTES)
    assert oldest.room() == STEP_BYTES, "it goes on, step by step"
    oldest.complete(3 * STEP_BYTES)
    assert woken.names == [], "its message is about to leave"
    oldest.release(3 * STEP_BYTES)
    assert woken.names == ["b", "c"]


def test_a_pool_full_of_messages_that_nobody_takes_holds_up_no_other_connection() -> None:
    memory = ReceiveMemory(FOUR_STEPS)
    woken = Woken(memory)
    untaken, first, second = (woken.holder(name) for name in "abc")
    untaken.charge_message(FOUR_STEPS)
    assert untaken.room() == 0, "its message is not taken"
    first.charge(1)
    second.charge(1)
    assert first.room() == STEP_BYTES
    assert second.room() == 0, "one at a time"
    first.charge(STEP_BYTES)
    first.complete(STEP_BYTES + 1)
    assert second.room() == 0
    first.release(STEP_BYTES + 1)
    assert woken.names == ["c"]


def test_a_connection_whose_handler_waits_for_no_message_does_not_exceed_the_bound() -> None:
    memory = ReceiveMemory(FOUR_STEPS)
    woken = Woken(memory)
    untaken, delayed, ready = (woken.holder(name) for name in "abc")
    untaken.charge_message(FOUR_STEPS)
    delayed.is_awaited = False
    delayed.charge(1)
    ready.charge(1)
    assert delayed.room() == 0
    assert ready.room() == STEP_BYTES


def test_a_connection_that_exceeds_the_bound_does_so_until_its_message_is_taken() -> None:
    memory = ReceiveMemory(FOUR_STEPS)
    woken = Woken(memory)
    first, second = woken.holder("a"), woken.holder("b")
    for holder in (first, second):
        holder.charge(2 * STEP_BYTES)
    assert first.room()
    first.complete(2 * STEP_BYTES)
    first.withdraw()  # As a connection whose messages are many.
    assert second.room() == 0
    first.close()
    assert woken.names == ["b"]


def test_a_connection_that_holds_nothing_may_always_read_a_little() -> None:
    memory = ReceiveMemory(FOUR_STEPS)
    woken = Woken(memory)
    full, idle = woken.holder("a"), woken.holder("b")
    full.charge(FOUR_STEPS)
    assert idle.allowance() == FREE_BYTES


def test_the_connections_of_one_address_cannot_take_the_whole_pool() -> None:
    memory = ReceiveMemory(FOUR_STEPS, 2 * STEP_BYTES)
    woken = Woken(memory)
    greedy, more, other = woken.holder("a", "h"), woken.holder("b", "h"), woken.holder("c", "i")
    greedy.charge(2 * STEP_BYTES)
    assert greedy.room() == STEP_BYTES, "of its address, it completes its message first"
    more.charge(1)
    assert more.room() == 0
    assert other.room() >= STEP_BYTES
    other.charge(STEP_BYTES)
    assert not other.others_wait
    assert greedy.others_wait


def test_a_connection_that_is_gone_gives_back_its_bytes_its_place_and_its_turn() -> None:
    memory = ReceiveMemory(FOUR_STEPS)
    woken = Woken(memory)
    oldest, second, third = (woken.holder(name) for name in "abc")
    for holder in (oldest, second, third):
        holder.charge(2 * STEP_BYTES)
    assert oldest.room()
    assert not second.room()
    assert not third.room()
    second.close()
    assert woken.names == []
    oldest.close()
    assert woken.names == ["c"]
    third.close()
    assert memory.used == 0
    assert not memory.waiting


def test_a_connection_whose_messages_nobody_takes_holds_up_no_other_one() -> None:
    memory = ReceiveMemory(FOUR_STEPS)
    woken = Woken(memory)
    oldest, second = woken.holder("a"), woken.holder("b")
    for holder in (oldest, second):
        holder.charge(2 * STEP_BYTES)
    assert oldest.room()
    assert not second.room()
    oldest.withdraw()
    assert woken.names == ["b"]
