"""The chart of a Spark job, and the manifests made from it: a real API server takes them all."""

import secrets
import shutil
import subprocess

import pytest
import yaml
from charts.generate import SPARK_JOBS, VERSION, rendered_job
from kubeflow_spark_api.models import (
    SparkV1beta2ScheduledSparkApplication,
    SparkV1beta2SparkApplication,
)
from tests.api_server.running import RunningApiServer
from tests.integration.kubernetes.test_chart import Document, apply, documents, of_kind, refusals

# A run without `make helm` builds it first.
pytestmark = pytest.mark.timeout(1200)

FOLDERS = sorted(path.parent.name for path in SPARK_JOBS.glob("*/job.yaml"))
_STARTED = ("Deployment", "CronJob")
"""What starts a job: it is one of them."""
SPARK_OPERATORS = {
    "SparkApplication": SparkV1beta2SparkApplication,
    "ScheduledSparkApplication": SparkV1beta2ScheduledSparkApplication,
}
"""The Spark operator's schemas; the operator itself was not tried."""
VALUES = {
    "every value": (
        *("imagePullSecrets={login}", "topicNamespace=shop", "zone=eu-west-1a"),
        *("nodeSelector.disk=ssd", "storage.storageClassName=nfs", "podAnnotations.a=b"),
        *("serviceAccount.annotations.a=b", "sparkConf.spark\\.eventLog\\.enabled=true"),
        *("tolerations[0].operator=Exists", "executor.instances=1"),
    ),
    "a claim that is there": ("storage.existingClaim=lake",),
    "a guarded Cluster": (
        *("tls.authorities=logs-ca", "access.audience=logs.shop.millrace.dev"),
        *("access.rules[0].apiGroups={millrace.dev}", "access.rules[0].resources={topics}"),
        "access.rules[0].verbs={describe,consume}",
    ),
}
"""Sets of values beside those of the manifests."""


def manifests(folder: str) -> list[Document]:
    return documents((SPARK_JOBS / folder / "job.yaml").read_text())


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_api_server_takes_every_object_of_the_manifests(
    api_server: RunningApiServer, folder: str
) -> None:
    found = [document for document in manifests(folder) if document["kind"] not in SPARK_OPERATORS]
    assert {"ServiceAccount", "Role", "NetworkPolicy"} <= {document["kind"] for document in found}
    assert refusals(api_server, found) == []


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_the_api_server_takes_what_values_make(
    api_server: RunningApiServer, values: tuple[str, ...]
) -> None:
    found = documents(rendered_job("delays", *(part for v in values for part in ("--set", v))))
    assert refusals(api_server, found) == []


@pytest.mark.parametrize("folder", ["operator", "operator-scheduled"])
def test_the_spark_operators_schema_has_every_field(
    api_server: RunningApiServer, folder: str
) -> None:
    (found,) = of_kind(manifests(folder), *SPARK_OPERATORS)
    schema = SPARK_OPERATORS[found["kind"]]
    assert schema.from_dict(found).to_dict() == found, "what the schema does not know is dropped"
    application = found["spec"].get("template", found["spec"])
    pinned = (SPARK_JOBS.parents[1] / "requirements" / "spark.txt").read_text()
    assert f"pyspark=={application['sparkVersion']}" in pinned
    for part in ("driver", "executor"):
        assert takes_pod(api_server, application[part]["template"]) == ""


def test_the_spark_operators_schema_refuses_what_is_wrong() -> None:
    (found,) = of_kind(manifests("operator"), *SPARK_OPERATORS)
    found["spec"]["executor"]["instances"] = "two"
    with pytest.raises(ValueError, match="instances"):
        SPARK_OPERATORS["SparkApplication"].from_dict(found)


@pytest.mark.parametrize(
    ("folder", "template"),
    [("streaming", "executor"), ("cluster-mode", "executor"), ("cluster-mode", "driver")],
)
def test_the_templates_of_pods_are_such_that_the_api_server_takes_them(
    api_server: RunningApiServer, folder: str, template: str
) -> None:
    (settings,) = of_kind(manifests(folder), "ConfigMap")
    assert takes_pod(api_server, yaml.safe_load(settings["data"][f"{template}.yaml"])) == ""


def takes_pod(api_server: RunningApiServer, template: Document) -> str:
    """Apply a template, of which Spark fills in the image and the name; empty: it is taken."""
    pod: Document = {"apiVersion": "v1", "kind": "Pod", **template}
    pod["metadata"]["name"] = f"delays-{secrets.token_hex(4)}"
    pod["spec"]["containers"][0]["image"] = "millrace-spark"
    return apply(api_server, pod)


GUARDED = ("--set", "tls.authorities=logs-ca,access.audience=logs.shop.millrace.dev")


def pods_of(submission: str, *values: str) -> dict[str, Document]:
    """Return the pods of driver and executors, as the release starts them or has them started."""
    found = documents(rendered_job("delays", "--set", f"submission={submission}", *values))
    if submission == "operator":
        (application,) = of_kind(found, "SparkApplication")
        return {part: application["spec"][part]["template"] for part in ("driver", "executor")}
    (settings,) = of_kind(found, "ConfigMap")
    (deployment,) = of_kind(found, "Deployment")
    driver = settings["data"].get("driver.yaml")
    return {
        "driver": yaml.safe_load(driver) if driver else deployment["spec"]["template"],
        "executor": yaml.safe_load(settings["data"]["executor.yaml"]),
    }


@pytest.mark.parametrize("submission", ["client", "cluster", "operator"])
def test_driver_and_executors_of_a_guarded_cluster_have_its_authorities_and_a_token_for_it(
    api_server: RunningApiServer, submission: str
) -> None:
    for part, pod in pods_of(submission, *GUARDED).items():
        (container,) = pod["spec"]["containers"]
        environment = {each["name"]: each.get("value") for each in container["env"]}
        assert environment["MILLRACE_TLS_CA_FILE"] == "/var/run/millrace/ca.crt"
        assert environment["MILLRACE_TOKEN_FILE"] == "/var/run/millrace/token"
        mount = next(each for each in container["volumeMounts"] if each["name"] == "brokers")
        assert (mount["mountPath"], mount["readOnly"]) == ("/var/run/millrace", True)
        (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == "brokers")
        authorities, token = volume["projected"]["sources"]
        assert authorities["configMap"]["name"] == "logs-ca"
        assert token["serviceAccountToken"] == {
            "path": "token",
            "audience": "logs.shop.millrace.dev",
            "expirationSeconds": 3600,
        }
        if part == "executor":
            assert pod["spec"]["serviceAccountName"] == "delays", "the job's, not default's"
            assert pod["spec"]["automountServiceAccountToken"] is False
            assert takes_pod(api_server, pod) == ""


@pytest.mark.parametrize("submission", ["client", "cluster", "operator"])
def test_the_drivers_pages_speak_tls_and_ask_for_a_token_if_that_is_wanted(
    api_server: RunningApiServer, submission: str
) -> None:
    chosen = ("--set", "pages.tlsSecret=page,pages.tokenSecret=prometheus")
    pods = pods_of(submission, *chosen)
    assert "millrace-pages" not in yaml.safe_dump(pods["executor"])
    assert pods["driver"]["metadata"]["annotations"]["prometheus.io/scheme"] == "https"
    spec = pods["driver"]["spec"]
    (container,) = spec["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["scheme"] == "HTTPS"
    files = {
        each["value"] for each in container["env"] if each["name"].startswith("MILLRACE_PAGES_")
    }
    folder = "/var/run/millrace-pages"
    assert files == {f"{folder}/{name}" for name in ("tls.crt", "tls.key", "token")}
    assert {"name": "pages", "mountPath": folder, "readOnly": True} in container["volumeMounts"]
    (volume,) = (each for each in spec["volumes"] if each["name"] == "pages")
    names = [source["secret"]["name"] for source in volume["projected"]["sources"]]
    assert names == ["page", "prometheus"]
    given = rendered_job("delays", *chosen, "--set", f"podMonitor=true,submission={submission}")
    (monitor,) = of_kind(documents(given), "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["authorization"] == {"credentials": {"name": "prometheus", "key": "token"}}
    if submission == "cluster":
        assert takes_pod(api_server, pods["driver"]) == ""


@pytest.mark.parametrize("submission", ["client", "cluster", "operator"])
def test_a_driver_knows_how_long_it_may_be_silent_and_take_to_end(submission: str) -> None:
    chosen = ("--set", "silentSecondsMax=1200,terminationGracePeriodSeconds=600")
    pods = pods_of(submission, *chosen)
    (container,) = pods["driver"]["spec"]["containers"]
    environment = {each["name"]: each.get("value") for each in container["env"]}
    assert environment["MILLRACE_SILENT_SECONDS_MAX"] == "1200"
    assert environment["MILLRACE_GRACE_SECONDS"] == "600"
    assert pods["driver"]["spec"]["terminationGracePeriodSeconds"] == 600


@pytest.mark.parametrize("submission", ["client", "cluster", "operator"])
def test_pods_have_no_token_where_brokers_ask_nobody(submission: str) -> None:
    for pod in pods_of(submission).values():
        assert "serviceAccountToken" not in yaml.safe_dump(pod)
        assert "MILLRACE_T" not in yaml.safe_dump(pod)


def test_the_rules_of_a_job_are_in_the_namespace_of_its_topics() -> None:
    values = (
        *("--set", "topicNamespace=shop", "--set", "access.rules[0].apiGroups={millrace.dev}"),
        *(
            "--set",
            "access.rules[0].resources={topics}",
            "--set",
            "access.rules[0].verbs={consume}",
        ),
    )
    found = documents(rendered_job("delays", *values))
    role, binding = (
        each
        for each in of_kind(found, "Role", "RoleBinding")
        if each["metadata"]["name"] == "delays-topics"
    )
    assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == "shop"
    assert role["rules"] == [
        {"apiGroups": ["millrace.dev"], "resources": ["topics"], "verbs": ["consume"]}
    ]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": "delays", "namespace": "default"}
    ]


def test_own_settings_of_spark_count_before_those_of_the_chart() -> None:
    chosen = ("--set", "sparkConf.spark\\.decommission\\.enabled=false")
    (settings,) = of_kind(documents(rendered_job("delays", *chosen)), "ConfigMap")
    lines = settings["data"]["spark-defaults.conf"].split("\n")
    assert [line for line in lines if line.startswith("spark.decommission.enabled")] == [
        "spark.decommission.enabled false"
    ]


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
        ("access.audience=https://kubernetes.default.svc", "at '/access/audience'"),
        ("access.audience=logs.shop.millrace.dev", "at '/tls/authorities': minLength"),
        ("pages.tokenSecret=prometheus", "at '/pages/tlsSecret': minLength"),
        ("access.tokenSeconds=60", "at '/access/tokenSeconds': minimum: got 60, want 600"),
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
    found = documents(done.stdout)
    for application in of_kind(found, *SPARK_OPERATORS):
        spec = application["spec"].get("template", application["spec"])
        assert spec["image"] == f"millrace-spark:{VERSION}"
        return
    (driver,) = of_kind(found, *_STARTED)
    spec = driver["spec"].get("jobTemplate", driver)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    (image,) = (
        variable["value"] for variable in container["env"] if variable["name"] == "SPARK_IMAGE"
    )
    assert image == container["image"] == f"millrace-spark:{VERSION}"
