"""What the Prometheus operator makes of PodMonitors, for a Prometheus without that operator.

The fields that our charts use, and no others: any other is an error. In the order and with the
labels of prometheus-operator's `generatePodMonitorConfig`.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

_META = "__meta_kubernetes"

Document = dict[str, Any]
Contents = Callable[[str, str, str], str]
"""Returns what a key has of an object of the PodMonitor's namespace: `configmap` or `secret`, its
name, the key."""


def _nothing(kind: str, name: str, key: str) -> str:
    raise ValueError(f"the {kind} {name} with the key {key} is not known here")


def scrape_configs(monitor: Document, contents: Contents = _nothing) -> Iterator[Document]:
    """Yield Prometheus's scrape configuration for each endpoint of a PodMonitor.

    Args:
        monitor: as in the chart.
        contents: of what it names. The operator mounts authorities; here they are in the file.

    Raises:
        ValueError: it has a field that this does not know.
    """
    metadata = monitor["metadata"]
    namespace, name = metadata["namespace"], metadata["name"]
    spec = _Fields(f"PodMonitor {namespace}/{name}", monitor["spec"])
    discovery: Document = {"role": "pod"}
    where = _Fields("namespaceSelector", spec.pop("namespaceSelector", {}))
    if not where.pop("any", False):
        discovery["namespaces"] = {"names": [namespace]}
    where.must_be_empty()
    selector = _Fields("selector", spec.pop("selector"))
    labels = selector.pop("matchLabels", {})
    selector.must_be_empty()
    endpoints = spec.pop("podMetricsEndpoints")
    spec.must_be_empty()
    for number, written in enumerate(endpoints):
        endpoint = _Fields(f"endpoint {number} of {name}", written)
        port = endpoint.pop("port")
        config = {
            "job_name": f"podMonitor/{namespace}/{name}/{number}",
            "honor_labels": endpoint.pop("honorLabels", False),
            "kubernetes_sd_configs": [discovery],
            "relabel_configs": [
                {
                    "source_labels": [f"{_META}_pod_phase"],
                    "regex": "(Failed|Succeeded)",
                    "action": "drop",
                },
                *(_has_label(label, labels[label]) for label in sorted(labels)),
                _keep([f"{_META}_pod_container_port_name"], port),
                _copy(f"{_META}_namespace", "namespace"),
                _copy(f"{_META}_pod_container_name", "container"),
                _copy(f"{_META}_pod_name", "pod"),
                {"target_label": "job", "replacement": f"{namespace}/{name}"},
                {"target_label": "endpoint", "replacement": port},
                *map(_relabeling, endpoint.pop("relabelings", ())),
            ],
        }
        if interval := endpoint.pop("interval", ""):
            config["scrape_interval"] = interval
        if scheme := endpoint.pop("scheme", ""):
            config["scheme"] = scheme
        if tls := endpoint.pop("tlsConfig", {}):
            config["tls_config"] = _tls(tls, contents)
        if authorization := endpoint.pop("authorization", {}):
            config["authorization"] = {"credentials": _credentials(authorization, contents)}
        endpoint.must_be_empty()
        yield config


def _tls(written: Document, contents: Contents) -> Document:
    fields = _Fields("tlsConfig", written)
    config = {"ca": _selected("ca", fields.pop("ca"), contents)}
    if name := fields.pop("serverName", ""):
        config["server_name"] = name
    fields.must_be_empty()
    return config


def _credentials(written: Document, contents: Contents) -> str:
    fields = _Fields("authorization", written)
    found = _selected("credentials", {"secret": fields.pop("credentials")}, contents)
    fields.must_be_empty()
    return found


def _selected(what: str, written: Document, contents: Contents) -> str:
    """Return the content of a key of a Secret or a ConfigMap."""
    ((kind, selector),) = written.items()
    fields = _Fields(f"{kind} of {what}", selector)
    found = contents(kind.lower(), fields.pop("name"), fields.pop("key"))
    fields.must_be_empty()
    return found


class _Fields:
    """The fields of an object that are not used yet."""

    def __init__(self, what: str, fields: Document) -> None:
        self._what = what
        self._left = dict(fields)

    def pop(self, name: str, *default: Any) -> Any:
        return self._left.pop(name, *default)

    def must_be_empty(self) -> None:
        if self._left:
            raise ValueError(f"{self._what}: not known here: {', '.join(sorted(self._left))}")


def _has_label(label: str, value: str) -> Document:
    name = re.sub(r"\W", "_", label)
    sources = [f"{_META}_pod_label_{name}", f"{_META}_pod_labelpresent_{name}"]
    return _keep(sources, f"({value});true")


def _keep(sources: list[str], regex: str) -> Document:
    return {"source_labels": sources, "regex": regex, "action": "keep"}


def _copy(source: str, target: str) -> Document:
    return {"source_labels": [source], "target_label": target}


def _relabeling(fields: Document) -> Document:
    """Return a relabeling with Prometheus's own names of its fields."""
    return {
        re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name): value
        for name, value in fields.items()
    }
