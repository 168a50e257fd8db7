"""A PodMonitor of the chart as a scrape configuration; what is not known is refused."""

from typing import Any

import pytest
import yaml
from charts.generate import EXPECTED
from e2e.prometheus.pod_monitors import scrape_configs


def monitor(name: str) -> Any:
    documents = yaml.safe_load_all((EXPECTED / "all.yaml").read_text())
    (found,) = (
        document
        for document in documents
        if document and document["kind"] == "PodMonitor" and document["metadata"]["name"] == name
    )
    return found


def test_brokers_of_all_namespaces_are_found_by_labels_and_the_name_of_the_port() -> None:
    (found,) = scrape_configs(monitor("millrace-operator-brokers"))
    kept = [
        (each["source_labels"], each["regex"])
        for each in found.pop("relabel_configs")
        if each.get("action") == "keep"
    ]
    component, managed_by = (f"app_kubernetes_io_{label}" for label in ("component", "managed_by"))
    meta = "__meta_kubernetes_pod"
    assert kept == [
        ([f"{meta}_label_{component}", f"{meta}_labelpresent_{component}"], "(broker);true"),
        (
            [f"{meta}_label_{managed_by}", f"{meta}_labelpresent_{managed_by}"],
            "(millrace-operator);true",
        ),
        ([f"{meta}_container_port_name"], "metrics"),
    ]
    assert found == {
        "job_name": "podMonitor/millrace-system/millrace-operator-brokers/0",
        "honor_labels": False,
        "kubernetes_sd_configs": [{"role": "pod"}],
        "scrape_interval": "30s",
    }


def test_operators_are_found_in_their_own_namespace_and_their_labels_are_kept() -> None:
    (found,) = scrape_configs(monitor("millrace-operator"))
    assert found["honor_labels"] is True
    (discovery,) = found["kubernetes_sd_configs"]
    assert discovery == {"role": "pod", "namespaces": {"names": ["millrace-system"]}}
    *_, job, endpoint, instance = found["relabel_configs"]
    assert job == {"target_label": "job", "replacement": "millrace-system/millrace-operator"}
    assert endpoint == {"target_label": "endpoint", "replacement": "metrics"}
    assert instance == {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "instance"}


def test_a_page_that_asks_for_a_token_is_asked_by_tls_and_shown_what_the_secret_has() -> None:
    guarded = monitor("millrace-operator")
    (endpoint,) = guarded["spec"]["podMetricsEndpoints"]
    authorities = {"configMap": {"name": "logs-ca", "key": "ca.crt"}}
    endpoint |= {
        "scheme": "https",
        "tlsConfig": {"ca": authorities, "serverName": "logs-bootstrap.shop.svc"},
        "authorization": {"credentials": {"name": "prometheus", "key": "token"}},
    }
    there = {("configmap", "logs-ca", "ca.crt"): "PEM", ("secret", "prometheus", "token"): "word"}
    (found,) = scrape_configs(guarded, lambda *asked: there[asked])
    assert found["scheme"] == "https"
    assert found["tls_config"] == {"ca": "PEM", "server_name": "logs-bootstrap.shop.svc"}
    assert found["authorization"] == {"credentials": "word"}
    with pytest.raises(ValueError, match=r"the configmap logs-ca with the key ca\.crt"):
        list(scrape_configs(guarded))


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (("spec",), "PodMonitor millrace-system/millrace-operator: not known here: more"),
        (("spec", "selector"), "selector: not known here: more"),
        (("spec", "podMetricsEndpoints", 0), "endpoint 0 of millrace-operator: not known"),
    ],
)
def test_a_field_that_would_be_left_out_is_an_error(
    where: tuple[str | int, ...], said: str
) -> None:
    changed = monitor("millrace-operator")
    place = changed
    for each in where:
        place = place[each]
    place["more"] = "x"
    with pytest.raises(ValueError, match=said):
        list(scrape_configs(changed))
