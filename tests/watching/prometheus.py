"""A real Prometheus: what it answers, and one on a port of its own."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

START_SECONDS_MAX = 60.0
_ANSWER_SECONDS_MAX = 30.0
OF_THE_MACHINE = {
    "MillraceDiskFull",
    "MillraceDiskFillsUp",
    "MillraceDiskSlow",
    "MillraceEventLoopSlow",
}
"""Other work on the machine may cause these: it fills the disk and keeps the processors busy."""
WHY_NOT = "Prometheus is not on this machine: sh requirements/install.sh prometheus"


def is_there() -> bool:
    """Return whether this machine has Prometheus and its tool."""
    return all(shutil.which(name) for name in ("prometheus", "promtool"))


@dataclass(frozen=True)
class Target:
    """What is scraped.

    Attributes:
        job: its name.
        address: host and port of the page.
        labels: that its series get.
    """

    job: str
    address: str
    labels: Mapping[str, str]


class Prometheus:
    """What one answers.

    Attributes:
        url: where it does.
    """

    url = ""

    def ask(self, path: str, **parameters: object) -> Any:
        """Return the data of an answer of its API."""
        url = f"{self.url}/api/v1/{path}?{urlencode(parameters, doseq=True)}"
        with urlopen(url, timeout=_ANSWER_SECONDS_MAX) as answer:
            said = json.load(answer)
        assert said["status"] == "success", said
        return said["data"]

    def values(self, expr: str) -> list[float]:
        """Return the values of all series of an expression now."""
        found = self.ask("query", query=expr)
        return [float(sample["value"][1]) for sample in found["result"]]

    def is_up(self) -> bool:
        """Return whether each target was scraped."""
        targets = self.ask("targets")["activeTargets"]
        return bool(targets) and all(target["health"] == "up" for target in targets)

    def fired(self) -> set[str]:
        """Return the names of the alerts that fired in the last ten minutes."""
        return self._alerts('count_over_time(ALERTS{alertstate="firing"}[10m])')

    def pending(self) -> set[str]:
        """Return the names of the alerts that will fire if nothing changes."""
        return self._alerts('ALERTS{alertstate="pending"}')

    def _alerts(self, expr: str) -> set[str]:
        found = self.ask("query", query=expr)
        return {sample["metric"]["alertname"] for sample in found["result"]} - OF_THE_MACHINE


class RunningPrometheus(Prometheus):
    """A process.

    Args:
        folder: for its files.
        targets: scraped each second.
        rules: files of rules, evaluated each second.
    """

    def __init__(self, folder: Path, targets: Sequence[Target], rules: Sequence[Path] = ()) -> None:
        self.folder = folder
        self._config = {
            "global": {
                "scrape_interval": "1s",
                "scrape_timeout": "1s",
                "evaluation_interval": "1s",
            },
            "rule_files": [str(path) for path in rules],
            "scrape_configs": [
                {
                    "job_name": job,
                    "static_configs": [
                        {"targets": [target.address], "labels": dict(target.labels)}
                        for target in targets
                        if target.job == job
                    ],
                }
                for job in sorted({target.job for target in targets})
            ],
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "RunningPrometheus":
        """Start it; return once it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        config, log = self.folder / "prometheus.yml", self.folder / "prometheus.log"
        config.write_text(yaml.safe_dump(self._config))
        with log.open("wb") as told:
            self._process = subprocess.Popen(
                [
                    *("prometheus", f"--config.file={config}", "--log.format=json"),
                    f"--storage.tsdb.path={self.folder / 'data'}",
                    "--web.listen-address=127.0.0.1:0",
                ],
                stdout=subprocess.DEVNULL,
                stderr=told,
                env=os.environ | {"GOMAXPROCS": "1"},
            )
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._is_ready():
            assert time.monotonic() < deadline, log.read_text()
            assert self._process.poll() is None, log.read_text()
            lines = [line for line in log.read_text().splitlines() if '"Listening on"' in line]
            if lines:
                self.url = f"http://{json.loads(lines[0])['address']}"
            time.sleep(0.05)
        return self

    def _is_ready(self) -> bool:
        try:
            with urlopen(f"{self.url}/-/ready", timeout=_ANSWER_SECONDS_MAX) as answer:
                return bool(answer.status == HTTPStatus.OK)
        except (ValueError, HTTPError):  # It has no address yet, or opens its database.
            return False

    def stop(self) -> None:
        """Leave nothing running."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
