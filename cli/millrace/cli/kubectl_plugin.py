"""`kubectl millrace`: the command line in a broker's pod, found by the name of its Cluster.

kubectl takes a program of this name on the PATH for one of its own commands. Nothing has to be
forwarded, and nothing listens: `kubectl exec` carries standard input and output.

In a Cluster with access control a ServiceAccount is named, and the command has the rights of that
one, never the broker's own (G1). Its token is asked for here, goes to the pod as the first line of
standard input, where no list of processes shows it, and is gone from there with the command.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any, Final, NoReturn

import click

from millrace.cli.command import Command
from millrace.cli.console.failures import ExitCode, Failure
from millrace.cli.console.standard_streams import standard_streams
from millrace.core.guard.service_account_token import audience_of

BROKERS: Final = "millrace.dev/cluster={},app.kubernetes.io/component=broker"
"""Selects the pods of a Cluster."""
_TLS_PORT: Final = "MILLRACE_BROKER__LISTENERS__CLIENTS__TLS_PORT"
BOOTSTRAP: Final = "{cluster}-bootstrap.{namespace}.svc:7092"
CONTAINER: Final = "broker"
TOKEN_LASTS: Final = "10m"
"""The shortest time for which Kubernetes gives tokens. A longer command ends then."""
_WITH_TOKEN: Final = (
    "umask 077; IFS= read -r token; file=$(mktemp) || exit; trap 'rm -f \"$file\"' EXIT; "
    'trap \'exit 130\' HUP INT TERM; printf %s "$token" >"$file"; unset token; '
    'MILLRACE_TOKEN_FILE="$file" millrace "$@"'
)
"""A script that takes the token from its input, and gives the rest of that to the command."""
_CHUNK_BYTES: Final = 1 << 16


@click.command(
    "kubectl millrace",
    cls=Command,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "allow_interspersed_args": False,
        "ignore_unknown_options": True,
    },
    examples="""
    kubectl millrace --account ops logs cluster health
    kubectl millrace -n shop --account shop/reports logs group list
    echo hello | kubectl millrace --account orders logs produce orders
    kubectl millrace without-access-control topic list
    """,
)
@click.option("-n", "--namespace", help="Namespace of the Cluster.  [default: the context's]")
@click.option("--context", "context_name", help="Context of the kubeconfig.")
@click.option("--kubeconfig", help="The kubeconfig.")
@click.option(
    "--account",
    metavar="[NAMESPACE/]NAME",
    help="ServiceAccount whose rights the command has, in a Cluster with access control. You need "
    "the right to create tokens for it.",
)
@click.argument("cluster")
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    *,
    namespace: str | None,
    context_name: str | None,
    kubeconfig: str | None,
    account: str | None,
    cluster: str,
    arguments: tuple[str, ...],
) -> None:
    """Run `millrace ARGUMENTS` in a pod of the Cluster, against its brokers.

    Files are those of the pod: pass records by standard input and output. The command uses the
    broker's memory; large work belongs into a pod of its own.
    """
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise Failure("kubectl is not on the PATH", "https://kubernetes.io/docs/tasks/tools/")
    chosen = {"namespace": namespace, "context": context_name, "kubeconfig": kubeconfig}
    begin = [kubectl, *(f"--{name}={value}" for name, value in chosen.items() if value)]
    pod = ready_pod(_pods(begin, cluster))
    if pod is None:
        where = f" in namespace {namespace}" if namespace else ""
        raise Failure(
            f"no broker of a Cluster {cluster} is ready{where}",
            "kubectl get clusters.millrace.dev --all-namespaces tells what there is",
            exit_code=ExitCode.UNREACHABLE,
        )
    if account is not None:
        token = _token(begin, pod["metadata"]["namespace"], cluster, account)
        _run([*begin, *exec_arguments(pod, cluster, arguments, has_token=True)], token)
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    _become([*begin, *exec_arguments(pod, cluster, arguments, is_terminal=is_terminal)])


def ready_pod(pods: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return a pod whose broker serves; None: there is none."""
    for pod in pods:
        conditions = pod.get("status", {}).get("conditions") or ()
        is_ready = any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in conditions
        )
        if is_ready and "deletionTimestamp" not in pod["metadata"]:
            return pod
    return None


def _tls_port(pod: dict[str, Any]) -> str | None:
    """Return the port with TLS of a broker that has it beside one in plain text; None: it has not.

    The pod's command line speaks TLS, which goes with the token.
    """
    containers = pod.get("spec", {}).get("containers") or ()
    variables = (each for one in containers for each in one.get("env") or ())
    return next((each.get("value") for each in variables if each["name"] == _TLS_PORT), None)


def exec_arguments(
    pod: dict[str, Any],
    cluster: str,
    arguments: Sequence[str],
    *,
    is_terminal: bool = False,
    has_token: bool = False,
) -> list[str]:
    """Return kubectl's arguments: another broker may answer when this one ends.

    Args:
        pod: in which the command runs.
        cluster: its Cluster.
        arguments: of the command.
        is_terminal: whether a person sees what it writes, and writes what it reads.
        has_token: whether a token comes first on standard input.
    """
    metadata = pod["metadata"]
    address = BOOTSTRAP.format(cluster=cluster, namespace=metadata["namespace"])
    if (tls_port := _tls_port(pod)) is not None:
        address = f"{address.rpartition(':')[0]}:{tls_port}"
    program = ["sh", "-c", _WITH_TOKEN, "millrace"] if has_token else ["millrace"]
    return [
        *("exec", "--stdin", *(["--tty"] if is_terminal else [])),
        *(f"--namespace={metadata['namespace']}", f"--container={CONTAINER}", metadata["name"]),
        *("--", "env", f"MILLRACE_BOOTSTRAP={address}", *program, *arguments),
    ]


def _pods(begin: Sequence[str], cluster: str) -> list[dict[str, Any]]:
    selector = f"--selector={BROKERS.format(cluster)}"
    done = subprocess.run(
        [*begin, "get", "pods", selector, "--output=json"], stdout=subprocess.PIPE, check=False
    )
    if done.returncode:
        raise SystemExit(done.returncode)  # kubectl has said why.
    items: list[dict[str, Any]] = json.loads(done.stdout)["items"]
    return items


def _token(begin: Sequence[str], namespace: str, cluster: str, account: str) -> str:
    """Return a token of an account for a cluster, and for nothing else."""
    of, _, name = account.rpartition("/")
    where = f"--namespace={of or namespace}"
    audience = f"--audience={audience_of(cluster, namespace)}"
    asked = ["create", "token", name, where, audience, f"--duration={TOKEN_LASTS}"]
    # The last option of a name counts.
    done = subprocess.run([*begin, *asked], stdout=subprocess.PIPE, check=False, text=True)
    if done.returncode:
        raise SystemExit(done.returncode)  # kubectl has said why.
    return done.stdout.strip()


def _run(program: list[str], token: str) -> NoReturn:
    """Run kubectl with the token before all that comes on standard input; end as it does."""
    sys.stdout.flush()
    kubectl = subprocess.Popen(program, stdin=subprocess.PIPE)
    assert kubectl.stdin is not None
    os.write(kubectl.stdin.fileno(), f"{token}\n".encode("ascii"))
    threading.Thread(target=_pass_on, args=(kubectl.stdin,), daemon=True).start()
    while True:
        try:
            code = kubectl.wait()
        except KeyboardInterrupt:
            continue  # kubectl has it, too, and ends by it.
        # Not by way of the interpreter's end: the thread may wait for a terminal for ever.
        os._exit(code if code >= 0 else 128 - code)


def _pass_on(pipe: IO[bytes]) -> None:
    with suppress(OSError):
        while chunk := os.read(0, _CHUNK_BYTES):
            while chunk:
                chunk = chunk[os.write(pipe.fileno(), chunk) :]
        pipe.close()


def _become(program: list[str]) -> NoReturn:
    """Become kubectl: signals and the exit code are its own."""
    sys.stdout.flush()
    os.execv(program[0], program)


def main() -> None:
    """Run the plugin."""
    with standard_streams():
        command(prog_name="kubectl millrace")
