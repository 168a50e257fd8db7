"""The chart of a Spark job, and the manifests made from it: a real API server takes them all."""

import shutil
import subprocess

import pytest
import yaml
from charts.generate import SPARK_JOB, SPARK_JOBS, helm, rendered_job
from tests.api_server.running import RunningApiServer
from tests.integration.kubernetes.test_chart import Document, apply, documents

# The first run builds helm.
pytestmark = pytest.mark.timeout(1200)

FOLDERS = sorted(path.parent.name for path in SPARK_JOBS.glob("*/job.yaml"))
_STARTED = ("Deployment", "CronJob", "Job")
"""What starts a job: it is one of them."""
VALUES = {
    "every value": (
        *("imagePullSecrets={login}", "topicNamespace=shop", "zone=eu-west-1a"),
        *("nodeSelector.disk=ssd", "storage.storageClassName=nfs", "podAnnotations.a=b"),
        *("serviceAccount.annotations.a=b", "sparkConf.spark\\.eventLog\\.enabled=true"),
        *("tolerations[0].operator=Exists", "executor.instances=1"),
    ),
    "a claim that is there": ("storage.existingClaim=lake",),
}
"""Sets of values beside those of the manifests."""


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_api_server_takes_every_object_of_the_manifests(
    api_server: RunningApiServer, folder: str
) -> None:
    found = documents((SPARK_JOBS / folder / "job.yaml").read_text())
    assert {"ServiceAccount", "Role", "ConfigMap", "NetworkPolicy"} <= {
        each["kind"] for each in found
    }
    assert [refused for each in found if (refused := apply(api_server, each))] == []


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_the_api_server_takes_what_values_make(
    api_server: RunningApiServer, values: tuple[str, ...]
) -> None:
    found = documents(rendered_job("delays", *(part for v in values for part in ("--set", v))))
    assert [refused for each in found if (refused := apply(api_server, each))] == []


def test_the_template_of_executors_is_a_pod_that_the_api_server_takes(
    api_server: RunningApiServer,
) -> None:
    """Spark fills in the image and the name."""
    (settings,) = (
        each for each in documents(rendered_job("delays")) if each["kind"] == "ConfigMap"
    )
    pod: Document = yaml.safe_load(settings["data"]["executor.yaml"])
    pod["metadata"]["name"] = "delays-exec-1"
    pod["spec"]["containers"][0]["image"] = "millrace-spark"
    assert apply(api_server, pod) == ""


def test_own_settings_of_spark_count_before_those_of_the_chart() -> None:
    (settings,) = (
        each
        for each in documents(
            rendered_job("delays", "--set", "sparkConf.spark\\.decommission\\.enabled=false")
        )
        if each["kind"] == "ConfigMap"
    )
    lines = settings["data"]["spark-defaults.conf"].split("\n")
    assert [line for line in lines if line.startswith("spark.decommission.enabled")] == [
        "spark.decommission.enabled false"
    ]


def test_helm_finds_nothing_to_say_of_the_chart() -> None:
    done = helm("lint", str(SPARK_JOB), "--strict", "--kube-version", "1.34.4")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("executors=3", "additional properties 'executors' not allowed"),
        ("executor.instances=0", "at '/executor/instances': minimum: got 0, want 1"),
        ("driver.memory=1Gi", "at '/driver/memory': '1Gi' does not match pattern"),
        ("bootstrap=logs-bootstrap", "at '/bootstrap': 'logs-bootstrap' does not match pattern"),
        ("job.file=job.py", "at '/job/file': 'job.py' does not match pattern"),
        ("storage.accessMode=ReadOnlyMany", "at '/storage/accessMode': value must be one of"),
        ("sparkConf.decommission=true", "decommission"),
    ],
)
def test_a_wrong_value_is_refused_by_name(value: str, said: str) -> None:
    with pytest.raises(ValueError, match="values don't meet the specifications") as refused:
        rendered_job("delays", "--set", value)
    assert said in str(refused.value)


@pytest.mark.parametrize("folder", FOLDERS)
def test_kustomize_gives_executors_the_image_of_the_driver(folder: str) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not on this machine")
    done = subprocess.run(
        [kubectl, "kustomize", str(SPARK_JOBS / folder)], capture_output=True, text=True, check=True
    )
    (driver,) = (each for each in documents(done.stdout) if each["kind"] in _STARTED)
    spec = driver["spec"].get("jobTemplate", driver)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    (image,) = (each["value"] for each in container["env"] if each["name"] == "SPARK_IMAGE")
    assert image == container["image"] == "millrace-spark:0.1.0"
