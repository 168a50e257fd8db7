from dataclasses import fields
from pathlib import Path

import pytest
from docs import generate, metrics_page
from tests.arch.settings import last_release, names_of

from millrace.broker import config
from millrace.core import settings
from millrace.core.broker_config import (
    BrokerConfig,
    CoordinationConfig,
    CoordinationKind,
    LogFormat,
    Origin,
)
from millrace.core.errors import InvalidConfigError
from millrace.core.listeners_config import ListenerProtocol
from millrace.core.metadata.model import Listener

SMALLEST = """
log_dirs = ["log"]
[coordination]
path = "coordination.sqlite"
"""


def load(tmp_path: Path, text: str, environment: dict[str, str] | None = None) -> BrokerConfig:
    path = tmp_path / "broker.toml"
    path.write_text(text, encoding="utf-8")
    return config.load(path, environment or {})


def problems(tmp_path: Path, text: str, environment: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(InvalidConfigError) as raised:
        load(tmp_path, text, environment)
    return raised.value.message.splitlines()


def test_the_smallest_file_gives_the_defaults(tmp_path: Path) -> None:
    assert load(tmp_path, SMALLEST) == BrokerConfig(
        log_dirs=("log",), coordination=CoordinationConfig(path="coordination.sqlite")
    )


def test_a_file_sets_what_it_names(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        """
        log_dirs = ["a", "b"]
        [node]
        name = "eu-1"
        [coordination]
        path = "c"
        [listeners.clients]
        port = 0
        [metrics]
        port = -1
        [storage]
        recovery_point_bytes = "128MiB"
        [logging]
        format = "json"
        """,
    )
    assert loaded.log_dirs == ("a", "b")
    assert loaded.node.name == "eu-1"
    assert (loaded.listeners.clients.port, loaded.metrics.port) == (0, -1)
    assert loaded.storage.recovery_point_bytes == 128 << 20
    assert loaded.logging.format is LogFormat.JSON


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    environment = {
        "MILLRACE_BROKER__LISTENERS__CLIENTS__PORT": "7192",
        "MILLRACE_BROKER__LOG_DIRS": "x, y",
        "MILLRACE_BOOTSTRAP": "not ours",
        "PATH": "nor this",
    }
    loaded = load(tmp_path, SMALLEST, environment)
    assert loaded.listeners.clients.port == 7192
    assert loaded.log_dirs == ("x", "y")


def test_settings_of_later_releases_are_ignored_where_the_environment_says_so(
    tmp_path: Path,
) -> None:
    environment = {
        "MILLRACE_BROKER_IF_KNOWN__NODE__RACK": "a",
        "MILLRACE_BROKER_IF_KNOWN__NODE__NOT_YET": "1",
        "MILLRACE_BROKER_IF_KNOWN__NOT_YET__NAME": "1",
        "MILLRACE_BROKER_IF_KNOWN__LISTENERS__CLIENTS__PORT": "1",
        "MILLRACE_BROKER__LISTENERS__CLIENTS__PORT": "2",
    }
    loaded = load(tmp_path, SMALLEST, environment)
    assert (loaded.node.rack, loaded.listeners.clients.port) == ("a", 2)
    assert problems(
        tmp_path, SMALLEST, {"MILLRACE_BROKER_IF_KNOWN__LISTENERS__CLIENTS__PORT": "-5"}
    ) == [
        "MILLRACE_BROKER_IF_KNOWN__LISTENERS__CLIENTS__PORT: listeners.clients.port = '-5': must "
        "be 0 to 65535"
    ]


EARLIER = """
log_dirs = ["log"]
[coordination]
path = "coordination.sqlite"
[listener]
port = 7192
advertised_host = "a.example.org"
[outside_listener]
port = 7195
address_file = "outside"
[replica_listener]
host = "127.0.0.2"
"""
"""A file of 0.2.0."""


def test_a_file_with_the_names_of_an_earlier_release_means_what_it_meant(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        EARLIER,
        {
            "MILLRACE_BROKER__LISTENER__PORT": "7292",
            "MILLRACE_BROKER_IF_KNOWN__REPLICA_LISTENER__PORT": "7294",
        },
    )
    found = {
        entry.name: (entry.side, entry.protocol, entry.config.host, entry.config.port)
        for entry in loaded.listeners.entries
    }
    assert found == {
        "clients": (Listener.CLIENTS, ListenerProtocol.GRPC, "127.0.0.1", 7292),
        "outside": (Listener.OUTSIDE, ListenerProtocol.GRPC, "127.0.0.1", 7195),
        "replicas": (Listener.BROKERS, ListenerProtocol.GRPC, "127.0.0.2", 7294),
    }, "no further port is opened"
    assert loaded.listeners.clients.advertised_host == "a.example.org"
    assert loaded.listeners.outside.address_file == "outside"
    origins = dict(loaded.origins)
    assert origins["listeners.clients.port"] is Origin.ENVIRONMENT
    assert origins["listeners.clients.advertised_host"] is Origin.FILE
    assert not [name for name in origins if "drpc" in name]


def test_drpc_is_there_beside_a_listener_with_its_former_name_if_it_is_asked_for(
    tmp_path: Path,
) -> None:
    """So the operator asks brokers whose other settings 0.2.0 knows, too."""
    asked = {"MILLRACE_BROKER_IF_KNOWN__LISTENERS__CLIENTS_DRPC__PORT": "7196"}
    (entry,) = [
        entry
        for entry in load(tmp_path, EARLIER, asked).listeners.entries
        if entry.protocol is ListenerProtocol.DRPC
    ]
    assert (entry.name, entry.config.port) == ("clients_drpc", 7196)
    assert entry.config.advertised_host == "a.example.org", "as of its twin"


@pytest.mark.parametrize(
    ("text", "environment", "problem"),
    [
        (
            EARLIER + "[listeners.clients]\nhost = '0.0.0.0'",
            {},
            "[listener] is the former name of [listeners.clients]: give one of them",
        ),
        (
            SMALLEST,
            {
                "MILLRACE_BROKER__LISTENER__PORT": "1",
                "MILLRACE_BROKER__LISTENERS__CLIENTS__PORT": "1",
            },
            "MILLRACE_BROKER__LISTENERS__CLIENTS__PORT is listeners.clients.port, too: give one of "
            "them",
        ),
    ],
)
def test_a_listener_is_given_by_one_name(
    tmp_path: Path, text: str, environment: dict[str, str], problem: str
) -> None:
    (found,) = problems(tmp_path, text, environment)
    assert found.endswith(problem)


def test_a_variable_overrides_a_file_with_the_other_name(tmp_path: Path) -> None:
    new = {"MILLRACE_BROKER__LISTENERS__CLIENTS__PORT": "1"}
    assert load(tmp_path, EARLIER, new).listeners.clients.port == 1
    former = {"MILLRACE_BROKER__LISTENER__PORT": "1"}
    text = SMALLEST + "[listeners.clients]\nport = 7192"
    assert load(tmp_path, text, former).listeners.clients.port == 1


def test_a_problem_with_a_former_name_says_both_names(tmp_path: Path) -> None:
    assert problems(tmp_path, EARLIER.replace("7192", "-1"))[1:] == [
        "[listener] is [listeners.clients] now: listeners.clients.port = -1: must be 0 to 65535"
    ]


def test_every_setting_of_the_last_release_is_known_by_its_name() -> None:
    def is_known(name: str) -> bool:
        first, *rest = name.split(".")
        return ".".join((*config.FORMER_SECTIONS.get(first, (first,)), *rest)) in known

    known = set(names_of(BrokerConfig))
    assert [name for name in sorted(last_release()) if not is_known(name)] == []


def test_every_problem_of_file_and_environment_is_reported_at_once(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        """
        [coordinaton]
        path = "x"
        [limits]
        message_bytes_max = "1TiB"
        [cluster]
        default_partition = 3
        """,
        {
            "MILLRACE_BROKER__LISTENERS__CLIENTS__PROT": "1",
            "MILLRACE_BROKER__LISTNER__PORT": "1",
        },
    )
    assert found == [
        f"{tmp_path}/broker.toml:",
        "coordinaton: there is no such setting; did you mean 'coordination'?",
        "log_dirs: is required. Directories of the partitions' logs, one per disk, as `ssd:PATH` "
        "or `hdd:PATH`; a plain path counts as `ssd`. New partitions go to the directory on the "
        "topic's media that has the fewest; a failed directory takes only its own partitions "
        "offline.",
        "cluster.default_partition: there is no such setting; did you mean 'default_partitions'?",
        "limits.message_bytes_max = '1TiB': must be 65536 to 536870912 bytes",
        "MILLRACE_BROKER__LISTNER__PORT: listner: there is no such setting; did you mean "
        "'listeners'?",
        "MILLRACE_BROKER__LISTENERS__CLIENTS__PROT: listeners.clients.prot: there is no such "
        "setting; did you mean 'port'?",
    ]


def test_a_file_is_not_blamed_for_a_variable(tmp_path: Path) -> None:
    assert problems(tmp_path, SMALLEST, {"MILLRACE_BROKER__LISTENERS__CLIENTS__PORT": "-5"}) == [
        "MILLRACE_BROKER__LISTENERS__CLIENTS__PORT: listeners.clients.port = '-5': must be 0 to "
        "65535"
    ]


ASKS_FOR_CERTIFICATES = 'tls_client_ca_file = "ca.crt"'
RULES = """
[access]
rules_file = "rules.toml"
"""


def hosts(clients: str = "127.0.0.1", replicas: str = "127.0.0.1") -> str:
    return f'[listeners.clients]\nhost = "{clients}"\n[listeners.replicas]\nhost = "{replicas}"\n'


def with_tls(text: str, listener: str, more: str = "") -> str:
    section = f"[listeners.{listener}]\n"
    files = f'tls_certificate_file = "b.crt"\ntls_key_file = "b.key"\n{more}\n'
    return text.replace(section, section + files)


OPEN = "and every client may do everything: give [access]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (hosts(), []),
        (hosts("localhost", "::1"), []),
        (
            hosts("0.0.0.0"),
            ["clients.host = '0.0.0.0': other machines reach it, in plain text", OPEN],
        ),
        (
            hosts("10.0.0.5") + RULES,
            ["clients.host = '10.0.0.5': other machines reach it, in plain text"],
        ),
        (with_tls(hosts("::"), "clients"), [OPEN]),
        (with_tls(hosts("::"), "clients") + RULES, []),
        (with_tls(hosts("::"), "clients", ASKS_FOR_CERTIFICATES), []),
        (with_tls(hosts("::"), "clients") + RULES + "enforced = false", [OPEN]),
        (
            with_tls(hosts("::"), "clients", "tls_port = 7099") + RULES,
            ["clients.host = '::': other machines reach it, in plain text"],
        ),
        (
            hosts(replicas="a.example.org"),
            ["replicas.host = 'a.example.org': other machines reach it, in plain text"],
        ),
        (with_tls(hosts(replicas="0.0.0.0"), "replicas", ASKS_FOR_CERTIFICATES), []),
        (
            hosts() + '[listeners.outside]\nport = 7095\nhost = "0.0.0.0"\n' + RULES,
            ["outside.host = '0.0.0.0': other machines reach it, in plain text"],
        ),
        (
            hosts() + '[listeners.clients_drpc]\nhost = "0.0.0.0"\n' + RULES,
            [
                "clients_drpc.host = '0.0.0.0': other machines reach it, in plain text: give "
                "[listeners.clients]"
            ],
        ),
        (hosts() + '[listeners.outside]\nport = -1\nhost = "0.0.0.0"\n', []),
    ],
)
def test_a_listener_that_others_reach_needs_tls_and_rules_unless_the_broker_is_insecure(
    tmp_path: Path, text: str, expected: list[str]
) -> None:
    found = problems(tmp_path, SMALLEST + text)[1:] if expected else []
    for problem, part in zip(found, expected, strict=True):
        assert part in problem
        assert problem.endswith("docs/security.md")
    load(tmp_path, SMALLEST + text, {"MILLRACE_BROKER__INSECURE": "true"})
    if not expected:
        load(tmp_path, SMALLEST + text)


def test_a_log_directory_has_a_media_and_without_one_it_is_ssd(tmp_path: Path) -> None:
    environment = {"MILLRACE_BROKER__LOG_DIRS": "/a,ssd:/b,hdd:/c,hdd:d/e:f,./ssd:g"}
    found = load(tmp_path, SMALLEST, environment).log_directories
    assert [(each.media, each.path) for each in found] == [
        ("ssd", "/a"),
        ("ssd", "/b"),
        ("hdd", "/c"),
        ("hdd", "d/e:f"),
        ("ssd", "./ssd:g"),
    ]


def test_a_required_setting_is_missed_in_a_section_that_is_not_there(tmp_path: Path) -> None:
    (_, problem) = problems(tmp_path, 'log_dirs = ["a"]')
    assert problem.startswith("coordination.path: is required with kind = 'sqlite'")


def test_the_lease_s_times_follow_the_kind_of_store_unless_they_are_set() -> None:
    def times(kind: CoordinationKind, **settings: int) -> tuple[int, int, int]:
        found = CoordinationConfig(kind=kind, path="c", **settings).lease_times  # type: ignore[arg-type]
        return found.duration_ms, found.renew_deadline_ms, found.retry_ms

    assert times(CoordinationKind.SQLITE) == (1500, 1000, 250)
    assert times(CoordinationKind.KUBERNETES) == (6000, 4000, 500)
    assert times(CoordinationKind.KUBERNETES, lease_duration_ms=15_000) == (15_000, 4000, 500)


def test_a_cluster_on_kubernetes_is_configured_without_a_path(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        """
        log_dirs = ["a"]
        [coordination]
        kind = "kubernetes"
        [coordination.kubernetes]
        cluster_name = "orders"
        """,
        {"MILLRACE_BROKER__COORDINATION__KUBERNETES__NAMESPACE": "shop"},
    ).coordination.kubernetes
    assert (found.cluster_name, found.namespace, found.kubeconfig) == ("orders", "shop", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[storage]\nx = "', "is not TOML"),
        (f"x = {'1' * 5000}", "is not TOML"),
        (f"x = {'[' * 5000}", "is not TOML"),
        (SMALLEST + "lease_renew_deadline_ms = 250", "more than the 250 ms between two renewals"),
        (SMALLEST + "[limits]\nmessage_bytes_max = '64MiB'", "message_bytes_max: must not"),
        (SMALLEST + "[limits]\nrequest_memory_bytes_max = '1MiB'", "request_memory_bytes_max"),
        (SMALLEST + "[limits]\nfetch_response_bytes_max = '8MiB'", "fetch_response_bytes_max"),
        (SMALLEST + "[node]\nname = ' '", "name: must not be empty"),
        (SMALLEST + "[cluster]\ntopic_partitions_max = 1\ndefault_partitions = 2", "default_part"),
        (SMALLEST + "[coordination.kubernetes]\ncluster_name = 'A_b'", "at most 40 of a-z"),
        (SMALLEST + "[coordination.kubernetes]\ncontext = 'c'", "kubeconfig is not set"),
        (
            SMALLEST + "kind = 'kubernetes'\n[coordination.kubernetes]\nrequest_timeout_ms = '3s'",
            "request_timeout_ms: must be at most half",
        ),
        (
            SMALLEST + "kind = 'kubernetes'\n[coordination.kubernetes]\nobject_bytes_max = '1MiB'",
            "cluster.shard_bytes_max: must not be more than",
        ),
        (
            SMALLEST + "[listeners.outside_drpc]\nport = 0",
            "listeners.outside_drpc.port: outside.port must be set, too",
        ),
        (SMALLEST.replace('["log"]', '["a", "./a"]'), "names a directory twice"),
        (SMALLEST.replace('["log"]', '["ssd:a", "hdd:a"]'), "names a directory twice"),
        (SMALLEST.replace('["log"]', '["nvme:/a"]'), "'nvme:/a' must be a path, or ssd:PATH or"),
        (SMALLEST.replace('["log"]', '["hdd:"]'), "'hdd:' must be a path, or ssd:PATH or"),
    ],
)
def test_what_does_not_fit_together_is_refused(tmp_path: Path, text: str, message: str) -> None:
    assert message in "\n".join(problems(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"nowhere\.toml: cannot be read: No such file"):
        config.load(tmp_path / "nowhere.toml", {})


def test_a_variable_that_reaches_into_a_setting_is_refused(tmp_path: Path) -> None:
    found = problems(tmp_path, SMALLEST, {"MILLRACE_BROKER__LOG_DIRS__X": "1"})
    assert found == ["MILLRACE_BROKER__LOG_DIRS__X: log_dirs is a setting, not a section"]


def test_the_embedded_broker_keeps_everything_in_one_directory() -> None:
    embedded = config.embedded("data", port=0, metrics_port=-1)
    settings.check(embedded)
    assert embedded.log_dirs == ("ssd:data/log",)
    assert embedded.coordination.path == "data/coordination.sqlite"
    assert (embedded.listeners.clients.host, embedded.listeners.clients.port) == ("127.0.0.1", 0)
    assert embedded.groups.classic_rebalance_delay_ms == 0


def test_variables_count_over_what_the_embedded_broker_is_told_and_are_checked_with_it() -> None:
    variables = {
        "MILLRACE_BROKER__LISTENERS__CLIENTS__PORT": "7192",
        "MILLRACE_BROKER__CLUSTER__DEFAULT_PARTITIONS": "4",
    }
    others = {"listeners": {"clients": {"host": "::1"}}, "logging": {"level": "warning"}}
    found = config.embedded("data", port=7092, others=others, environment=variables)
    assert (found.listeners.clients.host, found.listeners.clients.port) == ("::1", 7192)
    assert found.cluster.default_partitions == 4
    assert found.cluster.broker_session_timeout_ms == 2000
    assert found.logging.level == "warning"
    assert dict(found.origins) == {
        "listeners.clients.port": Origin.ENVIRONMENT,
        "cluster.default_partitions": Origin.ENVIRONMENT,
    }
    variables["MILLRACE_BROKER__CLUSTER__DEFAULT_PARTITIONS"] = "-4"
    with pytest.raises(InvalidConfigError) as refused:
        config.embedded("data", port=-7, environment=variables | {"MILLRACE_BROKER__NODE__X": "1"})
    assert "MILLRACE_BROKER__CLUSTER__DEFAULT_PARTITIONS: cluster.default" in refused.value.message
    assert "MILLRACE_BROKER__NODE__X: node.x" in refused.value.message


def test_no_default_breaks_a_bound_or_a_relation() -> None:
    settings.check(config.embedded("data"))


def test_every_field_is_a_setting_a_section_or_a_constant() -> None:
    def check(cls: type) -> None:
        sections = settings.sections_of(cls)
        declared = {*settings.settings_of(cls), *sections, *settings.constants_of(cls)}
        assert {field.name for field in fields(cls)} == declared
        for section in sections.values():
            check(section)

    check(BrokerConfig)


def test_the_page_about_configuration_is_what_the_code_says() -> None:
    written = generate.CONFIGURATION.read_text(encoding="utf-8")
    assert written == generate.configuration(), "Run: make docs"


def test_the_page_about_metrics_is_what_the_code_says() -> None:
    written = generate.METRICS.read_text(encoding="utf-8")
    assert written == metrics_page.metrics(), "Run: make docs"
