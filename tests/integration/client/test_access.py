"""What programs meet that may not do all: errors that say what is missing, within seconds."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.integration.guarded import ROLES, RULES, GuardedBroker, token_of
from tests.integration.running_broker import wait_until

from millrace.client import (
    AuthenticationFailedError,
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    InvalidConfigError,
    MillraceError,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)
from millrace.client._settings import ClientConfig

SECONDS_MAX = 20.0
"""Within which a stream ends that is not allowed any more."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    """For tests that leave it as it is."""
    with guarded(tmp_path_factory.mktemp("guarded")) as running:
        yield running


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[GuardedBroker]:
    """For a test that changes its files, or what it keeps."""
    with guarded(tmp_path / "guarded") as running:
        yield running


@contextmanager
def guarded(folder: Path) -> Iterator[GuardedBroker]:
    running = GuardedBroker(folder)
    try:
        running.start()
        with SyncAdmin(running.address, token_file=str(running.token_file("root"))) as admin:
            admin.create_topic("team/orders")
            admin.create_topic("other/secret")
        yield running
    finally:
        running.abandon()


@pytest.mark.parametrize("transport", ["auto", "grpc"])
def test_a_token_goes_with_each_call_and_each_stream(broker: GuardedBroker, transport: str) -> None:
    with SyncProducer(
        broker.address, token_file=str(broker.token_file("producer")), transport=transport
    ) as producer:
        producer.send("team/orders", b"one").result(20)
        with pytest.raises(TopicAuthorizationFailedError, match="'producer' may not describe"):
            producer.send("other/secret", b"two").result(20)
    with SyncConsumer(
        broker.address,
        token_file=str(broker.token_file("consumer")),
        transport=transport,
        group="team/readers",
        auto_offset_reset="earliest",
    ) as consumer:
        consumer.subscribe(["team/orders"])
        record = next(iter(consumer))
        assert record.value == b"one"
        consumer.commit()


def test_the_variable_names_the_file_for_all_clients(
    broker: GuardedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_TOKEN_FILE", str(broker.token_file("describer")))
    with SyncAdmin(broker.address) as admin:
        assert admin.list_topics() == ["team/orders"]


def test_a_question_about_all_topics_is_refused_where_some_are_hidden(
    broker: GuardedBroker,
) -> None:
    """What no topic has, as a replica on a broker that shall go, is not to be concluded else."""
    with SyncAdmin(broker.address, token=token_of("describer")) as admin:
        assert [*admin.describe_topics()] == ["team/orders"]
        with pytest.raises(
            TopicAuthorizationFailedError, match="may not describe all topics"
        ) as told:
            admin.describe_topics(none_hidden=True)
        assert "secret" not in told.value.message
    with SyncAdmin(broker.address, token=token_of("root")) as admin:
        assert {"team/orders", "other/secret"} <= admin.describe_topics(none_hidden=True).keys()
        assert admin.describe_health().has_controller


def test_a_client_without_a_token_is_told_to_bring_one(broker: GuardedBroker) -> None:
    begun = time.monotonic()
    with (
        SyncAdmin(broker.address) as admin,
        pytest.raises(AuthenticationFailedError, match="MILLRACE_TOKEN_FILE"),
    ):
        admin.list_topics()
    with (
        SyncProducer(broker.address) as producer,
        pytest.raises(AuthenticationFailedError, match="MILLRACE_TOKEN_FILE"),
    ):
        producer.send("team/orders", b"one").result(20)
    with (
        SyncConsumer(broker.address, group="team/readers") as consumer,
        pytest.raises(AuthenticationFailedError, match="MILLRACE_TOKEN_FILE"),
    ):
        subscribed(consumer).poll(timeout_ms=20_000)
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize(
    ("text", "problem"),
    [(None, "No such file"), ("", "something else"), ("two words", "something else")],
)
def test_a_file_without_a_token_is_told(
    broker: GuardedBroker, tmp_path: Path, text: str | None, problem: str
) -> None:
    path = tmp_path / "token"
    if text is not None:
        path.write_text(text)
    with (
        SyncAdmin(broker.address, token_file=str(path)) as admin,
        pytest.raises(AuthenticationFailedError, match=problem) as refused,
    ):
        admin.list_topics()
    assert str(path) in refused.value.message


def test_a_token_is_not_sent_in_plain_text_to_another_machine(broker: GuardedBroker) -> None:
    with (
        SyncAdmin("192.0.2.1:7092", token_file=str(broker.token_file("root"))) as admin,
        pytest.raises(
            AuthenticationFailedError, match=r"is not sent to 192\.0\.2\.1:7092 in plain"
        ),
    ):
        admin.list_topics()


def test_each_refusal_has_its_own_error(broker: GuardedBroker) -> None:
    with SyncAdmin(broker.address, token_file=str(broker.token_file("producer"))) as admin:
        with pytest.raises(TopicAuthorizationFailedError, match="may not create topic 'team/new'"):
            admin.create_topic("team/new")
        with pytest.raises(TopicAuthorizationFailedError, match="may not describe topic 'other/x'"):
            admin.describe_topic("other/x")
        with pytest.raises(ClusterAuthorizationFailedError, match="may not administer the cluster"):
            admin.delete_quota("none")
        with pytest.raises(GroupAuthorizationFailedError, match="may not describe group 'other/g'"):
            admin.describe_group("other/g")
    token_file = str(broker.token_file("producer"))
    with (
        SyncProducer(
            broker.address, token_file=token_file, transactional_id="other/copy"
        ) as producer,
        pytest.raises(TransactionalIdAuthorizationFailedError, match="'other/copy'"),
        producer.transaction(),
    ):
        producer.send("team/orders", b"x")


def test_a_member_of_another_group_is_refused(broker: GuardedBroker) -> None:
    with (
        SyncConsumer(
            broker.address, token_file=str(broker.token_file("consumer")), group="readers"
        ) as consumer,
        pytest.raises(GroupAuthorizationFailedError, match="may not consume group 'readers'"),
    ):
        subscribed(consumer).poll(timeout_ms=20_000)


def subscribed(consumer: SyncConsumer) -> SyncConsumer:
    """Return a consumer that reads the topic."""
    consumer.subscribe(["team/orders"])
    return consumer


def reading(broker: GuardedBroker) -> SyncConsumer:
    """Return a consumer that waits for more."""
    consumer = SyncConsumer(broker.address, token_file=str(broker.token_file("consumer")))
    consumer.assign(["team/orders"])
    consumer.poll(timeout_ms=500)
    return consumer


def error_of(consumer: SyncConsumer) -> MillraceError:
    """Return the error that ends a consumer's reading, and see that it comes soon."""
    begun = time.monotonic()
    while time.monotonic() < begun + SECONDS_MAX:
        try:
            consumer.poll(timeout_ms=500)
        except MillraceError as error:
            return error
    raise AssertionError("it still reads")


def test_rights_that_go_end_the_reading_and_may_come_back(own_broker: GuardedBroker) -> None:
    with reading(own_broker) as consumer:
        own_broker.write_rules(RULES.replace('may = ["consume"]', 'may = ["describe"]'))
        error = error_of(consumer)
        assert isinstance(error, TopicAuthorizationFailedError), error
        assert "'consumer' may not consume topic 'team/orders'" in error.message
        own_broker.write_rules(RULES)
        own_broker.wait_for("access_file_taken", 2)
        with SyncProducer(
            own_broker.address, token_file=str(own_broker.token_file("producer"))
        ) as producer:
            end = producer.send("team/orders", b"again").result(20).offset

        found: list[bytes | None] = []

        def reads() -> bool:
            """Go on where it was refused; the log tells of rules shortly before they count."""
            consumer.seek(("team/orders", 0), end)
            with suppress(TopicAuthorizationFailedError):
                found.extend(record.value for record in consumer.poll(timeout_ms=5_000))
            return bool(found)

        wait_until(reads, "it reads again")
        assert found == [b"again"]


def test_a_token_that_is_removed_ends_the_reading(own_broker: GuardedBroker) -> None:
    with reading(own_broker) as consumer:
        own_broker.write_tokens({name: None for name in ROLES[1:] if name != "consumer"})
        error = error_of(consumer)
        assert isinstance(error, AuthenticationFailedError), error


def test_a_token_that_ends_ends_the_reading(own_broker: GuardedBroker) -> None:
    with reading(own_broker) as consumer:
        soon = int(time.time() * 1000) + 2_000
        own_broker.write_tokens({"consumer": soon})
        error = error_of(consumer)
        assert isinstance(error, AuthenticationFailedError), error


def test_a_writer_is_refused_when_its_token_is_removed(own_broker: GuardedBroker) -> None:
    with SyncProducer(
        own_broker.address, token_file=str(own_broker.token_file("producer"))
    ) as producer:
        producer.send("team/orders", b"one").result(20)
        own_broker.write_tokens({"consumer": None})
        begun, refused = time.monotonic(), False
        while not refused and time.monotonic() < begun + SECONDS_MAX:
            try:
                producer.send("team/orders", b"more").result(20)
            except AuthenticationFailedError:
                refused = True
            time.sleep(0.2)
        assert refused, "it still writes"


def test_a_new_token_in_the_file_is_used_without_a_restart(own_broker: GuardedBroker) -> None:
    path = own_broker.token_file("consumer")
    with reading(own_broker) as consumer:
        path.with_suffix(".new").write_text(token_of("owner"))
        path.with_suffix(".new").replace(path)
        time.sleep(1.1)  # It is looked at once a second.
        own_broker.write_tokens({"owner": None})
        own_broker.wait_for("access_file_taken", 1)
        own_broker.wait_for("caller_refused", 1)  # The stream of the earlier token has ended.
        with SyncProducer(own_broker.address, token_file=str(path)) as producer:
            producer.send("team/orders", b"later").result(20)
        deadline, values = time.monotonic() + 20, list[bytes | None]()
        while not values and time.monotonic() < deadline:
            values += [record.value for record in consumer.poll(timeout_ms=500)]
        assert values == [b"later"]


def test_a_pattern_finds_nothing_out_about_topics_of_others(broker: GuardedBroker) -> None:
    with SyncConsumer(
        broker.address,
        token_file=str(broker.token_file("consumer")),
        group="team/by-pattern",
        auto_offset_reset="earliest",
    ) as consumer:
        consumer.subscribe(pattern=".*(orders|secret)")
        deadline = time.monotonic() + 20
        while not consumer.assignment() and time.monotonic() < deadline:
            consumer.poll(timeout_ms=200)
        assert {topic for topic, _ in consumer.assignment()} == {"team/orders"}
        with SyncAdmin(broker.address, token_file=str(broker.token_file("consumer"))) as admin:
            group = admin.describe_group("team/by-pattern")
        assert group is not None
        told = {place for member in group.members for place in member.assigned}
        assert len(told) == len(consumer.assignment())


def test_who_may_not_see_all_transactional_ids_takes_none_of_them_for_hanging(
    broker: GuardedBroker,
) -> None:
    """To end it by hand could take back what is committed elsewhere."""
    root = str(broker.token_file("root"))
    with (
        SyncProducer(broker.address, token_file=root, transactional_id="other/copy") as producer,
        producer.transaction(),
    ):
        producer.send("team/orders", b"open").result(30)
        token_file = str(broker.token_file("administrator"))
        with SyncAdmin(broker.address, token_file=token_file) as admin:
            assert admin.find_hanging_transactions(["team/orders"]) == []
        token_file = str(broker.token_file("describer"))
        with SyncAdmin(broker.address, token_file=token_file) as admin:
            assert admin.list_transactions() == []
            with pytest.raises(
                TransactionalIdAuthorizationFailedError, match="may not describe all"
            ):
                admin.find_hanging_transactions(["team/orders"])


def test_who_may_not_describe_the_cluster_is_told_so_and_not_that_brokers_are_silent(
    broker: GuardedBroker,
) -> None:
    with SyncAdmin(broker.address, token_file=str(broker.token_file("describer"))) as admin:
        for ask in (admin.describe_health, admin.describe_logs, admin.describe_broker_configs):
            with pytest.raises(ClusterAuthorizationFailedError, match="'describer' may not"):
                ask()
        assert [log.topic for log in admin.describe_logs("team/orders")] == ["team/orders"]


def test_a_program_may_call_in_the_name_of_whoever_gave_it_a_token(
    broker: GuardedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_TOKEN_FILE", str(broker.token_file("root")))
    with SyncAdmin(broker.address, token=token_of("describer")) as admin:
        assert admin.list_topics() == ["team/orders"]
    with SyncAdmin(broker.address) as admin:
        assert "other/secret" in admin.list_topics()
    for wrong in ({"token": "short"}, {"token": token_of("owner"), "token_file": "file"}):
        with pytest.raises(InvalidConfigError, match="token"):
            SyncAdmin(broker.address, **wrong)
    assert token_of("owner") not in repr(ClientConfig(token=token_of("owner")))


def test_quotas_are_for_who_the_client_proves_to_be(own_broker: GuardedBroker) -> None:
    root = str(own_broker.token_file("root"))
    with SyncAdmin(own_broker.address, token_file=root) as admin:
        admin.set_quota("slow", principal="producer", produce_bytes_per_second=20_000)
        for name, is_delayed in (("producer", True), ("owner", False)):
            token_file = str(own_broker.token_file(name))
            with SyncProducer(
                own_broker.address, token_file=token_file, client_id="same", compression="none"
            ) as producer:

                def is_throttled() -> bool:
                    producer.send("team/orders", b"x" * 10_000).result(30)
                    return producer.metrics()["throttled_ms"] > 0

                if is_delayed:  # By its fourth record, or later if the machine pauses.
                    wait_until(is_throttled, name)
                else:
                    assert [is_throttled() for _ in range(4)] == [False] * 4, name
        uses = admin.describe_quotas(["slow"])["slow"].uses
        assert {use.principal for use in uses} == {"producer"}


def test_a_token_for_one_cluster_is_not_sent_to_another_one(
    own_broker: GuardedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_TOKEN_FILE", str(own_broker.token_file("root")))
    with (
        SyncAdmin(own_broker.address, token_file="none") as admin,
        pytest.raises(AuthenticationFailedError, match="none came"),
    ):
        admin.list_topics()
    copy = [sys.executable, "-m", "millrace.cli", "copy", "team/orders", "team/copy", "--create"]
    other = own_broker.address.replace("127.0.0.1", "localhost")
    refused = subprocess.run(
        [*copy, "--bootstrap", own_broker.address, "--to-bootstrap", other],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "(AUTHENTICATION_FAILED)" in refused.stderr
    owner = str(own_broker.token_file("owner"))
    done = subprocess.run(
        [
            *copy,
            *("--bootstrap", own_broker.address, "--to-bootstrap", other),
            *("--to-token-file", owner),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_rules_with_a_mistake_leave_the_last_good_ones_and_are_shown(
    own_broker: GuardedBroker,
) -> None:
    def shown() -> str:
        with urlopen(f"http://{own_broker.metrics_address}/metrics", timeout=10) as page:
            text: str = page.read().decode()
        (line,) = [
            line
            for line in text.splitlines()
            if line.startswith('millrace_access_file_refused{file="rules_file"}')
        ]
        return line.rpartition(" ")[2]

    with SyncAdmin(own_broker.address, token_file=str(own_broker.token_file("describer"))) as admin:
        assert shown() == "0.0"
        own_broker.write_rules(RULES.replace('"describe"]', '"desribe"]', 1))
        own_broker.wait_for("access_file_refused", 1)
        assert own_broker.log_has("line 4: 'desribe' is no operation: did you mean 'describe'?")
        wait_until(lambda: shown() == "1.0", "it is shown, after it was logged")
        assert admin.list_topics() == ["team/orders"]
        own_broker.write_rules(RULES)
        own_broker.wait_for("access_file_taken", 1)
        wait_until(lambda: shown() == "0.0", "it is shown, after it was logged")
