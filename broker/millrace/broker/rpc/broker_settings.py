"""The settings that a broker goes by, each with where its value comes from.

None of them is a secret: a broker is told files, and what is in these is not shown.
"""

from collections.abc import Iterator
from dataclasses import MISSING, replace
from typing import Final

from millrace.core.broker_config import BrokerConfig, Origin
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.settings import named_values, to_text
from millrace.proto.v1 import cluster_pb2 as pb

_SOURCES: Final = {
    Origin.FILE: pb.CONFIG_SOURCE_FILE,
    Origin.ENVIRONMENT: pb.CONFIG_SOURCE_ENVIRONMENT,
}


def describe_settings(config: BrokerConfig, cluster: ClusterConfig) -> Iterator[pb.ConfigEntry]:
    """Yield every setting of a broker, in the order of the documentation.

    Args:
        config: the broker's own.
        cluster: the controller's, by which all brokers go.
    """
    origins = dict(config.origins)
    own = {name: value for name, _, value in named_values(config)}
    for name, setting, value in named_values(replace(config, cluster=cluster)):
        if value != own[name]:
            source = pb.CONFIG_SOURCE_CONTROLLER
        elif name in origins:
            source = _SOURCES[origins[name]]
        elif setting.default is MISSING or value != setting.default:
            source = pb.CONFIG_SOURCE_COMMAND
        else:
            source = pb.CONFIG_SOURCE_DEFAULT
        yield pb.ConfigEntry(name=name, value=to_text(value), source=source)
