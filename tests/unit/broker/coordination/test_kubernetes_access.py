import json
from pathlib import Path
from typing import Any

import pytest

from millrace.broker.coordination.kubernetes.access import from_kubeconfig, in_cluster
from millrace.core.errors import InvalidConfigError


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
        ({"user": {"exec": {"command": "aws"}}}, "logging in by 'exec' is not supported"),
        ({"user": {"username": "a", "password": "b"}}, "'username' is not supported"),
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
    assert from_kubeconfig(path, "x").namespace == "shop"


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
