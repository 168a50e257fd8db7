"""How a person on Kubernetes accepts an older copy of a broker's disk.

The controller refuses the copy, and names the setting that accepts it. A refusal is only a text, so
the setting is found in it as `AcceptedCopy.as_setting` writes it. On Kubernetes the operator writes
a broker's settings, and takes this one from an annotation of the pod.
"""

from millrace.core.broker_config import OLDER_COPY_ANNOTATION, BrokerConfig, CoordinationKind
from millrace.core.metadata.requests import copy_to_accept


def with_command(refusal: str, config: BrokerConfig) -> str:
    """Return why a broker is refused, with the command that accepts its copy, if that is why."""
    copy = copy_to_accept(refusal)
    if copy is None or config.coordination.kind is not CoordinationKind.KUBERNETES:
        return refusal
    namespace = config.coordination.kubernetes.namespace
    where = f"-n {namespace} " if namespace else ""
    # The quotes end the command: Kubernetes shows the error's code right after this message.
    return (
        f"{refusal}. On Kubernetes: `kubectl annotate --overwrite {where}pod {config.node.name} "
        f"{OLDER_COPY_ANNOTATION}={copy}`"
    )
