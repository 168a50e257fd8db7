"""A program that a kubeconfig names, and that logs in: a credential plugin of client-go.

Source: https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins.
"""

import json
import os
import subprocess
import threading
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from millrace.runtime import host

_SECONDS_MAX: Final = 30
"""How long it may take: it may ask a service, and a person cannot be asked."""
_USED_S: Final = 60.0
"""How long credentials are used that do not say when they run out."""
_EARLY_S: Final = 10.0
"""The program is asked again so many seconds before its credentials run out."""


class LoginProgram:
    """Calling it returns the token of this moment; any number of threads may call it.

    Args:
        settings: `exec` of a user.
        folder: of the kubeconfig: a command with a `/` is found from there.
        cluster: what the program is told of the cluster, if it wants to know.

    Raises:
        OSError: the program fails, or gives no credentials.
        KeyError: it has no command or version.
    """

    def __init__(
        self, settings: Mapping[str, Any], folder: Path, cluster: Mapping[str, str]
    ) -> None:
        command = str(settings["command"])
        self._command = [str(folder / command) if "/" in command else command]
        self._command += map(str, settings.get("args") or ())
        spec: dict[str, Any] = {"interactive": False}
        if settings.get("provideClusterInfo"):
            spec["cluster"] = cluster
        self._about = json.dumps(
            {"apiVersion": settings["apiVersion"], "kind": "ExecCredential", "spec": spec}
        )
        self._variables = {
            variable["name"]: variable["value"] for variable in settings.get("env") or ()
        }
        self._lock = threading.Lock()
        self._found: Mapping[str, Any] = {}
        self._used_until_s = 0.0

    def __call__(self) -> str | None:
        return self._credentials().get("token")

    def certificate_and_key(self) -> tuple[str | None, str | None]:
        """Return those of the client in PEM, if the program gives them."""
        found = self._credentials()
        return found.get("clientCertificateData"), found.get("clientKeyData")

    def _credentials(self) -> Mapping[str, Any]:
        with self._lock:
            now_s = host.current.wall_ns() / 1e9
            if now_s >= self._used_until_s:
                self._found, ends_s = self._run()
                self._used_until_s = now_s + _USED_S if ends_s is None else ends_s - _EARLY_S
            return self._found

    def _run(self) -> tuple[Mapping[str, Any], float | None]:
        """Return the program's credentials, and when they run out, if it says that."""
        environment = os.environ | self._variables | {"KUBERNETES_EXEC_INFO": self._about}
        try:
            done = subprocess.run(
                self._command,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_SECONDS_MAX,
                check=True,
            )
            found: Mapping[str, Any] = json.loads(done.stdout)["status"]
            if not (found.get("token") or found.get("clientCertificateData")):
                raise ValueError("it gave neither a token nor a certificate")
            ends = found.get("expirationTimestamp")
            return found, datetime.fromisoformat(ends).timestamp() if ends else None
        except subprocess.CalledProcessError as error:
            why = error.stderr.decode("utf-8", "replace").strip()[-500:]
            raise OSError(f"{self._command[0]}, which logs in, failed: {why}") from error
        except (
            subprocess.TimeoutExpired,
            ValueError,
            KeyError,
            RecursionError,
            TypeError,
            AttributeError,
        ) as error:
            raise OSError(f"{self._command[0]}, which logs in, is of no use: {error}") from error
