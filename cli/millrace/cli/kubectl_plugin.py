"""`kubectl millrace`: the command line in a broker's pod, found by the name of its Cluster.

kubectl takes a program of this name on the PATH for one of its own commands. Nothing has to be
forwarded, and nothing listens: `kubectl exec` carries standard input and output.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import click

from millrace.cli.command import Command
from millrace.cli.console.failures import ExitCode, Failure
from millrace.cli.console.standard_streams import standard_streams

BROKERS: Final = "millrace.dev/cluster={},app.kubernetes.io/component=broker"
"""Selects the pods of a Cluster."""
BOOTSTRAP: Final = "{cluster}-bootstrap.{namespace}.svc:7092"
CONTAINER: Final = "broker"


@click.command(
    "kubectl millrace",
    cls=Command,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "allow_interspersed_args": False,
        "ignore_unknown_options": True,
    },
    examples="""
    kubectl millrace logs topic list
    kubectl millrace -n shop logs cluster health
    echo hello | kubectl millrace logs produce greetings
    """,
)
@click.option("-n", "--namespace", help="Namespace of the Cluster.  [default: the context's]")
@click.option("--context", "context_name", help="Context of the kubeconfig.")
@click.option("--kubeconfig", help="The kubeconfig.")
@click.argument("cluster")
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    namespace: str | None,
    context_name: str | None,
    kubeconfig: str | None,
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


def exec_arguments(
    pod: dict[str, Any], cluster: str, arguments: Sequence[str], *, is_terminal: bool
) -> list[str]:
    """Return kubectl's arguments: another broker may answer when this one ends."""
    metadata = pod["metadata"]
    address = BOOTSTRAP.format(cluster=cluster, namespace=metadata["namespace"])
    return [
        *("exec", "--stdin", *(["--tty"] if is_terminal else [])),
        *(f"--namespace={metadata['namespace']}", f"--container={CONTAINER}", metadata["name"]),
        *("--", "env", f"MILLRACE_BOOTSTRAP={address}", "millrace", *arguments),
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


def _become(program: list[str]) -> NoReturn:
    """Become kubectl: signals and the exit code are its own."""
    sys.stdout.flush()
    os.execv(program[0], program)


def main() -> None:
    """Run the plugin."""
    with standard_streams():
        command(prog_name="kubectl millrace")
