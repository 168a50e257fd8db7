import json
import os
from pathlib import Path
from typing import Any

import pytest

from millrace.core.errors import InvalidConfigError
from millrace.runtime.kubernetes.access import (
    as_kubectl,
    from_kubeconfig,
    in_cluster,
    pod_server,
)


def kubeconfig(folder: Path, **changes: Any) -> Path:
    """Write one with a plain server; `changes` replace parts by name, such as `user`."""
    parts: dict[str, Any] = {
        "cluster": {"server": "http://127.0.0.1:8001"},
        "user": {"token": "secret"},
        "context": {"cluster": "c", "user": "u", "namespace": "shop"},
        "current": "x",
        **changes,
    }
    path = folder / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "current-context": parts["current"],
                "contexts": [{"name": "x", "context": parts["context"]}],
                "clusters": [{"name": "c", "cluster": parts["cluster"]}],
                "users": [{"name": "u", "user": parts["user"]}],
            }
        )
    )
    return path


def test_a_kubeconfig_says_where_and_who(tmp_path: Path) -> None:
    access = from_kubeconfig(kubeconfig(tmp_path))
    assert (access.server, access.namespace) == ("http://127.0.0.1:8001", "shop")
    assert access.tls is None
    assert access.token() == "secret"


def test_a_kubeconfig_may_be_yaml_as_people_write_it(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(
        """
        current-context: x
        contexts:
        - name: x
          context: {cluster: c}
        clusters:
        - name: c
          cluster:
            server: http://[::1]:8001
        users: null
        """
    )
    access = from_kubeconfig(path)
    assert (access.server, access.namespace, access.token()) == (
        "http://[::1]:8001",
        "default",
        None,
    )


def test_a_token_file_is_read_beside_the_kubeconfig_and_every_time(tmp_path: Path) -> None:
    access = from_kubeconfig(kubeconfig(tmp_path, user={"tokenFile": "token"}))
    for token in ("first", "second"):
        (tmp_path / "token").write_text(f"{token}\n")
        assert access.token() == token


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"current": "y"}, "has no context 'y'; it has x"),
        ({"current": ""}, "has no context ''"),
        ({"context": {"cluster": "z"}}, "has no cluster 'z'; it has c"),
        ({"context": {}}, "is not a usable kubeconfig"),
        ({"cluster": {}}, "is not a usable kubeconfig"),
        ({"user": {"exec": {"command": "aws"}}}, "is not a usable kubeconfig: KeyError"),
        ({"user": {"username": "a", "password": "b"}}, "'username' is not supported"),
        ({"user": {"auth-provider": {"name": "gcp"}}}, "'auth-provider' is not supported"),
        (
            {"cluster": {"server": "https://h", "proxy-url": "http://p"}},
            "'proxy-url' is not supported",
        ),
        (
            {"cluster": {"server": "https://h", "insecure-skip-tls-verify": True}},
            "insecure-skip-tls-verify is refused",
        ),
        (
            {"cluster": {"server": "https://h", "certificate-authority-data": "?"}},
            "is not a usable kubeconfig",
        ),
        (
            {"cluster": {"server": "https://h", "certificate-authority": "none.crt"}},
            "cannot be read: .*none.crt",
        ),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_refused_with_the_reason(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        from_kubeconfig(kubeconfig(tmp_path, **changes))


def test_a_context_is_chosen_by_name(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, current="y")
    assert from_kubeconfig(path, context_name="x").namespace == "shop"


@pytest.mark.parametrize("text", ["", "- a", "a: [", "\x00"])
def test_what_is_no_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(InvalidConfigError, match=r"kubeconfig: is not a usable kubeconfig"):
        from_kubeconfig(path)


def test_outside_of_a_pod_a_kubeconfig_is_asked_for() -> None:
    with pytest.raises(InvalidConfigError, match=r"set coordination\.kubernetes\.kubeconfig"):
        in_cluster("")


def test_a_pod_without_a_service_account_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="automountServiceAccountToken"):
        in_cluster("https://10.96.0.1:443", tmp_path)


def test_a_pod_s_environment_says_where_the_api_server_is() -> None:
    environment = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
    assert pod_server(environment) == "https://10.96.0.1:6443"
    assert pod_server({"KUBERNETES_SERVICE_HOST": "fd00::1"}) == ("https://[fd00::1]:443")
    assert pod_server({}) == ""


def test_without_a_pod_the_kubeconfig_of_kubectl_counts_and_may_have_several_files(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine").mkdir()
    user = {"tokenFile": "token"}
    mine = kubeconfig(
        tmp_path / "mine", current="", context={"cluster": "c", "user": "u"}, user=user
    )
    (tmp_path / "mine" / "token").write_text("mine")
    theirs = kubeconfig(tmp_path, cluster={"server": "http://theirs"})
    paths = os.pathsep.join(map(str, (tmp_path / "none", mine, theirs)))
    access = as_kubectl({"KUBECONFIG": paths})
    assert (access.server, access.namespace) == ("http://127.0.0.1:8001", "default")
    assert access.token() == "mine"


def logging_in(folder: Path, script: str, **settings: Any) -> Path:
    """Return a kubeconfig that logs in by a program."""
    program = folder / "log-in"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    version = "client.authentication.k8s.io/v1"
    return kubeconfig(
        folder, user={"exec": {"apiVersion": version, "command": "./log-in", **settings}}
    )


COUNTED = """
echo >> "$FOLDER/runs"
runs=$(wc -l < "$FOLDER/runs")
echo '{"status": {"token": "'$1-$runs'", "expirationTimestamp": "'$ENDS'"}}'
"""


@pytest.mark.parametrize(("ends", "second"), [("2000-01-01T00:00:00Z", "t-3"), ("2999", "t-1")])
def test_a_program_logs_in_and_again_when_its_token_has_run_out(
    tmp_path: Path, ends: str, second: str
) -> None:
    ends = ends if "T" in ends else f"{ends}-01-01T00:00:00Z"
    environment = [{"name": "FOLDER", "value": str(tmp_path)}, {"name": "ENDS", "value": ends}]
    access = from_kubeconfig(logging_in(tmp_path, COUNTED, args=["t"], env=environment))
    assert access.token() in ("t-1", "t-2")
    assert access.token() in (second, "t-2")


def test_a_program_that_logs_in_is_told_of_the_cluster_if_it_wants_to_know(
    tmp_path: Path,
) -> None:
    script = 'echo "$KUBERNETES_EXEC_INFO" >&2; exit 1'
    access = from_kubeconfig(logging_in(tmp_path, script, provideClusterInfo=True))
    with pytest.raises(OSError, match=r'"cluster": \{"server": "http://127.0.0.1:8001"\}'):
        access.token()


GIVES = """echo '{"status": {"token": "t", "expirationTimestamp": %s}}'"""


@pytest.mark.parametrize(
    "script",
    ["echo", "echo []", "echo '{\"status\": {}}'", "exit 0", GIVES % '"tomorrow"', GIVES % "17"],
)
def test_a_program_that_gives_no_credentials_is_named(tmp_path: Path, script: str) -> None:
    access = from_kubeconfig(logging_in(tmp_path, script))
    with pytest.raises(OSError, match="log-in, which logs in, is of no use"):
        access.token()
