"""The operator's process, as a pod runs it, but for where the good Cluster's brokers are.

    python -m tests.bad_resources.operator_process HOST:PORT

No name server knows the Service of a Cluster where no node is.
"""

import signal
import sys
from unittest.mock import patch

from tests.bad_resources.cases import GOOD

from millrace.broker.telemetry.logs import configure_logging
from millrace.core.broker_config import LoggingConfig
from millrace.operator import app
from millrace.operator.model.cluster import Cluster
from millrace.operator.reconcile import brokers

_NOBODY = "127.0.0.1:1"


def main() -> None:
    """Run until a signal ends it."""
    address = sys.argv[1]

    def address_of(cluster: Cluster) -> str:
        return address if cluster.name == GOOD else _NOBODY

    config = app.OperatorConfig(
        image="millrace",
        namespace="default",
        holder="the-operator",
        port=0,
    )
    configure_logging(LoggingConfig())
    with patch.object(brokers, "bootstrap_address", address_of):
        app.run(config, [signal.SIGTERM])


if __name__ == "__main__":
    main()
