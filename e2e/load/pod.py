"""The load's pod from outside: start it, send marks, ask for its status, and fetch its history.

Its code comes by a ConfigMap, as the product's image has no test code.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from e2e.cluster.directories import ROOT
from e2e.cluster.images import PRODUCT
from e2e.guard.accounts import audience_of, call_as
from e2e.installed import Namespace, until
from e2e.load.program import Settings, Status
from tests.checkers.history import Op, read

CODE: Final = (
    "e2e/load/program.py",
    "tests/checkers/history.py",
    "tests/faults/clients.py",
    "tests/faults/copier.py",
    "tests/faults/history.py",
    "tests/faults/load.py",
    "tests/faults/notes.py",
    "tests/faults/transactional.py",
    "tests/faults/transactor.py",
)
_AT: Final = "/load"
_FOLDER: Final = "/run/load"
_SETTINGS: Final = "settings.json"
_LOOK_SECONDS: Final = 0.5
_FINISH_SECONDS_MAX: Final = 600.0


class LoadPod:
    """One pod with a load.

    Args:
        namespace: of the pod; topics are `<namespace>/<topic>`.
        settings: of the load.
        node: where it must run; empty: anywhere.
        account: its ServiceAccount, for a Cluster `logs` with access control in its namespace;
            empty: the cluster is open.
    """

    def __init__(
        self,
        namespace: Namespace,
        settings: Settings,
        *,
        name: str = "load",
        node: str = "",
        account: str = "",
    ) -> None:
        self.name = name
        self._namespace = namespace
        self._settings = settings
        self._node = node
        self._account = account

    def start(self) -> None:
        """Start it; return once every partition has acknowledged writes."""
        code = {path.replace("/", "."): (ROOT / path).read_text() for path in CODE}
        self._namespace.apply(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": self.name},
                "data": {**code, _SETTINGS: json.dumps(asdict(self._settings))},
            },
            self._pod(),
        )
        self._namespace.wait(f"pod/{self.name}", "Ready")
        self.wait_for_all()

    def window(self, what: str) -> None:
        """Note that all should be available from now on ("open"), or may be broken ("close")."""
        self._mark({"window": what})

    def fault(self, fault_id: str, target: str) -> None:
        """Note that a fault's effect was seen."""
        self._mark({"fault": [fault_id, target]})

    def status(self) -> Status:
        """The present status.

        Raises:
            AssertionError: its clients ended with an unexpected error.
        """
        found = Status(**json.loads(self._exec("cat", f"{_FOLDER}/status.json")))
        assert not found.failure, found.failure
        return found

    def wait_for_all(self, count: int = 5, seconds: float = 120.0) -> None:
        """Return once so many more values of every partition are acknowledged.

        Of transactions and their copies so many more records are read.

        Raises:
            AssertionError: they are not in time; says of which keys, or topics.
        """
        wanted = {key: was + count for key, was in self._counts().items()}
        deadline = time.monotonic() + seconds
        while late := self._late(wanted):
            assert time.monotonic() < deadline, f"keys {late} took no writes for {seconds:g} s"
            time.sleep(_LOOK_SECONDS)

    def finish(self) -> list[Op]:
        """Stop the clients, read everything from the beginning, and return the history."""
        self._mark({"finish": True})
        until(
            lambda: self.status().is_finished,
            "everything is read from its beginning",
            _FINISH_SECONDS_MAX,
        )
        return self._history("history")

    def transactions(self) -> tuple[list[Op], list[Op]]:
        """Return the histories of transactions and of their copy, once all is finished."""
        return self._history("original"), self._history("copied")

    def _history(self, name: str) -> list[Op]:
        return list(read(self._exec("cat", f"{_FOLDER}/{name}.jsonl").splitlines()))

    def millrace(self, *arguments: str, input: str | None = None) -> str:
        """Run the command line in the pod, which can reach the brokers."""
        stdin = ("--stdin",) if input is not None else ()
        return self._namespace("exec", *stdin, self.name, "--", "millrace", *arguments, input=input)

    def consume(self, topic: str, count: int) -> list[str]:
        """Read so many records of a topic from the beginning; see `millrace`."""
        arguments = ("--from", "beginning", "--max", str(count), "--output", "json")
        lines = self.millrace("consume", topic, *arguments, "--timeout", "60").splitlines()
        return [json.loads(line)["value"] for line in lines]

    def _late(self, wanted: Mapping[str, int]) -> list[str]:
        found = self._counts()
        return [key for key, count in wanted.items() if found[key] < count]

    def _counts(self) -> dict[str, int]:
        status = self.status()
        has_transactions = bool(self._settings.transactions_in)
        return {**status.acknowledged_of, **(status.seen if has_transactions else {})}

    def _mark(self, mark: dict[str, Any]) -> None:
        script = f'printf "%s\\n" "$0" >>{_FOLDER}/marks'
        self._exec("sh", "-c", script, json.dumps(mark))

    def _exec(self, *command: str) -> str:
        return self._namespace("exec", self.name, "--", *command)

    def _pod(self) -> dict[str, Any]:
        paths = {path.replace("/", "."): path for path in CODE} | {_SETTINGS: _SETTINGS}
        items = [{"key": key, "path": path} for key, path in paths.items()]
        container = {
            "name": "load",
            "image": PRODUCT,
            "imagePullPolicy": "IfNotPresent",
            "command": ["python", "-m", "e2e.load.program", f"{_AT}/{_SETTINGS}", _FOLDER],
            "env": [
                {"name": "PYTHONPATH", "value": _AT},
                {"name": "MILLRACE_BOOTSTRAP", "value": self._settings.bootstrap},
            ],
            "startupProbe": {
                "exec": {"command": ["test", "-e", f"{_FOLDER}/status.json"]},
                "periodSeconds": 1,
                "failureThreshold": 120,
            },
            "volumeMounts": [
                {"name": "code", "mountPath": _AT},
                {"name": "folder", "mountPath": _FOLDER},
            ],
        }
        spec: dict[str, Any] = {
            "containers": [container],
            "restartPolicy": "Never",  # A restart would lose its history, without any error.
            "terminationGracePeriodSeconds": 0,
            "volumes": [
                {"name": "code", "configMap": {"name": self.name, "items": items}},
                {"name": "folder", "emptyDir": {}},
            ],
        }
        if self._node:
            spec["nodeSelector"] = {"kubernetes.io/hostname": self._node}
        if self._account:
            call_as(self._account, audience_of("logs", self._namespace.name), spec)
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": self.name}, "spec": spec}
