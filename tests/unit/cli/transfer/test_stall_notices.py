from millrace.cli.transfer.stall_notices import Reading, Sending, Stall


class Waiting:
    """A producer as far as it tells how it goes."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.used = 0
        self.brokers = ["one:7092"]
        self.id_problem: str | None = None

    def metrics(self) -> dict[str, int]:
        return {
            "acknowledged_records": self.acknowledged,
            "failed_records": 0,
            "buffer_available_bytes": 100 - self.used,
            "buffer_total_bytes": 100,
        }

    def awaited_brokers(self) -> list[str]:
        return self.brokers

    def producer_id_problem(self) -> str | None:
        return self.id_problem


def test_waiting_is_told_once_and_going_on_once() -> None:
    producer, told = Waiting(), list[str]()
    stall = Stall(Sending(producer), told.append)
    producer.used = 50
    for tenth in range(30):
        stall.look(100 + tenth / 10)
        assert bool(told) is (tenth >= 10)
    assert told == ["waiting for the broker at one:7092 ..."]
    producer.acknowledged = 5
    for tenth in range(30, 40):
        stall.look(100 + tenth / 10)
    assert told[1:] == ["the broker takes records again"]


def test_who_has_nothing_to_send_waits_for_nobody() -> None:
    producer, told = Waiting(), list[str]()
    stall = Stall(Sending(producer), told.append)
    for second in range(10):
        stall.look(second)
    producer.used = 1  # A line came from the keyboard, after ten seconds.
    stall.look(10)
    assert told == []


def test_who_goes_slowly_does_not_stand_still() -> None:
    producer, told = Waiting(), list[str]()
    stall = Stall(Sending(producer), told.append)
    producer.used = 50
    for producer.acknowledged in range(20):
        stall.look(producer.acknowledged * 0.9)
    assert told == []


def test_a_partition_that_nobody_leads_is_waited_for_as_well() -> None:
    producer, told = Waiting(), list[str]()
    producer.used, producer.brokers = 50, []
    stall = Stall(Sending(producer), told.append)
    stall.look(0)
    stall.look(2)
    assert told == ["waiting for a broker that leads the partition ..."]


def test_records_that_are_to_be_read_are_waited_for_by_name() -> None:
    told = list[str]()
    reading = Reading({("t", 0), ("t", 2)})
    stall = Stall(reading, told.append)
    for tenth in range(30):
        stall.look(tenth / 10)
    (line,) = told
    assert line.startswith("waiting for t-0, t-2 ...")
    assert "millrace cluster health" in line
    reading.count, reading.left = 7, {("t", 2)}
    stall.look(3)
    assert told[1:] == ["records come again"]
    reading.left = set()
    for second in range(4, 10):
        stall.look(second)
    assert len(told) == 2


def test_nobody_is_told_of_partitions_that_have_nothing_to_read() -> None:
    told = list[str]()
    stall = Stall(Reading(set()), told.append)
    for second in range(10):
        stall.look(second)
    assert told == []


def test_who_lacks_a_producer_id_blames_no_leader_and_says_why_as_soon_as_that_is_known() -> None:
    producer, told = Waiting(), list[str]()
    producer.used, producer.id_problem = 50, ""
    stall = Stall(Sending(producer), told.append)
    for second in (0, 1, 2):
        stall.look(second)
    assert told == ["waiting for a producer id, which the controller gives ..."]
    for producer.id_problem in ("there is none", "there is none, still"):
        stall.look(3)
    assert told[1:] == ["waiting for a producer id, which the controller gives: there is none ..."]
    producer.acknowledged = 5
    stall.look(4)
    assert told[2:] == ["the broker takes records again"]
