"""The operator's process with a real API server, and a relay between them that can refuse.

It has one Cluster to look after, which waits for pods: no kubelet is there to start them. So the
operator looks at it every few seconds.
"""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.request import urlopen

from tests.api_server.relay import ApiServerRelay, Refuse
from tests.api_server.running import RunningApiServer, free_port
from tests.background import repeated
from tests.integration.running_broker import wait_until
from tests.watching.quick_rules import FACTOR

NAMESPACE: Final = "shop"
NAME: Final = "orders"
START_SECONDS_MAX: Final = 60.0
_CLUSTERS: Final = f"/apis/millrace.dev/v1beta1/namespaces/{NAMESPACE}/clusters"
_EDIT_SECONDS: Final = 1.0
_UNAVAILABLE: Final = 503
_EVER: Final = 1 << 60
_PROGRAM: Final = f"""\
import sys
from millrace.operator import app
app.RESYNC_S /= {FACTOR}  # Alerts about its age are as much quicker.
config = app.OperatorConfig(
    image="millrace:1", namespace="default", holder="one", port=int(sys.argv[1])
)
app.run(config, stop_signals=[])
"""


class RunningOperator:
    """The process, and its page. `running_operator` makes it.

    Attributes:
        address: of its page.
    """

    def __init__(self, server: RunningApiServer, relay: ApiServerRelay, folder: Path) -> None:
        self._server = server
        self._relay = relay
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(_kubeconfig(relay.url))
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        environment.pop("KUBERNETES_SERVICE_HOST", None)
        with (folder / "operator.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )

    def kill(self) -> None:
        """Kill it, as a node's end would."""
        self._process.kill()
        self._process.wait()

    def has_succeeded(self) -> bool:
        """Return whether it has looked at the Cluster without a failure."""
        try:
            with urlopen(f"http://{self.address}/metrics", timeout=10) as page:
                return b"millrace_operator_last_success_timestamp_seconds{" in page.read()
        except URLError:
            return False

    @contextmanager
    def refused(self) -> Iterator[None]:
        """Let the API server fail whenever it is asked for the Cluster, which is edited."""
        self._relay.inject(
            Refuse(_UNAVAILABLE), method="GET", path=f"{_CLUSTERS}/{NAME}", times=_EVER
        )
        numbers = itertools.cycle((1, 2))
        with repeated(lambda: self._edit(next(numbers)), _EDIT_SECONDS):
            yield

    def _edit(self, brokers: int) -> None:
        """Be a person who tries another number of brokers."""
        _, found = self._server.request("GET", f"{_CLUSTERS}/{NAME}")
        spec = _spec(brokers=brokers)
        self._server.request("PUT", f"{_CLUSTERS}/{NAME}", {**found, "spec": spec})


@contextmanager
def running_operator(folder: Path) -> Iterator[RunningOperator]:
    """Start an API server and the operator; yield once it has looked at its Cluster."""
    folder.mkdir(parents=True)
    server = RunningApiServer(folder)
    try:
        server.start()
        cluster = {
            "apiVersion": "millrace.dev/v1beta1",
            "kind": "Cluster",
            "metadata": {"name": NAME},
            "spec": _spec(brokers=1),
        }
        for path, document in (
            ("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}}),
            (_CLUSTERS, cluster),
        ):
            status, answer = server.request("POST", path, document)
            assert status == 201, answer
        relay = ApiServerRelay(server.url, server.admin.tls, token=server.tokens["admin"])
        try:
            operator = RunningOperator(server, relay, folder)
            try:
                wait_until(operator.has_succeeded, "the operator succeeds", START_SECONDS_MAX)
                yield operator
            finally:
                operator.kill()
        finally:
            relay.close()
    finally:
        server.stop()


def _spec(*, brokers: int) -> dict[str, Any]:
    volume = {"name": "data", "size": "1Gi"}
    return {"pools": [{"name": "b", "replicas": brokers, "volumes": [volume]}]}


def _kubeconfig(url: str) -> str:
    """Return a kubeconfig without credentials: the relay shows its own."""
    context = {"cluster": "relay", "user": "nobody"}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "relay",
            "contexts": [{"name": "relay", "context": context}],
            "clusters": [{"name": "relay", "cluster": {"server": url}}],
            "users": [{"name": "nobody", "user": {}}],
        }
    )
