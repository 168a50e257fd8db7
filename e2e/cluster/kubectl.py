"""A cluster through kubectl, as its user sees it."""

import json
import subprocess
from pathlib import Path
from typing import IO, Any

from e2e.cluster.commands import CommandError, run


class Kubectl:
    """kubectl with a kubeconfig.

    Attributes:
        kubeconfig: its path.
    """

    def __init__(self, kubeconfig: Path, program: str | Path) -> None:
        self.kubeconfig = kubeconfig
        self._program = program

    def __call__(
        self, *arguments: str | Path, input: str | None = None, seconds_max: float = 600.0
    ) -> str:
        """Run kubectl; return what it wrote to standard output.

        Raises:
            CommandError: it failed, or took too long; the message has its output.
        """
        config = f"--kubeconfig={self.kubeconfig}"
        return run(self._program, config, *arguments, input=input, seconds_max=seconds_max)

    def start(
        self, *arguments: str | Path, output: IO[bytes] | int = subprocess.DEVNULL
    ) -> "subprocess.Popen[bytes]":
        """Start kubectl; the caller gives it its input, and may say where its output goes."""
        return subprocess.Popen(
            [self._program, f"--kubeconfig={self.kubeconfig}", *arguments],
            stdin=subprocess.PIPE,
            stdout=output,
        )

    def get(self, *arguments: str) -> dict[str, Any]:
        """Return an object, or a list of them, as `kubectl get` does.

        Raises:
            CommandError: there is none.
        """
        found: dict[str, Any] = json.loads(self("get", "--output=json", *arguments))
        return found

    def apply(self, manifest: str | Path) -> None:
        """Apply a manifest: a file's path, or YAML itself."""
        if isinstance(manifest, Path):
            self("apply", "--filename", manifest)
        else:
            self("apply", "--filename=-", input=manifest)

    def exec(
        self,
        pod: str,
        *command: str,
        namespace: str = "default",
        input: str | None = None,
        seconds_max: float = 120.0,
    ) -> str:
        """Run a command in a pod; return what it wrote.

        Raises:
            CommandError: it failed, or took too long.
        """
        choices = (f"--namespace={namespace}", *(("--stdin",) if input is not None else ()))
        return self("exec", *choices, pod, "--", *command, input=input, seconds_max=seconds_max)

    def is_ready(self) -> bool:
        """Whether the API server answers that it is ready."""
        try:
            return self("get", "--raw=/readyz", seconds_max=5.0) == "ok"
        except CommandError:
            return False
