"""Certificates and their authority change every 30 s under load: number of writes that fail at
clients, and of restarts.

The cluster has TLS and access control. Each change asks the operator for other certificates of all
brokers, and for another authority, by annotations, as people do. A new authority is trusted at once
and signs three minutes later, so changes begin so long before the first round: from then on each
one has another authority sign. A round is `--seconds` of changes.

A kubelet looks at the Secrets of its pods about once a minute, and at once when a pod changes. So
each change also annotates the pods: otherwise brokers would take every second change or third one.
"""

import base64
import json
import time
from datetime import UTC, datetime
from typing import Final

from bench.comparisons.kubernetes_load import cluster_under_load, longest_by_key, writes
from bench.measure import Bench, Outcome, say
from bench.real_kubernetes import running_kubernetes
from e2e.installed import Namespace
from e2e.load.pod import LoadPod

from millrace.operator.plan.certificates import USUAL
from millrace.operator.reconcile.renewals import AUTHORITY, CERTIFICATES
from millrace.runtime.certificates import read

EVERY_S: Final = 30.0
_REACHES_S: Final = 5.0
"""Time in which the operator has usually made the new certificates."""
_BROKERS: Final = [f"logs-brokers-{number}" for number in range(3)]


def measure(bench: Bench) -> Outcome:
    """Change certificates and authority all the time, under one load."""
    with (
        running_kubernetes() as kubernetes,
        cluster_under_load(kubernetes, is_guarded=True) as (namespace, load),
    ):
        before = _lives(namespace)
        say(f"{USUAL.by_hand:.0f} s until the first new authority signs")
        _change(namespace, load, USUAL.by_hand)
        taken_before = _taken(namespace)
        signers: set[str] = set()
        for number in range(1, bench.rounds + 1):
            signers |= _change(namespace, load, bench.seconds)
            say(
                f"round {number}/{bench.rounds}: {len(signers)} authorities have signed, "
                f"{load.status().acknowledged} records so far"
            )
        taken = {name: count - taken_before[name] for name, count in _taken(namespace).items()}
        restarts = len(_lives(namespace) - before)
        namespace.wait("cluster.millrace.dev/logs", "Healthy")
        load.wait_for_all()
        found = writes(load.finish())
    failed = sum(not write.is_acknowledged for write in found)
    return Outcome(
        values={
            "writes that failed": failed,
            "restarts": restarts,
            "fewest changes that a broker took": min(taken.values()),
        },
        detail={
            "writes": len(found),
            "longest_wait_s": max(write.seconds for write in longest_by_key(found).values()),
            "changes_taken": taken,
            "authorities_that_signed": len(signers),
        },
    )


def _change(namespace: Namespace, load: LoadPod, seconds: float) -> set[str]:
    """Change all again and again; return the names of the authorities that signed."""
    signers = set()
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        next_at = time.monotonic() + EVERY_S
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        annotations = [f"{name}={now}" for name in (CERTIFICATES, AUTHORITY)]
        namespace("annotate", "--overwrite", "cluster.millrace.dev/logs", *annotations)
        time.sleep(_REACHES_S)
        for pod in (*_BROKERS, load.name):
            namespace("annotate", "--overwrite", f"pod/{pod}", f"changed={now}")
        signers.add(_signer(namespace))
        time.sleep(max(next_at - time.monotonic(), 0))
    return signers


def _signer(namespace: Namespace) -> str:
    """Return the name of the authority of a broker's certificate."""
    authorities: dict[str, str] = namespace.get("secret", "logs-ca")["data"]
    shown = namespace.get("secret", "logs-brokers-tls")["data"][f"{_BROKERS[0]}.crt"]
    certificate = read(base64.b64decode(shown))
    return next(
        name
        for name, content in authorities.items()
        if name.endswith(".crt") and certificate.is_of(base64.b64decode(content))
    )


def _taken(namespace: Namespace) -> dict[str, int]:
    """Return how often each broker has taken another certificate for its clients."""
    found = dict.fromkeys(_BROKERS, 0)
    for name in _BROKERS:
        for text in namespace("logs", f"pod/{name}").splitlines():
            if '"certificate_renewed"' in text:
                found[name] += json.loads(text)["listener"] == "clients"
    return found


def _lives(namespace: Namespace) -> set[tuple[str, int]]:
    """Return the lives of all brokers, which are others when a pod or its container restarts."""
    pods = namespace.get("pods", "--selector=app.kubernetes.io/component=broker")["items"]
    return {
        (pod["metadata"]["uid"], status["restartCount"])
        for pod in pods
        for status in pod["status"]["containerStatuses"]
    }
