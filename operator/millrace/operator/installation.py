"""Checks that the operator is installed and works, for `millrace operator --check`."""

import asyncio
from datetime import UTC, datetime

from millrace.operator.kube import lease
from millrace.operator.kube.api import Api, ApiError
from millrace.operator.kube.kinds import CLUSTER, QUOTA, TOPIC
from millrace.runtime.kubernetes.access import as_kubectl
from millrace.runtime.kubernetes.resources import LEASE

_WAIT_S = 60
"""How long a new operator may take to win the Lease."""


def problem(namespace: str) -> str | None:
    """Return the problem; None: there is none.

    Args:
        namespace: where the operator runs.
    """
    return asyncio.run(_problem(namespace))


async def _problem(namespace: str) -> str | None:
    api = Api(as_kubectl())
    try:
        for kind in (CLUSTER, TOPIC, QUOTA):
            await api.list(kind)
        for _ in range(_WAIT_S):
            found = await api.get(LEASE, namespace, lease.NAME)
            if found is not None and _is_fresh(found["spec"]):
                return None
            await asyncio.sleep(1)
    except ApiError as error:
        return str(error)
    finally:
        api.close()
    return f"no operator holds the Lease {lease.NAME} in namespace {namespace}: does one run?"


def _is_fresh(spec: dict[str, str]) -> bool:
    if not spec.get("holderIdentity") or not spec.get("renewTime"):
        return False
    age = datetime.now(UTC) - datetime.fromisoformat(spec["renewTime"])
    return age.total_seconds() * 1000 < lease.TIMES.duration_ms
