"""Quotas at the controller: set, deleted, kept over controllers, divided with heartbeats."""

from tests.fakes.cluster import registration
from tests.fakes.controller_driver import ControllerDriver, Objects

from millrace.core.errors import (
    InvalidQuotaError,
    MalformedRequestError,
    MillraceError,
    QuotaNotFoundError,
    QuotasFullError,
)
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.model import BrokerLife
from millrace.core.metadata.requests import (
    DeleteQuotas,
    Heartbeat,
    HeartbeatAnswer,
    SetQuotas,
)
from millrace.core.quotas.quota import Bucket, Quota, QuotaEntity, QuotaKind
from millrace.core.quotas.shares import BucketUse


def quota(name: str = "q", limit: int = 9000, **whom: str) -> Quota:
    return Quota(
        name=name,
        entity=QuotaEntity(**(whom or {"client_id": name})),
        produce_bytes_per_second=limit,
    )


def cluster(brokers: int = 1, config: ClusterConfig | None = None) -> ControllerDriver:
    driver = ControllerDriver(Objects(), config).take_over()
    for number in range(brokers):
        driver.start_broker(registration(number))
    return driver


def put(driver: ControllerDriver, *quotas: Quota, validate_only: bool = False) -> list[object]:
    answer = driver.ask(SetQuotas(quotas=quotas, validate_only=validate_only))
    assert isinstance(answer, list)
    return answer


def refused(answer: object, kind: type[MillraceError], text: str) -> None:
    assert isinstance(answer, kind)
    assert text in answer.message


def test_a_quota_is_stored_before_the_answer_and_outlives_the_controller() -> None:
    driver = cluster()
    request_id = driver.send(SetQuotas(quotas=[quota()]))
    assert request_id not in driver.results
    driver.settle()
    assert driver.results[request_id] == [quota()]
    assert driver.image.cluster.quotas == {"q": quota()}
    successor = ControllerDriver(driver.objects).take_over()
    assert successor.image.cluster.quotas == {"q": quota()}


def test_a_quota_is_replaced_under_its_name() -> None:
    driver = cluster()
    assert put(driver, quota(), quota(limit=5000, principal="alice")) == [
        quota(),
        quota(limit=5000, principal="alice"),
    ]
    assert driver.image.cluster.quotas == {"q": quota(limit=5000, principal="alice")}


def test_the_same_again_writes_nothing() -> None:
    driver = cluster()
    put(driver, quota())
    before = driver.image.cluster.version
    assert put(driver, quota()) == [quota()]
    assert driver.image.cluster.version == before


def test_two_quotas_cannot_be_for_the_same_and_a_refusal_stops_no_other() -> None:
    driver = cluster()
    one, two, three = put(driver, quota("a"), quota("b", client_id="a"), quota("c"))
    assert (one, three) == (quota("a"), quota("c"))
    refused(two, InvalidQuotaError, "quota 'a' is for client id a already")
    assert driver.image.cluster.quotas.keys() == {"a", "c"}


def test_a_topic_is_the_same_under_both_of_its_names() -> None:
    driver = cluster()
    _, second = put(driver, quota("a", topic="orders"), quota("b", topic="default/orders"))
    refused(second, InvalidQuotaError, "topic orders already")


def test_validation_changes_nothing() -> None:
    driver = cluster()
    assert put(driver, quota(), validate_only=True) == [quota()]
    assert driver.image.cluster.quotas == {}
    put(driver, quota())
    assert driver.ask(DeleteQuotas(names=["q"], validate_only=True)) == [quota()]
    assert driver.image.cluster.quotas == {"q": quota()}


def test_a_bad_quota_is_refused() -> None:
    (answer,) = put(cluster(), quota(limit=0))
    refused(answer, InvalidQuotaError, "0 bytes a second")


def test_quotas_are_bounded_by_number_and_by_bytes() -> None:
    driver = cluster(config=ClusterConfig(quotas_max=2))
    *_, third = put(driver, quota("a"), quota("b"), quota("c"))
    refused(third, QuotasFullError, "cluster.quotas_max")
    assert put(driver, quota("b", limit=5000)) == [quota("b", limit=5000)]

    driver = cluster(config=ClusterConfig(quotas_max=10_000))
    outcomes: list[object] = []
    for begin in range(0, 400, 100):
        outcomes += put(
            driver,
            *(
                quota(f"q{number}", principal=f"{number}-" + "ü" * 250)
                for number in range(begin, begin + 100)
            ),
        )
    refused(outcomes[-1], QuotasFullError, "500000 bytes")
    assert 250 < len(driver.image.cluster.quotas) < 400


def test_too_many_at_once_are_refused() -> None:
    answer = cluster().ask(SetQuotas(quotas=[quota(f"q{number}") for number in range(101)]))
    assert isinstance(answer, MalformedRequestError)


def test_a_deleted_quota_is_gone() -> None:
    driver = cluster()
    put(driver, quota("a"), quota("b"))
    answers = driver.ask(DeleteQuotas(names=["a", "a", "x\n"]))
    assert isinstance(answers, list)
    assert answers[0] == quota("a")
    refused(answers[1], QuotaNotFoundError, "no quota 'a'")
    refused(answers[2], QuotaNotFoundError, "no quota")
    assert driver.image.cluster.quotas == {"b": quota("b")}


def beat(driver: ControllerDriver, life: BrokerLife, *uses: BucketUse) -> dict[str, int]:
    answer = driver.ask(Heartbeat(life=life, metadata_epoch=driver.image.epoch, quota_uses=uses))
    assert isinstance(answer, HeartbeatAnswer)
    return {
        quota_share.bucket.quota: quota_share.bytes_per_second
        for quota_share in answer.quota_shares
    }


def test_the_limit_is_divided_among_living_brokers_with_their_heartbeats() -> None:
    driver = cluster(brokers=3)
    put(driver, quota("a"))
    first, second, third = driver.live()
    wants = BucketUse(Bucket("a", QuotaKind.PRODUCE, client_id="a"), 0, True)
    assert beat(driver, first, wants) == {"a": 3000}
    assert beat(driver, second) == {}
    assert beat(driver, third) == {}
    assert beat(driver, first, wants) == {"a": 9000}
    assert beat(driver, second, wants) == {"a": 4500}
    driver.kill(second.broker_id)
    assert beat(driver, first, wants) == {"a": 4500}  # The third may have begun, too.
    assert beat(driver, third) == {}
    assert beat(driver, first, wants) == {"a": 9000}


def test_a_new_controller_gives_nobody_the_part_of_those_it_has_not_heard_of() -> None:
    driver = cluster(brokers=3)
    put(driver, quota("a"))
    successor = ControllerDriver(driver.objects).take_over()
    wants = BucketUse(Bucket("a", QuotaKind.PRODUCE, client_id="a"), 0, True)
    assert beat(successor, successor.live()[0], wants) == {"a": 3000}


def test_a_heartbeat_reports_no_more_than_its_bound() -> None:
    driver = cluster()
    use = BucketUse(Bucket("a", QuotaKind.PRODUCE), 0, True)
    answer = driver.ask(Heartbeat(life=driver.live()[0], metadata_epoch=0, quota_uses=[use] * 1001))
    assert isinstance(answer, MalformedRequestError)
