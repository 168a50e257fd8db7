"""Controllers that all believe to be the one, over one store whose answers get lost.

One seed is one history. Whatever the order: what was answered is stored and stays, a name belongs
to one topic, no id or epoch is given twice, and a leader epoch has one leader.
"""

import random
from itertools import pairwise

import pytest
from tests.fakes.controller_driver import ControllerDriver, Objects

from millrace.core.errors import Appended, MillraceError
from millrace.core.ids import BrokerEpoch, MonotonicMs, TopicId
from millrace.core.metadata.controller import Phase
from millrace.core.metadata.encoding import decode_shard
from millrace.core.metadata.model import SHARD_KEYS, BrokerLife, BrokerRegistration, Topic
from millrace.core.metadata.requests import (
    AllocateProducerIds,
    AlterTopics,
    CreateTopics,
    DeleteTopics,
    Heartbeat,
    NewTopic,
    RegisterBroker,
    Request,
    TopicChange,
    TopicRef,
)
from millrace.core.metadata.stored import StoredObject
from millrace.core.topics import TopicName

NAMES = [f"t{number}" for number in range(8)]
DELETABLE = NAMES[:3]
STEPS = 400


class History:
    """One run: random steps of several controllers, and what their answers promised."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.objects = Objects()
        self.drivers: list[ControllerDriver] = []
        self.open: list[tuple[ControllerDriver, int, Request]] = []
        self.incarnations = 0
        self.life: BrokerLife | None = None  # The last one that was granted.
        self.producer_ids: list[range] = []
        self.broker_epochs: dict[BrokerEpoch, str] = {}
        self.created: dict[TopicId, Topic] = {}
        self.partitions: dict[TopicId, int] = {}
        self.deleted = NAMES[0]
        self.seen: dict[str, StoredObject] = {}
        self.names: dict[str, list[TopicName]] = {}
        self.answers = 0
        self.now = 0

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
            self.collect()
            self.look()
        for driver in self.drivers:
            driver.settle()
        self.collect()

    def look(self) -> None:
        """Whatever is stored last: a name is one topic's."""
        for number, key in enumerate(SHARD_KEYS):
            stored = self.objects.get(key)
            if stored is not None and stored is not self.seen.get(key):
                self.seen[key] = stored
                topics = decode_shard(number, stored).topics.values()
                self.names[key] = [topic.name for topic in topics]
        names = [name for each in self.names.values() for name in each]
        assert len(names) == len({*names})

    def step(self) -> None:
        active = [each for each in self.drivers if each.resigned is None]
        if not active or (len(active) < 3 and self.rng.random() < 0.01):
            driver = ControllerDriver(self.objects)
            self.drivers.append(driver)
            driver.perform(driver.machine.take_over())
            return
        driver = self.rng.choice(active)
        if driver.machine.phase is Phase.TAKING_OVER:
            for _ in range(self.rng.randrange(20)):
                self.answer(driver)
        elif self.rng.random() < 0.1:
            self.now += 100
            driver.perform(driver.machine.tick(MonotonicMs(self.now)))
        elif self.rng.random() < 0.3:
            request = self.request()
            self.open.append((driver, driver.send(request), request))
        else:
            self.answer(driver)

    def answer(self, driver: ControllerDriver) -> None:
        """Let the store answer something."""
        if driver.reads and self.rng.random() < 0.7:
            self.rng.shuffle(driver.reads)
            driver.read()
        elif driver.writes:
            self.rng.shuffle(driver.writes)
            if self.rng.random() < 0.8:
                driver.write()
            elif self.rng.random() < 0.5:
                driver.lose_answer(applied=False)
            else:
                self.lose_answer_of_a_write(driver)

    def lose_answer_of_a_write(self, driver: ControllerDriver) -> None:
        """The write may have been done or refused: the machine cannot know."""
        write = driver.writes.pop(0)
        self.objects.swap(write.key, write.stored)
        driver.perform(driver.machine.on_write_refused(write.key))

    def request(self) -> Request:
        name = self.rng.choice(NAMES)
        match self.rng.randrange(8):
            case 6 | 7 if self.life is not None:
                return Heartbeat(life=self.life, metadata_epoch=1 << 40)
            case 0 if self.rng.random() < 0.5:
                self.incarnations += 1
                return RegisterBroker(
                    name="a",
                    rack="",
                    host="h",
                    port=1,
                    incarnation_id=str(self.incarnations),
                    directory_ids=["d"],
                    broker_id=None,
                    previous_broker_epoch=self.life.broker_epoch if self.life else None,
                )
            case 1:
                return AllocateProducerIds()
            case 2:
                name = self.deleted = self.rng.choice(DELETABLE)
                return DeleteTopics(topics=[TopicRef(name=name)])
            case 3:
                partitions = self.rng.randrange(1, 5)
                return AlterTopics(
                    changes=[TopicChange(topic=TopicRef(name=name), partitions=partitions)]
                )
            case _:
                if self.rng.random() < 0.3:  # Made again, maybe before it is gone.
                    name = self.deleted
                topic_id = TopicId(self.rng.randbytes(16))
                return CreateTopics(topics=[NewTopic(name=name)], topic_ids=[topic_id])

    def collect(self) -> None:
        """Note what the answers since the last time promise."""
        waiting = []
        for driver, request_id, request in self.open:
            if request_id in driver.results:
                self.note(request, driver.results[request_id])
            else:
                waiting.append((driver, request_id, request))
        self.open = waiting

    def note(self, request: Request, result: object) -> None:
        only = result[0] if isinstance(result, list) else result
        self.answers += not isinstance(only, MillraceError)
        match result:
            case range():
                self.producer_ids.append(result)
            case BrokerRegistration(broker_epoch=epoch, incarnation_id=incarnation_id):
                self.life = result.life
                assert self.broker_epochs.setdefault(epoch, incarnation_id) == incarnation_id
            case [Topic() as topic] if not isinstance(request, DeleteTopics):
                if isinstance(request, CreateTopics):
                    self.created[topic.topic_id] = topic
                self.partitions[topic.topic_id] = max(
                    len(topic.partitions), self.partitions.get(topic.topic_id, 0)
                )
            case _:
                pass


@pytest.mark.parametrize("seed", range(30))
def test_what_was_answered_holds_whoever_was_the_controller(seed: int) -> None:
    history = History(seed)
    history.run()
    final = ControllerDriver(history.objects).take_over()
    assert final.resigned is None
    image = final.image
    # A name is one topic's.
    assert len(image.topics) == len(image.topics_by_id)
    # What was created is there, unless it may have been deleted.
    for topic_id, topic in history.created.items():
        if str(topic.name) not in DELETABLE:
            assert image.topics_by_id[topic_id].name == topic.name
    for topic_id, partitions in history.partitions.items():
        if topic_id in image.topics_by_id:
            assert len(image.topics_by_id[topic_id].partitions) >= partitions
    # Nothing is given twice.
    given = sorted(history.producer_ids, key=lambda block: block.start)
    assert all(before.stop <= after.start for before, after in pairwise(given))
    if history.broker_epochs:
        assert image.cluster.last_broker_epoch >= max(history.broker_epochs)
    # A leader epoch has one leader, whoever tells of it.
    leaders: dict[tuple[TopicId, int, int], BrokerLife] = {}
    for driver in history.drivers:
        for published in driver.images:
            for topic in published.topics_by_id.values():
                for number, state in enumerate(topic.partitions):
                    if state.leader_life is not None:
                        key = (topic.topic_id, number, state.leader_epoch)
                        assert leaders.setdefault(key, state.leader_life) == state.leader_life
    # What a controller published is of one line: a later epoch never shows an older object.
    images = sorted(
        (image for driver in history.drivers for image in driver.images),
        key=lambda image: image.cluster.version,
    )
    for before, after in pairwise(images):
        assert before.cluster.controller_epoch <= after.cluster.controller_epoch


def test_the_histories_are_worth_their_name() -> None:
    """Several controllers are active, resign in mid-request, and many requests succeed."""
    histories = [History(seed) for seed in range(10)]
    for history in histories:
        history.run()
    resigned = sum(each.resigned is not None for h in histories for each in h.drivers)
    interrupted = sum(
        isinstance(result, MillraceError) and result.appended is Appended.MAYBE
        for history in histories
        for driver in history.drivers
        for result in driver.results.values()
    )
    assert sum(history.answers for history in histories) > 100
    assert sum(len(history.created) for history in histories) > 20
    assert any(
        state.leader_epoch > 1
        for history in histories
        for driver in history.drivers
        for image in driver.images[-1:]
        for topic in image.topics_by_id.values()
        for state in topic.partitions
    )
    assert resigned > 5
    assert interrupted > 5
