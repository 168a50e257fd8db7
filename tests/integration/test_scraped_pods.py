"""Of each pod of brokers and operators Prometheus scrapes one page, with the labels of dashboards.

By its own tool (`promtool check service-discovery`), on what its discovery of pods says of the
pods that the operator and the chart make; the names of these labels are in Prometheus's
documentation of `kubernetes_sd_config`. `e2e/tests/test_watching.py` does it with real pods.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from charts.generate import EXPECTED
from e2e.prometheus.pod_monitors import scrape_configs
from tests.watching import prometheus

from millrace.operator.model.objects import Decided, desired_objects
from millrace.operator.reconcile.resources import cluster_of

pytestmark = pytest.mark.skipif(not prometheus.is_there(), reason=prometheus.WHY_NOT)

Document = dict[str, Any]

CHARTS = EXPECTED.parents[2] / "charts"
META = "__meta_kubernetes"
ADDRESS = "10.0.0.9"
SYSTEM = "millrace-system"


def chart() -> list[Document]:
    """Return the release's objects with PodMonitors."""
    found = (EXPECTED / "all.yaml").read_text()
    return [document for document in yaml.safe_load_all(found) if document]


def broker(**further: object) -> Document:
    """Return the template of a broker's pod, with a listener for clients outside."""
    volumes = [{"name": "data", "size": "1Gi"}]
    spec = {
        "pools": [{"name": "b", "volumes": volumes}],
        "listeners": {"outside": {"type": "NodePort"}},
        **further,
    }
    metadata = {"name": "logs", "namespace": "shop", "uid": "u", "generation": 1}
    made = desired_objects(
        cluster_of({"metadata": metadata, "spec": spec}), Decided(image="millrace")
    )
    return _template(made, "StatefulSet")


def operator() -> Document:
    """Return the template of an operator's pod, by the chart's own values."""
    by_default = yaml.safe_load_all((EXPECTED / "default.yaml").read_text())
    return _template([document for document in by_default if document], "Deployment")


def _template(documents: list[Document], kind: str) -> Document:
    (found,) = (document for document in documents if document["kind"] == kind)
    template: Document = found["spec"]["template"]
    return template


def discovered(
    template: Document, name: str, namespace: str, phase: str = "Running"
) -> Iterator[Document]:
    """Yield what the discovery says of a pod: a target for each port, or container without one."""
    labels = {
        f"{META}_namespace": namespace,
        f"{META}_pod_name": name,
        f"{META}_pod_phase": phase,
    }
    for kind in ("label", "annotation"):
        for key, value in template["metadata"][f"{kind}s"].items():
            key = re.sub(r"\W", "_", key)
            labels |= {f"{META}_pod_{kind}_{key}": value, f"{META}_pod_{kind}present_{key}": "true"}
    spec = template["spec"]
    for container in [*spec.get("initContainers", ()), *spec["containers"]]:
        of_container = {**labels, f"{META}_pod_container_name": container["name"]}
        for port in container.get("ports", ({},)):
            number = port.get("containerPort")
            of_port = (
                {
                    f"{META}_pod_container_port_name": port["name"],
                    f"{META}_pod_container_port_number": str(number),
                }
                if port
                else {}
            )
            address = f"{ADDRESS}:{number}" if port else ADDRESS
            yield {"targets": [address], "labels": {**of_container, **of_port}}


def scraped(folder: Path, configs: list[Document], pods: list[Document]) -> list[Document]:
    """Return the labels of what a Prometheus would scrape by these configurations."""
    (folder / "pods.json").write_text(json.dumps(pods))
    jobs = [
        {
            **{key: config[key] for key in ("job_name", "honor_labels", "relabel_configs")},
            "file_sd_configs": [{"files": ["pods.json"]}],
        }
        for config in configs
    ]
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump({"scrape_configs": jobs}))
    kept = []
    for job in jobs:
        done = subprocess.run(
            ["promtool", "check", "service-discovery", "--timeout=1s", config, job["job_name"]],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        kept += [found["labels"] for found in json.loads(done.stdout) if found["labels"]]
    return kept


def by_annotations() -> list[Document]:
    documents = yaml.safe_load_all((CHARTS / "prometheus.yaml").read_text())
    (config,) = (document["data"]["prometheus.yml"] for document in documents if "data" in document)
    found: list[Document] = yaml.safe_load(config)["scrape_configs"]
    return found


def by_pod_monitors() -> list[Document]:
    monitors = [document for document in chart() if document["kind"] == "PodMonitor"]
    return [config for monitor in monitors for config in scrape_configs(monitor)]


@pytest.mark.parametrize(
    "configs", [by_annotations(), by_pod_monitors()], ids=["annotations", "monitors"]
)
def test_each_pod_is_scraped_once_at_its_page_with_the_labels_of_dashboards(
    tmp_path: Path, configs: list[Document]
) -> None:
    pods = [
        *discovered(broker(), "logs-b-0", "shop"),
        *discovered(broker(), "logs-b-1", "shop", phase="Failed"),
        *discovered(operator(), "millrace-operator-1", SYSTEM),
        *discovered(
            {"metadata": {"labels": {}, "annotations": {}}, "spec": broker()["spec"]},
            "other",
            "shop",
        ),
    ]
    found = scraped(tmp_path, configs, pods)
    wanted = ("__address__", "namespace", "millrace_cluster", "instance")
    assert sorted(tuple(labels.get(name, "") for name in wanted) for labels in found) == [
        (f"{ADDRESS}:7093", "shop", "logs", "logs-b-0"),
        (f"{ADDRESS}:7095", SYSTEM, "", "millrace-operator-1"),
    ]


@pytest.mark.parametrize(
    "configs", [by_annotations(), by_pod_monitors()], ids=["annotations", "monitors"]
)
def test_a_page_that_asks_for_a_token_is_left_to_who_has_it(
    tmp_path: Path, configs: list[Document]
) -> None:
    guarded = broker(tls={}, metricsPage={"tokenSecret": "prometheus"})
    assert scraped(tmp_path, configs, list(discovered(guarded, "logs-b-0", "shop"))) == []


def test_annotations_that_say_no_are_obeyed(tmp_path: Path) -> None:
    template = broker()
    template["metadata"]["annotations"]["prometheus.io/scrape"] = "false"
    assert scraped(tmp_path, by_annotations(), list(discovered(template, "b", "shop"))) == []
